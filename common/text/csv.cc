#include "common/text/csv.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

void CsvSplitter::Keep(absl::string_view part) {
  if (row_.too_long_) return;
  if (row_.text_.size() + part.size() > max_row_bytes_) {
    row_.too_long_ = true;
    std::string().swap(row_.text_);
    row_.ends_.clear();
    return;
  }
  row_.text_.append(part.data(), part.size());
}

void CsvSplitter::EndField() {
  ++row_.num_fields_;
  if (!row_.too_long_ && row_.num_fields_ <= kMaxCsvFields) {
    row_.ends_.push_back(row_.text_.size());
  } else if (!row_.too_long_) {
    row_.text_.resize(row_.ends_.back());
  }
  state_ = State::kStart;
}

absl::Status CsvSplitter::EndRow() {
  EndField();
  ++line_;
  const bool blank = row_.num_fields_ == 1 && row_.text_.empty() && !quoted_ &&
                     !row_.too_long_;
  absl::Status status = blank ? absl::OkStatus() : on_row_(row_);
  constexpr size_t kUsualBytes = 64 << 10;
  if (row_.text_.capacity() > kUsualBytes) std::string().swap(row_.text_);
  row_.text_.clear();
  row_.ends_.clear();
  row_.num_fields_ = 0;
  row_.too_long_ = row_.misquoted_ = quoted_ = false;
  row_.line_ = line_;
  return status;
}

absl::Status CsvSplitter::AfterQuote(char c) {
  if (state_ == State::kQuote && c == '"') {
    Keep("\"");
    state_ = State::kQuoted;
  } else if (c == '\n') {
    return EndRow();
  } else if (state_ == State::kQuote && c == stops_[0]) {
    EndField();
  } else if (state_ == State::kQuote && c == '\r') {
    state_ = State::kReturn;
  } else {
    row_.misquoted_ = true;
    Keep(absl::string_view(&c, 1));
    state_ = State::kPlain;
  }
  return absl::OkStatus();
}

absl::Status CsvSplitter::Append(absl::string_view data) {
  while (mark_ < kByteOrderMark.size() && !data.empty()) {
    if (data.front() != kByteOrderMark[mark_]) {
      const size_t begun = mark_;
      mark_ = kByteOrderMark.size();
      SLUICE_RETURN_IF_ERROR(Split(kByteOrderMark.substr(0, begun)));
      break;
    }
    ++mark_;
    data.remove_prefix(1);
  }
  return Split(data);
}

absl::Status CsvSplitter::Split(absl::string_view data) {
  while (!data.empty()) {
    switch (state_) {
      case State::kStart:
        if (data.front() == '"') {
          quoted_ = true;
          quote_line_ = line_;
          state_ = State::kQuoted;
          data.remove_prefix(1);
        } else {
          state_ = State::kPlain;
        }
        break;
      case State::kPlain: {
        const size_t end = data.find_first_of({stops_, 2});
        Keep(data.substr(0, end));
        if (end == data.npos) return absl::OkStatus();
        const char stop = data[end];
        data.remove_prefix(end + 1);
        if (stop != '\n') {
          EndField();
          break;
        }
        const size_t begin = row_.ends_.empty() ? 0 : row_.ends_.back();
        if (row_.text_.size() > begin && row_.text_.back() == '\r') {
          row_.text_.pop_back();
        }
        SLUICE_RETURN_IF_ERROR(EndRow());
        break;
      }
      case State::kQuoted: {
        const absl::string_view part = data.substr(0, data.find('"'));
        Keep(part);
        line_ += std::count(part.begin(), part.end(), '\n');
        data.remove_prefix(part.size());
        if (data.empty()) return absl::OkStatus();
        state_ = State::kQuote;
        data.remove_prefix(1);
        break;
      }
      case State::kQuote:
      case State::kReturn: {
        const char c = data.front();
        data.remove_prefix(1);
        SLUICE_RETURN_IF_ERROR(AfterQuote(c));
        break;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CsvSplitter::Finish() {
  if (mark_ < kByteOrderMark.size()) {
    const size_t begun = std::exchange(mark_, kByteOrderMark.size());
    SLUICE_RETURN_IF_ERROR(Split(kByteOrderMark.substr(0, begun)));
  }
  if (state_ == State::kQuoted) {
    return InvalidArgument(
        "line ", quote_line_,
        ": a field begins with a quote (\") that is never closed, so that "
        "nothing behind it can be told apart; close it, or double the quotes "
        "within a quoted field");
  }
  if (state_ == State::kStart && row_.num_fields_ == 0) return absl::OkStatus();
  return EndRow();
}

void AppendCsvField(absl::string_view field, char delimiter, std::string* out) {
  const char special[] = {delimiter, '"', '\n', '\r'};
  if (field.find_first_of({special, sizeof(special)}) == field.npos) {
    out->append(field.data(), field.size());
    return;
  }
  *out += '"';
  for (const char c : field) {
    if (c == '"') *out += '"';
    *out += c;
  }
  *out += '"';
}

}  // namespace sluice
