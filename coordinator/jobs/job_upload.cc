#include "coordinator/jobs/job_upload.h"

#include <malloc.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "coordinator/jobs/requests/request_codec.h"
#include "coordinator/jobs/results/result_format.h"

namespace sluice {
namespace {

// The maximum of rows in one transaction.
constexpr size_t kMaxRows = 4096;
constexpr size_t kMaxBufferedBytes = 4 << 20;
constexpr size_t kLongLineBytes = 1 << 20;

}  // namespace

JobUpload::JobUpload(Options options, RequestParser parser,
                     std::unique_ptr<CustomIdSet> custom_ids)
    : options_(std::move(options)),
      parser_(std::move(parser)),
      custom_ids_(std::move(custom_ids)),
      lines_(options_.max_line_bytes,
             [this](absl::string_view text, bool too_long) {
               return OnLine(text, too_long);
             }),
      rows_(DelimiterOf(options_.table), options_.max_line_bytes,
            [this](const CsvRow& row) { return OnRow(row); }) {}

JobUpload::~JobUpload() {
  if (!published_) options_.abandon(options_.job);
}

absl::Status JobUpload::Append(absl::string_view data) {
  if (published_) {
    return absl::FailedPreconditionError("the upload was committed");
  }
  hash_.Add(data);
  totals_.bytes += static_cast<int64_t>(data.size());
  if (!status_.ok()) return status_;
  status_ = is_table() ? rows_.Append(data) : lines_.Append(data);
  return status_;
}

absl::StatusOr<v1::Job> JobUpload::Commit() {
  if (published_) {
    return absl::FailedPreconditionError("the upload was committed");
  }
  SLUICE_RETURN_IF_ERROR(status_);
  absl::StatusOr<v1::Job> job = Finish();
  if (job.ok() && parser_.leaves_template_out() && raw_ > 0 &&
      raw_ == totals_.lines - totals_.failed) {
    job->set_hint(
        "the model has a chat template, and no request uses it: each prompt is "
        "continued as a text; --chat asks the prompts as a user, as does "
        "\"messages\" in a line");
  }
  published_ = job.ok();
  status_ = job.status();
  return job;
}

absl::StatusOr<v1::Job> JobUpload::Finish() {
  SLUICE_RETURN_IF_ERROR(is_table() ? rows_.Finish() : lines_.Finish());
  if (totals_.lines == 0) {
    return InvalidArgument("no requests: the input has no ",
                           is_table() ? "rows behind its header" : "lines",
                           "; give at least one");
  }
  SLUICE_RETURN_IF_ERROR(Store());
  totals_.content = hash_.Bytes();
  return options_.publish(options_.job, totals_);
}

absl::Status JobUpload::Stopped() {
  return absl::CancelledError("the upload was stopped: no job was made of it");
}

absl::Status JobUpload::Count() {
  if (options_.stopped && options_.stopped()) return Stopped();
  if (totals_.lines >= options_.max_requests) {
    return ResourceExhausted("more than ", options_.max_requests,
                             " requests in one job; split the file");
  }
  ++totals_.lines;
  return absl::OkStatus();
}

LineError JobUpload::TooLong(absl::string_view what) const {
  return {"line_too_long",
          absl::StrCat("the ", what, " is longer than ",
                       options_.max_line_bytes, " bytes; shorten it"),
          ""};
}

absl::Status JobUpload::OnLine(absl::string_view text, bool too_long) {
  const int64_t index = totals_.lines;
  SLUICE_RETURN_IF_ERROR(Count());
  RequestParser::Line line;
  if (too_long) {
    line.error = TooLong("line");
  } else {
    line = Parse(text.size(), [&] {
      return options_.format == v1::INPUT_FORMAT_TEXT
                 ? parser_.ParseText(text, index)
                 : parser_.ParseJson(text, index);
    });
  }
  return Add(std::move(line));
}

absl::Status JobUpload::OnRow(const CsvRow& row) {
  if (!table_) {
    SLUICE_ASSIGN_OR_RETURN(
        table_,
        TableRows::Create(options_.table, row,
                          static_cast<size_t>(options_.max_line_bytes)));
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(Count());
  RequestParser::Line line = ParseRow(row);
  line.request.line = row.line();
  return Add(std::move(line));
}

RequestParser::Line JobUpload::ParseRow(const CsvRow& row) {
  const int64_t index = totals_.lines - 1;
  RequestParser::Line line;
  if (row.too_long()) {
    line.error = TooLong("row");
    return line;
  }
  TableRows::Prompt prompt = table_->Read(row, index);
  if (!prompt.error) {
    line = Parse(prompt.text.size(), [&] {
      return parser_.ParsePrompt(prompt.text, std::move(prompt.custom_id),
                                 index);
    });
    if (line.error && line.error->code == "empty_line") {
      line.error->message =
          "the prompt is empty, as the row's fields are; remove the row";
    }
    return line;
  }
  line.custom_id = std::move(prompt.custom_id);
  line.error = std::move(prompt.error);
  return line;
}

absl::Status JobUpload::Add(RequestParser::Line line) {
  const int64_t index = totals_.lines - 1;
  if (options_.format != v1::INPUT_FORMAT_TEXT) {
    SLUICE_RETURN_IF_ERROR(CheckCustomId(&line));
  }
  if (line.error) {
    ++totals_.failed;
    ++totals_.errors[line.error->code];
    StoredResult& result = bad_lines_.emplace_back();
    result.job = options_.job;
    result.index = index;
    result.kind = ResultKind::kError;
    result.line = FormatError(options_.job, index, line.custom_id, *line.error,
                              kRefused, line.request.line);
    buffered_bytes_ += result.line.size();
  } else {
    totals_.prompt_tokens += static_cast<int64_t>(line.request.prompt.size());
    totals_.max_tokens += MaxTokensOfLine(line.request);
    raw_ += line.request.endpoint == Endpoint::kCompletions;
    totals_.by_default += line.request.max_tokens_by_default;
    StoredRequest& request = requests_.emplace_back();
    request.index = index;
    request.params = EncodeRequestParams(line.request);
    request.custom_id = std::move(line.request.custom_id);
    request.prompt = std::move(line.request.prompt);
    buffered_bytes_ += request.params.size() + request.custom_id.size() +
                       request.prompt.size() * sizeof(int32_t);
  }
  if (requests_.size() + bad_lines_.size() >= kMaxRows ||
      buffered_bytes_ >= kMaxBufferedBytes) {
    return Store();
  }
  return absl::OkStatus();
}

RequestParser::Line JobUpload::Parse(
    size_t bytes, const std::function<RequestParser::Line()>& parse) {
  if (bytes <= kLongLineBytes) return parse();
  MutexLock lock(options_.long_line);
  RequestParser::Line line = parse();
  malloc_trim(0);  // returns the parsed line's memory to the system
  return line;
}

absl::Status JobUpload::CheckCustomId(RequestParser::Line* line) {
  if (line->custom_id.empty()) return absl::OkStatus();
  const int64_t number =
      line->request.line > 0 ? line->request.line : totals_.lines;
  SLUICE_ASSIGN_OR_RETURN(const int64_t first_line,
                          custom_ids_->Insert(line->custom_id, number));
  if (first_line != 0 && !line->error) {
    line->error = LineError{
        "duplicate_custom_id",
        absl::StrCat("\"custom_id\" ", QuoteForMessage(line->custom_id),
                     " was used on line ", first_line,
                     " already; give each line its own"),
        "custom_id"};
  }
  return absl::OkStatus();
}

absl::Status JobUpload::Store() {
  SLUICE_RETURN_IF_ERROR(options_.quotas->Reserve(
      options_.job, options_.tenant,
      {.requests = totals_.lines - totals_.failed,
       .tokens = totals_.prompt_tokens + totals_.max_tokens,
       .bytes = totals_.bytes}));
  SLUICE_RETURN_IF_ERROR(
      options_.store->AddRows(options_.job, requests_, bad_lines_));
  requests_.clear();
  bad_lines_.clear();
  buffered_bytes_ = 0;
  return absl::OkStatus();
}

}  // namespace sluice
