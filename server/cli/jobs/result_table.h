#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/content_hash.h"
#include "common/host/stop_signals.h"
#include "common/text/csv.h"
#include "server/cli/jobs/input_stream.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// How result lines are written.
enum class OutputFormat { kJsonl, kCsv, kTsv };

// Reads --output-format: "jsonl", "csv", "tsv", or "auto", by the ending of the
// file's name. kInvalidArgument for any other.
absl::StatusOr<OutputFormat> OutputFormatOf(absl::string_view format,
                                            absl::string_view path);

// The rows of a job's table, read again beside its results: one row at a time,
// in memory that a row and a piece of the file take. Thread-compatible.
class InputRows {
 public:
  // Opens a file and reads its header. `input_hash` is v1::Job's.
  // kInvalidArgument if it can't be read or is no table. `signals` must outlive
  // the rows.
  static absl::StatusOr<std::unique_ptr<InputRows>> Open(
      const std::string& path, char delimiter, const std::string& input_hash,
      const StopSignals* signals);

  const std::vector<std::string>& header() const { return header_; }
  // Returns the fields of row `index`, from 0 on, as many as the header has:
  // missing ones are empty, further ones are left out, and so are all of a row
  // that is too long. Valid until the next call. REQUIRES: not less than the
  // last call's. kFailedPrecondition: the file has no such row.
  absl::StatusOr<absl::Span<const std::string>> Get(int64_t index);
  // Reads to the end. kFailedPrecondition if the file is not the job's input.
  absl::Status Check();

 private:
  InputRows(const std::string& path, FileDescriptor fd, char delimiter,
            std::string input_hash, const StopSignals* signals);
  absl::Status OnRow(const CsvRow& row);
  // Reads another piece.
  absl::Status Read();
  absl::Status Differs() const;

  const std::string path_;
  const std::string input_hash_;
  InputStream stream_;
  CsvSplitter splitter_;
  ContentHash hash_;
  std::string piece_;
  bool has_header_ = false, ended_ = false;
  std::vector<std::string> header_;
  std::deque<std::vector<std::string>> rows_;  // from row first_ on
  int64_t first_ = 0;
};

// Writes results as rows of a table: the input's columns if its rows are at
// hand, else the custom_id; then "answer", "finish_reason" and "error", each
// with "sluice_" before it where the input has a column of that name.
// Thread-compatible.
class ResultTable {
 public:
  // `rows` may be null, and must outlive the table.
  explicit ResultTable(char delimiter, InputRows* rows = nullptr)
      : delimiter_(delimiter), rows_(rows) {}
  void Join(InputRows* rows) { rows_ = rows; }

  // Both with the end of the line; valid UTF-8. Row() has InputRows::Get's
  // errors.
  std::string Header() const;
  absl::StatusOr<std::string> Row(const v1::Result& result) const;

 private:
  void Append(absl::string_view field, bool last, std::string* out) const;

  const char delimiter_;
  InputRows* rows_;
};

}  // namespace sluice
