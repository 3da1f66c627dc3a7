#include "server/cli/job_io.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/text.h"
#include "coordinator/job_manager.h"
#include "coordinator/planning/plan_json.h"
#include "server/flags/checks.h"
#include "server/flags/command_line.h"

namespace sluice {
namespace {

constexpr char kSamplingGroup[] = "Sampling";

absl::Time FromProtoTime(const google::protobuf::Timestamp& t) {
  return absl::FromUnixSeconds(t.seconds()) + absl::Nanoseconds(t.nanos());
}

std::string TimeText(const google::protobuf::Timestamp& t) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", FromProtoTime(t),
                          absl::UTCTimeZone());
}

absl::Status FileError(const std::string& what, const std::string& path) {
  return absl::Status(absl::ErrnoToStatusCode(errno),
                      absl::StrCat(what, " ", path, ": ", strerror(errno)));
}

}  // namespace

void JobFlags::AddTo(CLI::App* app) {
  app->add_option("-i,--input", input,
                  "JSONL file of requests (or plain text, a prompt a line); "
                  "- is stdin")
      ->required()
      ->group(kMainGroup)
      ->type_name("FILE");
  AddAlias(app, "--input-file", input);
  app->add_option("--max-tokens", max_tokens,
                  "tokens to generate, for requests that do not say; default: "
                  "what the model's generation_config.json says, or else 128")
      ->check(AtLeast(1))
      ->group(kMainGroup);
  app->add_option("--input-format", format,
                  "jsonl, text, or auto: text for *.txt, else jsonl")
      ->capture_default_str();
  app->add_option("--name", name, "a name for people")->check(Utf8Text());
  app->add_option("--temperature", temperature,
                  "0 is greedy; for requests that do not say, as are the next "
                  "ones; defaults: the model's generation_config.json's")
      ->check(From(0, 2))
      ->group(kSamplingGroup);
  app->add_option("--top-p", top_p, "the likeliest tokens that make up so much")
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
    return absl::InvalidArgumentError(absl::StrCat(
        "--input-format \"", format, "\" is none of auto, jsonl, text"));
  }
  v1::RequestDefaults* defaults = spec.mutable_defaults();
  if (max_tokens) defaults->set_max_tokens(*max_tokens);
  if (temperature) defaults->set_temperature(*temperature);
  if (top_p) defaults->set_top_p(*top_p);
  if (top_k) defaults->set_top_k(*top_k);
  if (seed) defaults->set_seed(*seed);
  if (ignore_eos) defaults->set_ignore_eos(true);
  return spec;
}

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(
    const std::string& path) {
  auto input = std::make_unique<InputFile>();
  if (path == "-") return input;
  input->file_.open(path, std::ios::binary);
  // A directory opens, and only fails when read.
  if (!input->file_.is_open() || input->file_.peek() == EOF) {
    if (!input->file_.is_open() || input->file_.bad()) {
      return FileError("can't read the input", path);
    }
    input->file_.clear();
  }
  return input;
}

absl::StatusOr<std::unique_ptr<ResultFiles>> ResultFiles::Open(
    const std::string& output, const std::string& errors, bool append) {
  auto files = std::make_unique<ResultFiles>();
  const auto mode =
      std::ios::binary | (append ? std::ios::app : std::ios::trunc);
  files->output_name_ = output;
  files->output_ = &std::cout;
  if (output != "-") {
    files->output_file_.open(output, std::ios::out | mode);
    if (!files->output_file_) return FileError("can't write", output);
    files->output_ = &files->output_file_;
  }
  files->errors_name_ = errors.empty() ? output : errors;
  files->errors_ = files->output_;
  if (!errors.empty()) {
    files->errors_file_.open(errors, std::ios::out | mode);
    if (!files->errors_file_) return FileError("can't write", errors);
    files->errors_ = &files->errors_file_;
  }
  return files;
}

absl::Status ResultFiles::Write(const v1::Result& result) {
  std::ostream& out = result.is_error() ? *errors_ : *output_;
  out.write(result.line().data(),
            static_cast<std::streamsize>(result.line().size()));
  out.put('\n');
  if (!out) {
    return FileError("can't write",
                     result.is_error() ? errors_name_ : output_name_);
  }
  ++lines_;
  return absl::OkStatus();
}

absl::Status ResultFiles::Close() {
  output_->flush();
  if (!*output_) return FileError("can't write", output_name_);
  errors_->flush();
  if (!*errors_) return FileError("can't write", errors_name_);
  return absl::OkStatus();
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

// "2 stages, 1 block of 64 x 2: 48.1 tokens/s, bound by disk read of a".
std::string PlanLine(const Plan& plan) {
  const size_t stages = plan.stages.size();
  const StagePlan& binding =
      plan.stages[static_cast<size_t>(plan.binding_stage)];
  std::string text = absl::StrFormat(
      "%d stage%s, %d block%s of %d x %d", stages, stages == 1 ? "" : "s",
      plan.block.num_blocks, plan.block.num_blocks == 1 ? "" : "s",
      plan.block.gbs, plan.block.num_microbatches);
  if (plan.tokens_per_second > 0) {
    absl::StrAppendFormat(&text, "; expected %.1f tokens/s, bound by %s of %s",
                          plan.tokens_per_second,
                          ResourceName(plan.binding_resource),
                          EscapeForTerminal(binding.worker));
  }
  return text;
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
                  counts.completed(), " completed, ", counts.failed(),
                  " failed, ", counts.running(), " running");
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
  if (job.replays() > 0) {
    absl::StrAppend(&text, "\n  replays    ", job.replays(),
                    " sequences started again after a failure");
  }
  if (!job.plan().empty()) {
    if (const absl::StatusOr<Plan> plan = ParsePlan(job.plan()); plan.ok()) {
      absl::StrAppend(&text, "\n  plan       ", PlanLine(*plan));
    }
  }
  absl::StrAppend(&text, "\n  created    ", TimeText(job.created_at()));
  if (job.has_finished_at()) {
    absl::StrAppend(&text, "\n  finished   ", TimeText(job.finished_at()));
  }
  return text;
}

}  // namespace sluice
