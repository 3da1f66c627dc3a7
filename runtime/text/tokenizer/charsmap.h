#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/tokenizer/normalizer.h"

namespace sluice {

// SentencePiece's precompiled table of replacements of characters: the number
// of bytes of a double array of 32-bit units (Darts-clone's format), the array,
// and texts that end with NUL. All integers are little-endian. Immutable.
class Charsmap {
 public:
  // kInvalidArgument if the table is broken.
  static absl::StatusOr<Charsmap> Parse(absl::string_view bytes);

  // Returns the replacement of the shortest text of the table that `text`
  // begins with.
  std::optional<absl::string_view> Find(absl::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string texts_;
};

// Replaces by the table as Hugging Face's Precompiled does: a grapheme of fewer
// than 6 bytes that begins with a text of the table becomes its replacement as
// a whole; the characters of others are replaced each by itself.
Normalizer CharsmapNormalizer(Charsmap map);

}  // namespace sluice
