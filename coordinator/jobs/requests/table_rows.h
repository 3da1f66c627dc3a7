#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/text/csv.h"
#include "coordinator/jobs/requests/json_line.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// kInvalidArgument if a prompt's template or a delimiter is none, whatever the
// columns are; names the field.
absl::Status ValidateTable(const v1::TableInput& table);

// The byte between fields. REQUIRES: ValidateTable is OK.
inline char DelimiterOf(const v1::TableInput& table) {
  return table.delimiter().empty() ? ',' : table.delimiter().front();
}

// Makes prompts of the rows of a table whose header is known. Thread-safe.
class TableRows {
 public:
  // kInvalidArgument: ValidateTable's errors; the header has no column of a
  // name that `table` gives, or more than one. A prompt of more than
  // `max_prompt_bytes` is an error of its row.
  static absl::StatusOr<TableRows> Create(const v1::TableInput& table,
                                          const CsvRow& header,
                                          size_t max_prompt_bytes);

  struct Prompt {
    std::string custom_id;  // "" only if an error says so
    std::string text;
    std::optional<LineError> error;  // then there is no text
  };
  // Reads row `index`, from 0 on, behind the header.
  Prompt Read(const CsvRow& row, int64_t index) const;

 private:
  // A part of the prompt: text, or the field of a column.
  struct Part {
    std::string text;
    std::optional<size_t> column;
  };

  size_t num_columns_ = 0;
  size_t max_prompt_bytes_ = 0;
  std::vector<Part> prompt_;
  std::optional<size_t> id_column_;
  std::string id_name_;
};

}  // namespace sluice
