#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// Tables as text: RFC 4180, with any one-byte separator and any end of line.

namespace sluice {

// The fields of a row that are kept; spreadsheets have no more columns.
inline constexpr size_t kMaxCsvFields = 16384;

// One row. Its fields are the bytes between the separators, or within the
// quotes, where "" stands for one ". They may be no UTF-8.
class CsvRow {
 public:
  // The line of the file, from 1 on, in which the row begins.
  int64_t line() const { return line_; }
  // The row's fields, of which the first kMaxCsvFields are kept.
  size_t num_fields() const { return num_fields_; }
  // The fields that are kept; none of a row that is too long.
  size_t size() const { return ends_.size(); }
  absl::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return absl::string_view(text_).substr(begin, ends_[i] - begin);
  }
  // Whether its fields have more bytes than a row may have.
  bool too_long() const { return too_long_; }
  // Whether something stands between a closing quote and the next separator.
  bool misquoted() const { return misquoted_; }

 private:
  friend class CsvSplitter;
  std::string text_;  // the fields, one behind the other
  std::vector<size_t> ends_;
  size_t num_fields_ = 0;
  int64_t line_ = 1;
  bool too_long_ = false, misquoted_ = false;
};

// Cuts a stream into rows, whatever its pieces are. "\n" or "\r\n" ends a row
// outside quotes; the last one may lack its end. A byte order mark at the start
// and empty lines are skipped. A quote within a field that does not begin with
// one is an ordinary character. Holds at most one row, and nothing of one whose
// fields have more than `max_row_bytes`. Thread-compatible.
class CsvSplitter {
 public:
  // An error ends the splitting and is passed on.
  using OnRow = std::function<absl::Status(const CsvRow& row)>;

  CsvSplitter(char delimiter, int64_t max_row_bytes, OnRow on_row)
      : stops_{delimiter, '\n'},
        max_row_bytes_(static_cast<size_t>(max_row_bytes)),
        on_row_(std::move(on_row)) {}

  absl::Status Append(absl::string_view data);
  // Gives out a last row without end. kInvalidArgument if a quote is not
  // closed: the message names the line in which it was opened.
  absl::Status Finish();
  // The bytes of the row that has begun.
  size_t unfinished_bytes() const { return row_.text_.size(); }

 private:
  enum class State { kStart, kPlain, kQuoted, kQuote, kReturn };

  absl::Status Split(absl::string_view data);
  void Keep(absl::string_view part);
  void EndField();
  absl::Status EndRow();
  // Takes the character behind a quoted part.
  absl::Status AfterQuote(char c);

  const char stops_[2];  // what ends a plain field
  const size_t max_row_bytes_;
  const OnRow on_row_;
  CsvRow row_;
  State state_ = State::kStart;
  size_t mark_ = 0;         // bytes of a byte order mark that came
  bool quoted_ = false;     // the row has a quoted field
  int64_t line_ = 1;        // of the next byte
  int64_t quote_line_ = 0;  // where the last quoted field began
};

// Appends a field, in quotes if it needs them.
void AppendCsvField(absl::string_view field, char delimiter, std::string* out);

}  // namespace sluice
