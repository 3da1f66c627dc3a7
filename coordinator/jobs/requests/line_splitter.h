#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Cuts a stream into lines, whatever its pieces are. "\n" ends a line, one "\r"
// before it is dropped, the last line may lack its end, a UTF-8 byte order mark
// at the start is skipped, and so are empty lines at the end, up to
// kEmptyLines. Holds at most one line, and nothing of one longer than
// `max_line_bytes`. Thread-compatible.
class LineSplitter {
 public:
  // At most this many empty lines are held back; more are given out as they are
  // found, so that one call gives out no more lines than it got.
  static constexpr int kEmptyLines = 1000;
  // `too_long`: the line exceeds the limit, and `line` is empty. An error ends
  // the splitting and is passed on.
  using OnLine =
      std::function<absl::Status(absl::string_view line, bool too_long)>;

  LineSplitter(int64_t max_line_bytes, OnLine on_line)
      : max_line_bytes_(static_cast<size_t>(max_line_bytes)),
        on_line_(std::move(on_line)) {}

  absl::Status Append(absl::string_view data);
  // Gives out a last line without end.
  absl::Status Finish();
  // The bytes of the line that has begun.
  size_t unfinished_bytes() const { return kept_.size(); }

 private:
  void Keep(absl::string_view part);
  absl::Status Emit(absl::string_view line);
  absl::Status EmitKept();
  // Gives a line out, after the empty ones that turn out not to be the last.
  absl::Status Give(absl::string_view line, bool too_long);

  const size_t max_line_bytes_;
  const OnLine on_line_;
  std::string kept_;       // start of an unfinished line
  bool too_long_ = false;  // the unfinished line is, and kept_ is empty
  bool started_ = false;   // the byte order mark was looked for
  int empty_lines_ = 0;    // that were not given out yet
};

}  // namespace sluice
