#include "server/cli/jobs/job_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/compression/compression.h"
#include "common/flags/checks.h"
#include "common/flags/command_line.h"
#include "common/host/file_descriptor.h"
#include "common/status_macros.h"
#include "common/text/csv.h"
#include "common/text/text.h"
#include "common/threads/clock.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/requests/table_rows.h"
#include "coordinator/request.h"
#include "server/cli/plan/plan_report.h"

namespace sluice {
namespace {

constexpr char kSamplingGroup[] = "Sampling";

// Bytes of an input's beginning that show its kind.
constexpr size_t kHeadBytes = 64 << 10;
constexpr size_t kFormatBytes = 1 << 20;
// Bytes of an input that are looked through for a line of JSON.
constexpr int64_t kMaxScan = int64_t{1} << 30;
constexpr size_t kMarkBytes = 3;  // of a byte order mark in UTF-8

absl::Time FromProtoTime(const google::protobuf::Timestamp& t) {
  return absl::FromUnixSeconds(t.seconds()) + absl::Nanoseconds(t.nanos());
}

std::string TimeText(const google::protobuf::Timestamp& t) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", FromProtoTime(t),
                          absl::UTCTimeZone());
}

// Reads a file from byte `begin` on, decompressed, and leaves its position.
DecompressingReader ReaderOf(int fd, int64_t begin) {
  return DecompressingReader(
      [fd, at = begin](char* data,
                       size_t size) mutable -> absl::StatusOr<size_t> {
        const ssize_t n = pread(fd, data, size, at);
        // The command's own reader reports the error.
        if (n <= 0) return 0;
        at += n;
        return static_cast<size_t>(n);
      });
}

// Whether a line of a file, from byte `begin` on, begins like JSON: text that
// was meant as JSON gets the parser's error. The whole is read if need be, but
// no more than kMaxScan.
bool HasLineLikeJson(int fd, int64_t begin) {
  DecompressingReader reader = ReaderOf(fd, begin);
  std::string buffer(kFormatBytes, '\0');
  bool at_start = true;  // nothing but spaces in this line yet
  for (int64_t at = 0; at < kMaxScan;) {
    const size_t n = reader.Read(buffer.data(), buffer.size()).value_or(0);
    if (n == 0) return false;
    const absl::string_view data(buffer.data(), n);
    for (size_t pos = 0; pos < data.size();) {
      if (at_start) {
        const char c = data[pos++];
        if (c == '{' || c == '[') return true;
        at_start = c == '\n' || absl::ascii_isspace(c) ||
                   (at == 0 && pos <= kMarkBytes && c < 0);  // a mark
        continue;
      }
      const size_t end = data.find('\n', pos);
      if (end == data.npos) break;
      pos = end + 1;
      at_start = true;
    }
    at += static_cast<int64_t>(n);
  }
  return true;  // who knows
}

// Checks the header of a table that begins like this, if it is all there.
absl::Status CheckHeader(absl::string_view head, const v1::TableInput& table) {
  std::optional<absl::Status> checked;
  CsvSplitter rows(DelimiterOf(table), kHeadBytes, [&](const CsvRow& header) {
    checked = TableRows::Create(table, header, kHeadBytes).status();
    return absl::CancelledError("the header is all that is read");
  });
  rows.Append(head).IgnoreError();
  if (checked || head.size() >= kHeadBytes) {
    return checked.value_or(absl::OkStatus());
  }
  // All of a short file is there, maybe a header without the end of its line.
  const absl::Status status = rows.Finish();
  return checked.value_or(status);
}

// Returns the kind of a file that begins like this, and the remedy, if none of
// its lines can be a request; else "".
std::string WhatElseItIs(const std::string& path, absl::string_view head,
                         const v1::JobSpec& spec,
                         const std::function<bool()>& may_have_requests) {
  static constexpr struct {
    absl::string_view begin, name, unpack;
  } kPacked[] = {{"\xfd\x37zXZ", "xz", "xz -dc"},
                 {"BZh", "bzip2", "bzip2 -dc"}};
  for (const auto& packed : kPacked) {
    if (!absl::StartsWith(head, packed.begin)) continue;
    return absl::StrCat("this is ", packed.name,
                        "; unpack it first: ", packed.unpack, " ", path,
                        " | sluice ... -i -");
  }
  if (absl::StartsWith(head, "PK\x03\x04")) {
    return "this is a ZIP archive (or a file of an office program); take the "
           "file of requests out of it first";
  }
  if (absl::StartsWith(head, "PAR1")) {
    return "this is Parquet; write its rows as JSON lines first";
  }
  if (absl::StartsWith(head, "\xff\xfe") ||
      absl::StartsWith(head, "\xfe\xff")) {
    return absl::StrCat("this is UTF-16; convert it first: iconv -t UTF-8 ",
                        path);
  }
  if (spec.format() == v1::INPUT_FORMAT_TEXT) return "";
  if (spec.format() == v1::INPUT_FORMAT_CSV) {
    return std::string(CheckHeader(head, spec.table()).message());
  }
  absl::ConsumePrefix(&head, "\xef\xbb\xbf");
  const absl::string_view text = absl::StripAsciiWhitespace(head);
  if (text.empty()) return "";
  if (text.front() == '[' &&
      absl::StartsWith(absl::StripLeadingAsciiWhitespace(text.substr(1)),
                       "{")) {
    return "this is one JSON list, where each line must be a JSON object; "
           "convert it first: jq -c '.[]'";
  }
  if (may_have_requests()) return "";
  const absl::string_view first = text.substr(0, text.find('\n'));
  if (absl::EndsWithIgnoreCase(path, ".csv") ||
      absl::EndsWithIgnoreCase(path, ".tsv") ||
      first.find_first_of(",;\t") != absl::string_view::npos) {
    return "this looks like a table, where each line must be a JSON object; "
           "if it is one, say --input-format csv (or tsv) and, by --prompt, "
           "what to ask; if each line is a prompt, --input-format text";
  }
  return "no line of it is a JSON object; if each line is a prompt, say "
         "--input-format text";
}

// Returns the format that a file's name, or else the flags, say it has.
std::string FormatOf(absl::string_view input, const TableFlags& table) {
  input = WithoutCompression(input);
  for (const char* format : {"csv", "tsv"}) {
    if (absl::EndsWithIgnoreCase(input, absl::StrCat(".", format))) {
      return format;
    }
  }
  if (absl::EndsWithIgnoreCase(input, ".txt")) return "text";
  return table.given() && !absl::EndsWithIgnoreCase(input, ".jsonl") ? "csv"
                                                                     : "jsonl";
}

}  // namespace

void TableFlags::AddTo(CLI::App* app) {
  app->add_option("--prompt", prompt,
                  "of a table: what to ask of each row, with the field of a "
                  "column as {NAME}; {{ and }} are braces; default: the "
                  "column \"prompt\"")
      ->check(Utf8Text())
      ->type_name("TEXT");
  app->add_option("--id-column", id_column,
                  "of a table: the column of custom_ids; default: "
                  "\"custom_id\" if there is one, else row-1, row-2, ...")
      ->check(Utf8Text())
      ->type_name("NAME");
  app->add_option("--delimiter", delimiter,
                  "of a table: the character between fields; default: a comma, "
                  "or a tab (\\t) in TSV")
      ->check(Utf8Text())
      ->type_name("CHAR");
}

void JobFlags::AddTo(CLI::App* app) {
  app->add_option("-i,--input,--input-file", input,
                  "requests: JSONL, plain text (a prompt a line), CSV or TSV "
                  "(a request a row), plain, .gz or .zst; - is stdin")
      ->required()
      ->group(kMainGroup)
      ->type_name("FILE");
  app->add_option("--max-tokens", max_tokens,
                  absl::StrCat("tokens to generate, for requests that do not "
                               "say; default: what the model's "
                               "generation_config.json says, or else ",
                               kDefaultMaxTokens))
      ->check(AtLeast(1))
      ->group(kMainGroup);
  app->add_option("--input-format", format, TableFlags::kFormatHelp)
      ->capture_default_str();
  table.AddTo(app);
  app->add_flag("--chat", chat,
                "ask the prompts of a text file or a table, and of lines with "
                "\"prompt\" alone, as a user, in the model's chat template");
  app->add_option("--system", system,
                  "the system message of these chats; implies --chat")
      ->check(Utf8Text())
      ->type_name("TEXT");
  app->add_option("--name", name, "a name for people")->check(Utf8Text());
  app->add_option("--temperature", temperature,
                  "0 is greedy; for requests that do not say, as are the next "
                  "ones; defaults: the model's generation_config.json's")
      ->check(From(0, 2))
      ->group(kSamplingGroup);
  app->add_option(
         "--top-p", top_p,
         "the likeliest tokens that make up so much; 0: the likeliest one")
      ->check(From(0, 1))
      ->group(kSamplingGroup);
  app->add_option("--top-k", top_k, "so many of the likeliest tokens; 0: all")
      ->check(AtLeast(-1))
      ->group(kSamplingGroup);
  app->add_option("--seed", seed,
                  "of the job; each request without a seed of its own derives "
                  "one from it and its line")
      ->group(kSamplingGroup);
  app->add_flag("--ignore-eos", ignore_eos,
                "generate max-tokens tokens whatever the model says")
      ->group(kSamplingGroup);
}

absl::StatusOr<v1::JobSpec> JobFlags::ToSpec() const {
  v1::JobSpec spec;
  spec.set_name(name);
  const std::string kind = format == "auto" ? FormatOf(input, table) : format;
  if (kind == "text") {
    spec.set_format(v1::INPUT_FORMAT_TEXT);
  } else if (kind == "jsonl") {
    spec.set_format(v1::INPUT_FORMAT_JSONL);
  } else if (kind == "csv" || kind == "tsv") {
    spec.set_format(v1::INPUT_FORMAT_CSV);
    v1::TableInput& made = *spec.mutable_table();
    made.set_prompt(table.prompt);
    made.set_id_column(table.id_column);
    made.set_delimiter(table.delimiter == "\\t"   ? "\t"
                       : !table.delimiter.empty() ? table.delimiter
                       : kind == "tsv"            ? "\t"
                                                  : "");
    SLUICE_RETURN_IF_ERROR(ValidateTable(made));
  } else {
    return InvalidArgument("--input-format \"", format,
                           "\" is none of auto, jsonl, text, csv, tsv");
  }
  if (table.given() && !spec.has_table()) {
    return InvalidArgument(
        "--prompt, --id-column and --delimiter are for tables, and ", input,
        " is taken for ", kind, "; say --input-format csv or tsv if it is one");
  }
  v1::RequestDefaults* defaults = spec.mutable_defaults();
  if (max_tokens) defaults->set_max_tokens(*max_tokens);
  if (temperature) defaults->set_temperature(*temperature);
  if (top_p) defaults->set_top_p(*top_p);
  if (top_k) defaults->set_top_k(*top_k);
  if (seed) defaults->set_seed(*seed);
  if (ignore_eos) defaults->set_ignore_eos(true);
  if (chat) defaults->set_chat(true);
  if (system) defaults->set_system(*system);
  return spec;
}

absl::Status InputFile::Check(const std::string& path) {
  if (path == "-") return absl::OkStatus();
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    errno = 0;
    if (S_ISDIR(info.st_mode)) {
      errno = EISDIR;
    } else if (access(path.c_str(), R_OK) == 0) {
      return absl::OkStatus();
    }
  }
  const std::string what =
      absl::StrCat("can't read the input ", path, ": ", strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(what)
                         : absl::InvalidArgumentError(what);
}

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(
    const std::string& path, const StopSignals* signals) {
  SLUICE_RETURN_IF_ERROR(Check(path));
  SLUICE_ASSIGN_OR_RETURN(FileDescriptor fd, OpenInput(path));
  return std::unique_ptr<InputFile>(
      new InputFile(std::move(fd), path, signals));
}

absl::Status InputFile::CheckKind(const std::string& path,
                                  const v1::JobSpec& spec) {
  struct stat info {};
  // A pipe that is opened must be read, so it is not opened here.
  if (path != "-" &&
      (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))) {
    return absl::OkStatus();
  }
  // stdin is read without moving its position.
  const FileDescriptor fd(path == "-"
                              ? dup(STDIN_FILENO)
                              : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.open() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::OkStatus();  // the reader reports an error
  }
  const int64_t begin = path == "-" ? lseek(fd.get(), 0, SEEK_CUR) : 0;
  DecompressingReader reader = ReaderOf(fd.get(), begin);
  std::string head(kHeadBytes, '\0');
  size_t filled = 0;
  while (filled < head.size()) {
    const absl::StatusOr<size_t> n =
        reader.Read(head.data() + filled, head.size() - filled);
    if (!n.ok()) {
      return InvalidArgument("--input ", path, ": ", n.status().message());
    }
    if (*n == 0) break;
    filled += *n;
  }
  head.resize(filled);
  const std::string wrong = WhatElseItIs(
      path, head, spec, [&] { return HasLineLikeJson(fd.get(), begin); });
  if (wrong.empty()) return absl::OkStatus();
  return InvalidArgument("--input ", path, ": ", wrong);
}

void ErrorCounts::Add(const v1::Result& result) {
  if (!result.is_error()) return;
  const auto line = nlohmann::json::parse(result.line(), nullptr, false);
  std::string code = "unknown";
  std::string message;
  if (const auto error = line.is_object() ? line.find("error") : line.end();
      error != line.end() && error->is_object()) {
    code = error->value("code", code);
    message = error->value("message", message);
  }
  if (total_ == 0) first_ = message;
  ++total_;
  ++by_code_[code];
}

std::string ErrorCounts::Text() const {
  const std::string counts =
      absl::StrJoin(by_code_, ", ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, entry.second, " ", entry.first);
      });
  return absl::StrCat(counts, "; the first: ", first_);
}

absl::Status CheckAnySucceeded(const v1::Job& job, const ErrorCounts& errors) {
  const v1::RequestCounts& counts = job.counts();
  if (job.state() == v1::JOB_STATE_CANCELLED) {
    return absl::AbortedError(absl::StrCat(
        EscapeForTerminal(job.id()), " was cancelled: ", counts.completed(),
        " of ", counts.total(), " requests have answers"));
  }
  if (counts.completed() > 0 || counts.total() == 0) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "nothing succeeded: ", job.counts().failed(), " of ",
      job.counts().total(), " requests failed",
      errors.total() > 0 ? absl::StrCat(" (", errors.Text(), ")") : ""));
}

absl::StatusOr<std::unique_ptr<ResultFiles>> ResultFiles::Plan(
    const Options& options) {
  auto files = std::make_unique<ResultFiles>();
  const auto plan = [&](const std::string& path, const std::string& flag,
                        File* file) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(const OutputFormat format,
                            OutputFormatOf(options.format, path));
    SLUICE_ASSIGN_OR_RETURN(file->file,
                            OutputFile::Plan(path, flag, options.signals,
                                             /*may_compress=*/true));
    if (format == OutputFormat::kJsonl) return absl::OkStatus();
    file->table.emplace(format == OutputFormat::kCsv ? ',' : '\t');
    files->has_table_ = true;
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(plan(options.output, "--output", &files->output_));
  if (!options.errors.empty()) {
    SLUICE_RETURN_IF_ERROR(plan(options.errors, "--errors", &files->errors_));
    if (files->errors_.file->path() == "-" &&
        files->output_.file->path() == "-") {
      files->errors_.file = nullptr;
    }
  }
  SLUICE_RETURN_IF_ERROR(CheckDistinct(
      options.inputs, {files->output_.file.get(), files->errors_.file.get()}));
  return files;
}

void ResultFiles::AddFormatTo(CLI::App* app, std::string* format) {
  app->add_option("--output-format", *format,
                  "jsonl, csv, tsv, or auto: by the name, *.csv or *.tsv, else "
                  "jsonl; a table has an input table's columns, answer, "
                  "finish_reason and error")
      ->capture_default_str();
}

void ResultFiles::Join(std::unique_ptr<InputRows> rows) {
  rows_ = std::move(rows);
  for (File* file : {&output_, &errors_}) {
    if (file->table) file->table->Join(rows_.get());
  }
}

absl::Status ResultFiles::OpenFile(const File& file, bool append) {
  if (file.file == nullptr) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(file.file->Open(append));
  if (!file.table || file.file->continues()) return absl::OkStatus();
  return file.file->Write(file.table->Header());
}

absl::Status ResultFiles::Open(bool append) {
  if (std::exchange(open_, true)) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(OpenFile(output_, append));
  return OpenFile(errors_, append);
}

absl::Status ResultFiles::Write(const v1::Result& result) {
  constexpr double kFlushSeconds = 0.5;
  SLUICE_RETURN_IF_ERROR(Open());
  error_counts_.Add(result);
  const File& out = result.is_error() && errors_.file ? errors_ : output_;
  std::string line;
  if (out.table) {
    SLUICE_ASSIGN_OR_RETURN(line, out.table->Row(result));
    if (out.file->is_terminal()) {
      line.pop_back();
      line = EscapeLinesForTerminal(line) + "\n";
    }
  } else {
    line = (out.file->is_terminal() ? EscapeJsonForTerminal(result.line())
                                    : result.line()) +
           "\n";
  }
  SLUICE_RETURN_IF_ERROR(out.file->Write(line));
  ++lines_;
  const double now = MonotonicSeconds();
  if (now - flushed_at_ < kFlushSeconds) return absl::OkStatus();
  flushed_at_ = now;
  SLUICE_RETURN_IF_ERROR(output_.file->Flush());
  return errors_.file ? errors_.file->Flush() : absl::OkStatus();
}

absl::Status ResultFiles::Commit() {
  SLUICE_RETURN_IF_ERROR(Open());
  if (rows_ != nullptr) SLUICE_RETURN_IF_ERROR(rows_->Check());
  SLUICE_RETURN_IF_ERROR(output_.file->Commit());
  return errors_.file ? errors_.file->Commit() : absl::OkStatus();
}

std::string CachedTokensText(const v1::Job& job) {
  return job.cached_tokens() == 0
             ? ""
             : absl::StrCat(" (", job.cached_tokens(), " shared)");
}

std::string DefaultMaxTokensText(const v1::Job& job) {
  if (!IsTerminal(job.state())) {
    if (job.requests_by_default() == 0) return "";
    return absl::StrCat(job.requests_by_default(), " of ", job.counts().total(),
                        " requests do not say max_tokens: they end after at "
                        "most ",
                        job.default_max_tokens(),
                        " tokens (--max-tokens says otherwise)");
  }
  if (job.answers_cut_by_default() == 0) return "";
  return absl::StrCat(
      job.answers_cut_by_default(),
      job.answers_cut_by_default() == 1 ? " answer was" : " answers were",
      " cut at max_tokens ", job.default_max_tokens(),
      ", the default; --max-tokens allows more");
}

std::string JobToJson(const v1::Job& job) {
  nlohmann::ordered_json json;
  json["id"] = job.id();
  json["name"] = job.spec().name();
  json["status"] = JobStateName(job.state());
  json["detail"] = job.detail();
  json["request_counts"] = {{"total", job.counts().total()},
                            {"completed", job.counts().completed()},
                            {"failed", job.counts().failed()},
                            {"cancelled", job.counts().cancelled()},
                            {"running", job.counts().running()}};
  json["prompt_tokens"] = job.prompt_tokens();
  json["cached_tokens"] = job.cached_tokens();
  json["generation_tokens"] = job.generation_tokens();
  json["generation_tokens_per_second"] = job.generation_tokens_per_second();
  json["generated_so_far"] = job.generated_so_far();
  json["processed_tokens"] = job.processed_tokens();
  json["expected_tokens"] = job.expected_tokens();
  json["replays"] = job.replays();
  json["default_max_tokens"] = job.default_max_tokens();
  json["requests_by_default"] = job.requests_by_default();
  json["answers_cut_by_default"] = job.answers_cut_by_default();
  if (!job.plan().empty()) {
    json["plan"] = nlohmann::ordered_json::parse(job.plan(), nullptr, false);
  }
  if (job.has_created_at()) json["created_at"] = job.created_at().seconds();
  if (job.has_in_progress_at()) {
    json["in_progress_at"] = job.in_progress_at().seconds();
  }
  if (job.has_finished_at()) json["finished_at"] = job.finished_at().seconds();
  for (const auto& [key, value] : job.spec().metadata()) {
    json["metadata"][key] = value;
  }
  return EscapeJsonForTerminal(
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string JobToText(const v1::Job& job) {
  const auto& counts = job.counts();
  std::string text = absl::StrCat(EscapeForTerminal(job.id()), "  ",
                                  JobStateName(job.state()));
  if (!job.spec().name().empty()) {
    absl::StrAppend(&text, "  \"", EscapeForTerminal(job.spec().name()), "\"");
  }
  if (!job.detail().empty()) {
    absl::StrAppend(&text, "\n  ", EscapeLinesForTerminal(job.detail()));
  }
  absl::StrAppend(&text, "\n  requests   ", counts.total(), " total, ",
                  counts.completed(), " completed, ",
                  counts.failed() - counts.cancelled(), " failed, ");
  if (counts.cancelled() > 0) {
    absl::StrAppend(&text, counts.cancelled(), " cancelled, ");
  }
  absl::StrAppend(&text, counts.running(), " running");
  if (!IsTerminal(job.state()) && job.expected_tokens() > 0) {
    absl::StrAppend(
        &text,
        absl::StrFormat("\n  progress   %.0f %%, %d of about %d tokens "
                        "computed",
                        100.0 * static_cast<double>(job.processed_tokens()) /
                            static_cast<double>(job.expected_tokens()),
                        job.processed_tokens(), job.expected_tokens()));
  }
  absl::StrAppend(&text, "\n  tokens     ", job.prompt_tokens(), " prompt",
                  CachedTokensText(job), ", ", job.generation_tokens(),
                  " generated");
  if (job.generated_so_far() > job.generation_tokens()) {
    absl::StrAppend(&text, " in answers, ", job.generated_so_far(), " so far");
  }
  if (job.generation_tokens_per_second() > 0) {
    absl::StrAppend(&text, absl::StrFormat(", %.1f a second now",
                                           job.generation_tokens_per_second()));
  }
  if (const std::string cut = DefaultMaxTokensText(job); !cut.empty()) {
    absl::StrAppend(&text, "\n  ", cut);
  }
  if (job.replays() > 0) {
    absl::StrAppend(&text, "\n  replays    ", job.replays(),
                    " sequences started again after a failure or a new plan");
  }
  if (const std::string plan = job.plan().empty() ? "" : PlanLine(job.plan());
      !plan.empty()) {
    absl::StrAppend(&text, "\n  plan       ", plan);
  } else if (job.state() == v1::JOB_STATE_IN_PROGRESS &&
             job.processed_tokens() == 0) {
    absl::StrAppend(&text, "\n  plan       not planned yet");
  }
  absl::StrAppend(&text, "\n  created    ", TimeText(job.created_at()));
  if (job.has_finished_at()) {
    absl::StrAppend(&text, "\n  finished   ", TimeText(job.finished_at()));
  }
  return text;
}

}  // namespace sluice
