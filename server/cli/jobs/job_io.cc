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
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/threads/clock.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/request.h"
#include "server/cli/plan/plan_report.h"
#include "server/flags/checks.h"
#include "server/flags/command_line.h"

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

// Whether a line of a file, from byte `begin` on, begins like JSON: text that
// was meant as JSON gets the parser's error. The whole is read if need be, but
// no more than kMaxScan.
bool HasLineLikeJson(int fd, int64_t begin) {
  std::string buffer(kFormatBytes, '\0');
  bool at_start = true;  // nothing but spaces in this line yet
  for (int64_t at = begin; at - begin < kMaxScan;) {
    const ssize_t n = pread(fd, buffer.data(), buffer.size(), at);
    if (n <= 0) return false;
    const absl::string_view data(buffer.data(), static_cast<size_t>(n));
    for (size_t pos = 0; pos < data.size();) {
      if (at_start) {
        const char c = data[pos++];
        if (c == '{' || c == '[') return true;
        at_start = c == '\n' || absl::ascii_isspace(c) ||
                   (at == begin && pos <= kMarkBytes && c < 0);  // a mark
        continue;
      }
      const size_t end = data.find('\n', pos);
      if (end == data.npos) break;
      pos = end + 1;
      at_start = true;
    }
    at += n;
  }
  return true;  // who knows
}

// Returns the kind of a file that begins like this, and the remedy, if none of
// its lines can be a request; else "".
std::string WhatElseItIs(const std::string& path, absl::string_view head,
                         v1::InputFormat format,
                         const std::function<bool()>& may_have_requests) {
  static constexpr struct {
    absl::string_view begin, name, unpack;
  } kPacked[] = {{"\x1f\x8b", "gzip", "gunzip -c"},
                 {"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"},
                 {"\xfd\x37zXZ", "xz", "xz -dc"},
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
  if (format == v1::INPUT_FORMAT_TEXT) return "";
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
    return "this looks like a table (CSV), where each line must be a JSON "
           "object; convert it first, or, if each line is a prompt, say "
           "--input-format text";
  }
  return "no line of it is a JSON object; if each line is a prompt, say "
         "--input-format text";
}

}  // namespace

void JobFlags::AddTo(CLI::App* app) {
  app->add_option("-i,--input,--input-file", input,
                  "JSONL file of requests (or plain text, a prompt a line); "
                  "- is stdin")
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
  app->add_option("--input-format", format,
                  "jsonl, text, or auto: text for *.txt, else jsonl")
      ->capture_default_str();
  app->add_flag("--chat", chat,
                "ask the prompts of a text file, and of lines with \"prompt\" "
                "alone, as a user, in the model's chat template");
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
  if (format == "text" || (format == "auto" && absl::EndsWith(input, ".txt"))) {
    spec.set_format(v1::INPUT_FORMAT_TEXT);
  } else if (format == "jsonl" || format == "auto") {
    spec.set_format(v1::INPUT_FORMAT_JSONL);
  } else {
    return InvalidArgument("--input-format \"", format,
                           "\" is none of auto, jsonl, text");
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
                                  v1::InputFormat format) {
  struct stat info {};
  // A pipe that is opened must be read, so it is not opened here.
  if (path != "-" &&
      (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))) {
    return absl::OkStatus();
  }
  std::string head(kHeadBytes, '\0');
  // stdin is read without moving its position.
  const int fd = path == "-" ? dup(STDIN_FILENO)
                             : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ssize_t n = -1;
  int64_t begin = 0;
  if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
    if (path == "-") begin = lseek(fd, 0, SEEK_CUR);
    n = pread(fd, head.data(), head.size(), begin);
  }
  std::string wrong;  // the reader reports an error
  if (n > 0) {
    head.resize(static_cast<size_t>(n));
    wrong = WhatElseItIs(path, head, format,
                         [&] { return HasLineLikeJson(fd, begin); });
  }
  if (fd >= 0) close(fd);
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
    const std::string& output, const std::string& errors,
    const std::vector<NamedInput>& inputs, const StopSignals* signals) {
  auto files = std::make_unique<ResultFiles>();
  SLUICE_ASSIGN_OR_RETURN(files->output_,
                          OutputFile::Plan(output, "--output", signals));
  if (!errors.empty()) {
    SLUICE_ASSIGN_OR_RETURN(files->errors_,
                            OutputFile::Plan(errors, "--errors", signals));
    if (files->errors_->path() == "-" && files->output_->path() == "-") {
      files->errors_ = nullptr;
    }
  }
  SLUICE_RETURN_IF_ERROR(
      CheckDistinct(inputs, {files->output_.get(), files->errors_.get()}));
  return files;
}

absl::Status ResultFiles::Open(bool append) {
  SLUICE_RETURN_IF_ERROR(output_->Open(append));
  return errors_ ? errors_->Open(append) : absl::OkStatus();
}

absl::Status ResultFiles::Write(const v1::Result& result) {
  constexpr double kFlushSeconds = 0.5;
  error_counts_.Add(result);
  OutputFile& out = result.is_error() && errors_ ? *errors_ : *output_;
  SLUICE_RETURN_IF_ERROR(out.Open());
  SLUICE_RETURN_IF_ERROR(out.Write(out.is_terminal()
                                       ? EscapeJsonForTerminal(result.line())
                                       : result.line()));
  SLUICE_RETURN_IF_ERROR(out.Write("\n"));
  ++lines_;
  const double now = MonotonicSeconds();
  if (now - flushed_at_ < kFlushSeconds) return absl::OkStatus();
  flushed_at_ = now;
  SLUICE_RETURN_IF_ERROR(Open());
  SLUICE_RETURN_IF_ERROR(output_->Flush());
  return errors_ ? errors_->Flush() : absl::OkStatus();
}

absl::Status ResultFiles::Commit() {
  SLUICE_RETURN_IF_ERROR(output_->Commit());
  return errors_ ? errors_->Commit() : absl::OkStatus();
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
  absl::StrAppend(&text, "\n  tokens     ", job.prompt_tokens(), " prompt, ",
                  job.generation_tokens(), " generated");
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
