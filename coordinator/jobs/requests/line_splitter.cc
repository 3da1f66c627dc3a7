#include "coordinator/jobs/requests/line_splitter.h"

#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace sluice {
namespace {
constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";
}  // namespace

void LineSplitter::Keep(absl::string_view part) {
  if (too_long_) return;
  // Two bytes more than the limit tell that a line is too long even if its last
  // one is "\r"; three leave room for a byte order mark.
  if (kept_.size() + part.size() > max_line_bytes_ + 5) {
    too_long_ = true;
    std::string().swap(kept_);
    return;
  }
  kept_.append(part.data(), part.size());
}

absl::Status LineSplitter::Emit(absl::string_view line) {
  if (!started_) {
    started_ = true;
    absl::ConsumePrefix(&line, kByteOrderMark);
  }
  absl::ConsumeSuffix(&line, "\r");
  if (line.size() > max_line_bytes_) return Give("", true);
  if (line.empty() && empty_lines_ < kEmptyLines) {
    ++empty_lines_;
    return absl::OkStatus();
  }
  return Give(line, false);
}

absl::Status LineSplitter::Give(absl::string_view line, bool too_long) {
  for (; empty_lines_ > 0; --empty_lines_) {
    SLUICE_RETURN_IF_ERROR(on_line_("", false));
  }
  return on_line_(line, too_long);
}

absl::Status LineSplitter::EmitKept() {
  if (too_long_) {
    too_long_ = false;
    started_ = true;
    return Give("", true);
  }
  std::string line;
  line.swap(kept_);
  absl::Status status = Emit(line);
  line.clear();
  if (line.capacity() <= 65536) line.swap(kept_);  // keeps a usual allocation
  return status;
}

absl::Status LineSplitter::Append(absl::string_view data) {
  while (true) {
    const size_t end = data.find('\n');
    if (end == absl::string_view::npos) break;
    if (kept_.empty() && !too_long_) {
      SLUICE_RETURN_IF_ERROR(Emit(data.substr(0, end)));
    } else {
      Keep(data.substr(0, end));
      SLUICE_RETURN_IF_ERROR(EmitKept());
    }
    data.remove_prefix(end + 1);
  }
  if (!data.empty()) Keep(data);
  return absl::OkStatus();
}

absl::Status LineSplitter::Finish() {
  if (!started_ && kept_ == kByteOrderMark) return absl::OkStatus();
  if (kept_.empty() && !too_long_) return absl::OkStatus();
  return EmitKept();
}

}  // namespace sluice
