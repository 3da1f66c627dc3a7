#include "server/cli/jobs/result_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/compression/compression.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kPieceBytes = 64 << 10;
// A coordinator takes no longer rows.
constexpr int64_t kMaxRowBytes = 16 << 20;
constexpr const char* kColumns[] = {"answer", "finish_reason", "error"};

// What a result line says, as fields.
struct Answer {
  std::string custom_id, text, finish_reason, error;
};

// Returns a string as it is, anything else as JSON.
std::string TextOf(const json& value) {
  return value.is_string()
             ? value.get<std::string>()
             : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Returns the member, or null if `value` is no object with one.
const json& At(const json& value, const char* name) {
  static const json* const kNull = new json();
  const auto it = value.is_object() ? value.find(name) : value.end();
  return it == value.end() ? *kNull : *it;
}

const json& TextOfChoice(const json& choice) {
  const json& message = At(choice, "message");
  return message.is_object() ? At(message, "content") : At(choice, "text");
}

Answer AnswerOf(absl::string_view line) {
  Answer answer;
  const json result = json::parse(line.begin(), line.end(), nullptr, false);
  if (const json& id = At(result, "custom_id"); !id.is_null()) {
    answer.custom_id = TextOf(id);
  }
  if (const json& error = At(result, "error"); !error.is_null()) {
    const json& code = At(error, "code");
    const json& message = At(error, "message");
    answer.error = code.is_null() || message.is_null()
                       ? TextOf(error)
                       : absl::StrCat(TextOf(code), ": ", TextOf(message));
    return answer;
  }
  const json& body = At(At(result, "response"), "body");
  const json& choices = At(body, "choices");
  if (!choices.is_array()) {
    answer.text = TextOf(body);  // of another endpoint
  } else if (choices.size() == 1) {
    answer.text = TextOf(TextOfChoice(choices[0]));
    answer.finish_reason = TextOf(At(choices[0], "finish_reason"));
  } else {
    json texts = json::array();
    json reasons = json::array();
    for (const json& choice : choices) {
      texts.push_back(TextOfChoice(choice));
      reasons.push_back(At(choice, "finish_reason"));
    }
    answer.text = TextOf(texts);
    answer.finish_reason = TextOf(reasons);
  }
  return answer;
}

}  // namespace

absl::StatusOr<OutputFormat> OutputFormatOf(absl::string_view format,
                                            absl::string_view path) {
  if (format == "jsonl") return OutputFormat::kJsonl;
  if (format == "csv") return OutputFormat::kCsv;
  if (format == "tsv") return OutputFormat::kTsv;
  if (format != "auto") {
    return InvalidArgument("--output-format \"", format,
                           "\" is none of auto, jsonl, csv, tsv");
  }
  path = WithoutCompression(path);
  if (absl::EndsWithIgnoreCase(path, ".csv")) return OutputFormat::kCsv;
  if (absl::EndsWithIgnoreCase(path, ".tsv")) return OutputFormat::kTsv;
  return OutputFormat::kJsonl;
}

InputRows::InputRows(const std::string& path, FileDescriptor fd, char delimiter,
                     std::string input_hash, const StopSignals* signals)
    : path_(path),
      input_hash_(std::move(input_hash)),
      stream_(std::move(fd), path, signals),
      splitter_(delimiter, kMaxRowBytes,
                [this](const CsvRow& row) { return OnRow(row); }),
      piece_(kPieceBytes, '\0') {}

absl::StatusOr<std::unique_ptr<InputRows>> InputRows::Open(
    const std::string& path, char delimiter, const std::string& input_hash,
    const StopSignals* signals) {
  SLUICE_ASSIGN_OR_RETURN(FileDescriptor fd, OpenInput(path));
  std::unique_ptr<InputRows> rows(
      new InputRows(path, std::move(fd), delimiter, input_hash, signals));
  while (!rows->has_header_ && !rows->ended_) {
    SLUICE_RETURN_IF_ERROR(rows->Read());
  }
  return rows;
}

absl::Status InputRows::OnRow(const CsvRow& row) {
  std::vector<std::string> fields;
  fields.reserve(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    AppendUtf8Lossy(row[i], /*final=*/true, &fields.emplace_back());
  }
  if (!std::exchange(has_header_, true)) {
    header_ = std::move(fields);
    return absl::OkStatus();
  }
  fields.resize(header_.size());
  rows_.push_back(std::move(fields));
  return absl::OkStatus();
}

absl::Status InputRows::Read() {
  stream_.read(piece_.data(), static_cast<std::streamsize>(piece_.size()));
  SLUICE_RETURN_IF_ERROR(stream_.status());
  const absl::string_view data(piece_.data(),
                               static_cast<size_t>(stream_.gcount()));
  hash_.Add(data);
  if (!data.empty()) return splitter_.Append(data);
  ended_ = true;
  return splitter_.Finish();
}

absl::Status InputRows::Differs() const {
  return FailedPrecondition(
      path_,
      " is not the file that the job was made of, so that its rows and the "
      "answers do not belong together; give the file as it was then");
}

absl::StatusOr<absl::Span<const std::string>> InputRows::Get(int64_t index) {
  while (index - first_ >= static_cast<int64_t>(rows_.size())) {
    if (ended_) return Differs();
    first_ += static_cast<int64_t>(rows_.size());
    rows_.clear();
    SLUICE_RETURN_IF_ERROR(Read());
  }
  for (; first_ < index; ++first_) rows_.pop_front();
  return absl::MakeConstSpan(rows_.front());
}

absl::Status InputRows::Check() {
  while (!ended_) {
    rows_.clear();
    SLUICE_RETURN_IF_ERROR(Read());
  }
  // A job of an early version has no hash.
  if (input_hash_.empty() || hash_.Hex() == input_hash_) {
    return absl::OkStatus();
  }
  return Differs();
}

void ResultTable::Append(absl::string_view field, bool last,
                         std::string* out) const {
  AppendCsvField(field, delimiter_, out);
  *out += last ? '\n' : delimiter_;
}

std::string ResultTable::Header() const {
  const std::vector<std::string> columns =
      rows_ == nullptr ? std::vector<std::string>{"custom_id"}
                       : rows_->header();
  std::string row;
  for (const std::string& column : columns) Append(column, false, &row);
  for (std::string name : kColumns) {
    const bool last = name == std::end(kColumns)[-1];
    while (std::find(columns.begin(), columns.end(), name) != columns.end()) {
      name = absl::StrCat("sluice_", name);
    }
    Append(name, last, &row);
  }
  return row;
}

absl::StatusOr<std::string> ResultTable::Row(const v1::Result& result) const {
  const Answer answer = AnswerOf(result.line());
  std::string row;
  if (rows_ == nullptr) {
    Append(answer.custom_id, false, &row);
  } else {
    SLUICE_ASSIGN_OR_RETURN(const absl::Span<const std::string> fields,
                            rows_->Get(result.index()));
    for (const std::string& field : fields) Append(field, false, &row);
  }
  Append(answer.text, false, &row);
  Append(answer.finish_reason, false, &row);
  Append(answer.error, true, &row);
  return row;
}

}  // namespace sluice
