#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// A part of the text on its way to the model.
struct Piece {
  absl::string_view text;
  int32_t token = -1;  // its added token; -1: still text
  // The number of leading bytes that stem from the first character of the whole
  // text (0: the piece is not its beginning). A prepended character counts as
  // stemming from the one behind it.
  size_t first_bytes = 0;
};

// A text cut in pieces, none of them empty. Owns the pieces' text, except the
// caller's.
struct Pieces {
  std::vector<Piece> pieces;
  std::deque<std::string> storage;

  absl::string_view Keep(std::string text) {
    storage.push_back(std::move(text));
    return storage.back();
  }
};

// The part [begin, end) of `piece`.
inline Piece Slice(const Piece& piece, size_t begin, size_t end) {
  const size_t first =
      piece.first_bytes > begin ? piece.first_bytes - begin : 0;
  return {piece.text.substr(begin, end - begin), -1,
          first < end - begin ? first : end - begin};
}

}  // namespace sluice
