#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Makes lines of pieces. A line that is longer than kMaxLine is passed on in
// parts. Thread-compatible.
class LineBuffer {
 public:
  static constexpr size_t kMaxLine = 16384;

  // Calls `take` with each line that ends in the piece, without its '\n'.
  void Add(absl::string_view piece,
           absl::FunctionRef<void(absl::string_view)> take) {
    while (!piece.empty()) {
      const size_t end = piece.find('\n');
      const size_t size = end == absl::string_view::npos ? piece.size() : end;
      const size_t room = kMaxLine - rest_.size();
      rest_.append(piece.data(), size < room ? size : room);
      if (size > room) {
        Flush(take);
        piece.remove_prefix(room);
      } else if (end == absl::string_view::npos) {
        return;
      } else {
        take(rest_);
        rest_.clear();
        piece.remove_prefix(end + 1);
      }
    }
  }
  // Passes on a last line without an end.
  void Flush(absl::FunctionRef<void(absl::string_view)> take) {
    if (!rest_.empty()) take(rest_);
    rest_.clear();
  }

 private:
  std::string rest_;
};

}  // namespace sluice
