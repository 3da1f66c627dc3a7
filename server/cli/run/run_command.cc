// `sluice run` runs a coordinator and its workers in this process, for one job.

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/flags/command_line.h"
#include "common/host/stop_signals.h"
#include "common/metrics/metrics_server.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "common/version.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/requests/table_rows.h"
#include "coordinator/planning/plan_json.h"
#include "server/cli/commands.h"
#include "server/cli/jobs/job_io.h"
#include "server/cli/jobs/progress.h"
#include "server/cli/run/cluster_flags.h"
#include "server/cli/run/run_report.h"
#include "server/cli/run/run_state.h"
#include "server/local_cluster.h"

namespace sluice {
namespace {

struct RunFlags {
  JobFlags job;
  ClusterFlags cluster;
  std::string output, errors, output_format = "auto";
  bool json = false, strict = false, quiet = false, restart = false;
};

// Adds the flags that answers depend on, beside the model's facts.
void AddFacts(const JobFlags& job, const v1::JobSpec& spec,
              RunState::Facts* facts) {
  const auto add = [&](const char* flag, const auto& value) {
    (*facts)[flag] = value ? absl::StrCat(*value) : "";
  };
  add("--max-tokens", job.max_tokens);
  add("--temperature", job.temperature);
  add("--top-p", job.top_p);
  add("--top-k", job.top_k);
  add("--seed", job.seed);
  (*facts)["--ignore-eos"] = job.ignore_eos ? "given" : "";
  if (job.chat) (*facts)["--chat"] = "given";
  if (job.system) (*facts)["--system"] = *job.system;
  (*facts)["the version of Sluice"] = ReleaseVersion();
  (*facts)["--input-format"] = absl::AsciiStrToLower(
      absl::StripPrefix(v1::InputFormat_Name(spec.format()), "INPUT_FORMAT_"));
  if (!spec.has_table()) return;
  (*facts)["--prompt"] = spec.table().prompt();
  (*facts)["--id-column"] = spec.table().id_column();
  (*facts)["--delimiter"] = std::string(1, DelimiterOf(spec.table()));
}

// The state of one run.
class Runner {
 public:
  Runner(const RunFlags& flags, StopSignals* signals)
      : flags_(flags),
        signals_(*signals),
        display_(Clock::Real(), flags.quiet) {}

  absl::Status Run() {
    const StopSignals::Watch watch(&signals_);
    const StopSignals::AtEnd at_end(&signals_, [this] { PrintLastWords(); });
    absl::Status status = Prepare();
    if (status.ok()) status = StartCluster();
    // A run without answers is removed when it is stopped.
    if (!status.ok()) return StoppedOr(std::move(status), kNothingComputed);
    {
      const StopSignals::Watch stop(&signals_, [this] { cluster_->Stop(); });
      status = Compute();
    }
    display_.Finish();
    return status.ok() ? Report() : Explain(std::move(status));
  }

 private:
  static constexpr char kNothingComputed[] =
      "stopped before anything was computed";

  absl::Status Prepare();
  absl::Status StartCluster();
  // What a signal that came makes of an error.
  absl::Status StoppedOr(absl::Status status, absl::string_view text) const {
    return signals_.stopped() ? absl::CancelledError(text) : std::move(status);
  }
  absl::Status FindJob();
  absl::Status CreateJob();
  absl::Status Compute();
  JobManager::Kept KeptTokens();
  absl::Status Explain(absl::Status status);
  absl::Status Report();
  // What is printed if the process is ended at once.
  void SetLastWords(absl::string_view words) {
    MutexLock lock(&mu_);
    last_words_ = EscapeLinesForTerminal(words);
  }
  void PrintLastWords() {
    MutexLock lock(&mu_);
    std::cerr << "sluice: " << last_words_ << "\n";
  }
  // What this run computed, and how fast; an earlier one may have done more.
  struct Pace {
    double wall = 0;  // seconds
    int64_t prompt_tokens = 0, generated_tokens = 0;
    double prompt_rate = 0, generated_rate = 0;  // tokens per second
  };
  Pace PaceOfThisRun() const;
  void PrintFigures(const std::optional<Plan>& plan, const Pace& pace);
  nlohmann::ordered_json Figures(const std::optional<Plan>& plan,
                                 const Pace& pace) const;

  const RunFlags& flags_;
  StopSignals& signals_;
  ProgressDisplay display_;
  v1::JobSpec spec_;
  std::unique_ptr<ResultFiles> files_;
  bool joins_ = false;  // the input's rows stand beside their answers
  std::unique_ptr<RunState> state_;
  // The tracer and the metrics outlive the cluster.
  std::unique_ptr<MetricsRegistry> metrics_;
  std::unique_ptr<Tracer> tracer_;
  LocalCluster::Options options_;
  std::unique_ptr<LocalCluster> cluster_;
  v1::Job first_;  // the job as it was created or found
  v1::Job last_;
  SweepStats loading_;
  double start_ = 0, loaded_ = 0, ended_ = 0;
  Mutex mu_;
  std::string last_words_ ABSL_GUARDED_BY(mu_) = kNothingComputed;
};

// Checks everything that can be checked before anything is written.
absl::Status Runner::Prepare() {
  SLUICE_ASSIGN_OR_RETURN(spec_, flags_.job.ToSpec());
  const std::string& input = flags_.job.input;
  SLUICE_RETURN_IF_ERROR(InputFile::Check(input));
  SLUICE_RETURN_IF_ERROR(InputFile::CheckKind(input, spec_));
  const NamedInput named = {input, "--input"};
  SLUICE_ASSIGN_OR_RETURN(files_,
                          ResultFiles::Plan({.output = flags_.output,
                                             .errors = flags_.errors,
                                             .format = flags_.output_format,
                                             .inputs = {named},
                                             .signals = &signals_}));
  joins_ = files_->has_table() && spec_.format() == v1::INPUT_FORMAT_CSV;
  SLUICE_ASSIGN_OR_RETURN(
      tracer_, flags_.cluster.MakeTracer({named}, &files_->output()));
  metrics_ = CreatePrometheusRegistry();
  SLUICE_ASSIGN_OR_RETURN(options_, flags_.cluster.Read());
  options_.metrics = metrics_.get();
  options_.tracer = tracer_.get();
  options_.profile_progress = ShowProfiling(&display_);
  options_.stop = signals_.flag();
  start_ = MonotonicSeconds();
  SLUICE_ASSIGN_OR_RETURN(RunState::Facts facts,
                          LocalCluster::AnswerFacts(options_));
  AddFacts(flags_.job, spec_, &facts);
  RunState::Options state;
  state.input = input;
  state.output = &files_->output();
  state.state_dir = flags_.cluster.state_dir;
  state.restart = flags_.restart;
  state.keep_input = joins_;
  state.signals = &signals_;
  SLUICE_ASSIGN_OR_RETURN(state_, RunState::Open(state, std::move(facts)));
  options_.coordinator.state_dir = state_->path();
  spec_.set_request_id(state_->request_id());
  SetLastWords(state_->durable()
                   ? absl::StrCat("stopped at once: what was answered is kept "
                                  "in ",
                                  state_->path().string(),
                                  "; run the same command again to go on")
                   : "stopped at once: none of the answers is kept");
  return absl::OkStatus();
}

absl::Status Runner::StartCluster() {
  SLUICE_RETURN_IF_ERROR(signals_.Check());
  SLUICE_ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(std::move(options_)));
  return signals_.Check();
}

// Finds the job that an earlier, equal run made; if it made none, first_ stays
// empty.
absl::Status Runner::FindJob() {
  v1::ListJobsRequest request;
  do {
    SLUICE_ASSIGN_OR_RETURN(const v1::ListJobsResponse page,
                            cluster_->client().ListJobs(request));
    for (const v1::Job& job : page.jobs()) {
      if (job.spec().request_id() != spec_.request_id()) continue;
      first_ = job;
      return absl::OkStatus();
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

absl::Status Runner::CreateJob() {
  if (state_->resumes()) SLUICE_RETURN_IF_ERROR(FindJob());
  const bool found = !first_.id().empty();
  if (!found) {
    SLUICE_ASSIGN_OR_RETURN(InputStream* const input, state_->OpenInput());
    absl::StatusOr<v1::Job> job =
        cluster_->client().CreateJob(spec_, input, nullptr);
    SLUICE_RETURN_IF_ERROR(input->status());
    SLUICE_ASSIGN_OR_RETURN(first_, std::move(job));
  }
  SLUICE_RETURN_IF_ERROR(state_->OnJobCreated());
  if (flags_.quiet) return absl::OkStatus();
  const v1::RequestCounts& counts = first_.counts();
  if (found) {
    std::cerr << "resuming: " << counts.completed() + counts.failed() << " of "
              << counts.total() << " answers are there";
    if (const JobManager::Kept kept = KeptTokens(); kept.requests > 0) {
      std::cerr << ", and " << kept.tokens << " tokens of " << kept.requests
                << " more";
    }
    std::cerr << "\n";
  }
  if (IsTerminal(first_.state())) return absl::OkStatus();
  for (const std::string& text :
       {cluster_->coordinator().answer_ends(), DefaultMaxTokensText(first_),
        first_.hint()}) {
    if (!text.empty()) std::cerr << EscapeLinesForTerminal(text) << "\n";
  }
  return absl::OkStatus();
}

absl::Status Runner::Compute() {
  // The job comes first if a plan is made for it, or if it exists and may be
  // done; else the workers load first.
  const bool job_first =
      flags_.cluster.coordinator.plan == "on" || state_->resumes();
  if (job_first) SLUICE_RETURN_IF_ERROR(CreateJob());
  if (!IsTerminal(first_.state())) {
    SLUICE_RETURN_IF_ERROR(WaitUntilLoaded(*cluster_, display_));
  }
  loaded_ = MonotonicSeconds();
  loading_ = cluster_->report().stats;
  if (!job_first) SLUICE_RETURN_IF_ERROR(CreateJob());
  if (joins_) {
    SLUICE_ASSIGN_OR_RETURN(
        auto rows, InputRows::Open(state_->input(), DelimiterOf(spec_.table()),
                                   first_.input_hash(), &signals_));
    files_->Join(std::move(rows));
  }
  // Results are written while the job runs; the updates only show progress.
  SLUICE_RETURN_IF_ERROR(files_->Open());
  SLUICE_ASSIGN_OR_RETURN(
      last_,
      FollowJob(
          *cluster_, first_.id(),
          [&](const v1::Result& result) { return files_->Write(result); },
          [&](const v1::Job& now) { display_.Update(now); }));
  ended_ = MonotonicSeconds();
  return files_->Commit();
}

// The tokens of requests without an answer that are stored.
JobManager::Kept Runner::KeptTokens() {
  if (first_.id().empty()) return {};
  return cluster_->coordinator()
      .jobs()
      .KeptTokens(first_.id())
      .value_or(JobManager::Kept());
}

// Ends an unfinished run, and adds to `status` what is kept of it.
absl::Status Runner::Explain(absl::Status status) {
  cluster_->Close();
  const bool stopped = signals_.stopped();
  if (!first_.id().empty() || stopped) {
    absl::StatusOr<v1::Job> job = first_;
    if (!first_.id().empty()) {
      job = cluster_->coordinator().jobs().GetJob(first_.id());
    }
    if (!state_->durable() && (!job.ok() || job->counts().completed() > 0)) {
      files_->Commit().IgnoreError();  // whole lines
    }
    const std::string kept = state_->OnStopped(job, KeptTokens());
    status = stopped ? absl::CancelledError(absl::StrCat("stopped: ", kept))
                     : absl::Status(status.code(),
                                    absl::StrCat(status.message(), "; ", kept));
  }
  state_.reset();
  files_.reset();
  // All is done and can be told, also if a step in flight takes minutes.
  SetLastWords(status.message());
  cluster_.reset();
  return status;
}

Runner::Pace Runner::PaceOfThisRun() const {
  Pace pace;
  pace.wall = ended_ - loaded_;
  pace.prompt_tokens = last_.prompt_tokens() - first_.prompt_tokens();
  // Of a run that computed nothing, the job has the tokens of another.
  pace.generated_tokens =
      IsTerminal(first_.state()) ? 0 : last_.generated_so_far();
  if (pace.wall <= 0) return pace;
  pace.prompt_rate = static_cast<double>(pace.prompt_tokens) / pace.wall;
  pace.generated_rate = static_cast<double>(pace.generated_tokens) / pace.wall;
  return pace;
}

void Runner::PrintFigures(const std::optional<Plan>& plan, const Pace& pace) {
  const RuntimeReport report = cluster_->report();
  const SweepStats stats = report.stats - loading_;
  std::cerr << absl::StrFormat(
      "%d requests: %d completed, %d failed; %s%d prompt%s + %d generated "
      "tokens in %.2f s (%.1f prompt + %.1f generated tokens/s)\n",
      last_.counts().total(), last_.counts().completed(),
      last_.counts().failed(), state_->resumes() ? "in this run " : "",
      pace.prompt_tokens, CachedTokensText(last_), pace.generated_tokens,
      pace.wall, pace.prompt_rate, pace.generated_rate);
  if (files_->error_counts().total() > 0) {
    std::cerr << "failed: " << files_->error_counts().Text() << "\n";
  }
  if (const std::string text = DefaultMaxTokensText(last_); !text.empty()) {
    std::cerr << text << "\n";
  }
  std::cerr << RuntimeTable(report, stats, pace.wall,
                            flags_.cluster.options.num_workers);
  if (plan) {
    std::cerr << PredictionTable(*plan, stats, pace.wall, pace.generated_rate);
  }
}

nlohmann::ordered_json Runner::Figures(const std::optional<Plan>& plan,
                                       const Pace& pace) const {
  const v1::ClusterState state = cluster_->coordinator().cluster_state();
  const RuntimeReport report = cluster_->report();
  const SweepStats stats = report.stats - loading_;
  nlohmann::ordered_json line = {
      {"requests", last_.counts().total()},
      {"completed", last_.counts().completed()},
      {"failed", last_.counts().failed()},
      {"resumed", first_.counts().completed()},
      {"cut_by_default", last_.answers_cut_by_default()},
      {"prompt_tokens", last_.prompt_tokens()},
      {"cached_tokens", last_.cached_tokens()},
      {"generation_tokens", last_.generation_tokens()},
      {"prefill_seconds", state.prefill_seconds()},
      {"decode_seconds", state.decode_seconds()},
      {"wall_seconds", pace.wall},
      {"prompt_tokens_per_second", pace.prompt_rate},
      {"generation_tokens_per_second", pace.generated_rate},
      {"load_seconds", loaded_ - start_},
      {"workers", flags_.cluster.options.num_workers},
      {"dtype", state.dtype()},
      {"gbs", state.gbs()},
      {"blocks", state.num_blocks()}};
  line.update(RuntimeFigures(
      plan ? plan->stages.front().policy : cluster_->coordinator().policy(),
      report, stats));
  if (plan) {
    line["plan"] = nlohmann::ordered_json::parse(last_.plan());
    line["predicted"] = PredictionFigures(*plan, stats);
  }
  return line;
}

absl::Status Runner::Report() {
  const Pace pace = PaceOfThisRun();
  std::optional<Plan> plan;
  if (!last_.plan().empty()) {
    SLUICE_ASSIGN_OR_RETURN(plan, ParsePlan(last_.plan()));
  }
  if (!flags_.quiet) PrintFigures(plan, pace);
  if (flags_.json)
    std::cout << EscapeLineEnds(Figures(plan, pace).dump()) << std::endl;
  SLUICE_RETURN_IF_ERROR(flags_.cluster.WriteTrace(tracer_.get()));
  cluster_.reset();
  SLUICE_RETURN_IF_ERROR(state_->Finish());
  SLUICE_RETURN_IF_ERROR(CheckAnySucceeded(last_, files_->error_counts()));
  if (flags_.strict && last_.counts().failed() > 0) {
    return absl::AbortedError(absl::StrCat(last_.counts().failed(), " of ",
                                           last_.counts().total(),
                                           " requests failed (--strict)"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddRunCommand(CLI::App* app, StopSignals* signals, Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "run", "Run one job in this process, without servers or ports");
  auto flags = std::make_shared<RunFlags>();
  cmd->group(kAloneCommands);
  flags->cluster.AddTo(cmd);
  flags->cluster.coordinator.AddScoreTokens(cmd);
  flags->job.AddTo(cmd);
  cmd->add_option("-o,--output,--output-file", flags->output,
                  "results, in input order, as JSON lines, or, in *.csv and "
                  "*.tsv, beside the rows of a table; - is stdout")
      ->required()
      ->group(kMainGroup)
      ->type_name("FILE");
  cmd->add_option("--errors", flags->errors,
                  "write error lines here instead of into --output");
  ResultFiles::AddFormatTo(cmd, &flags->output_format);
  cmd->add_flag("--json", flags->json,
                "figures as one JSON object in the last line of stdout");
  cmd->add_flag("--strict", flags->strict, "exit with 3 if any request failed");
  cmd->add_flag("--restart", flags->restart,
                "begin anew, and give up the answers that an earlier run with "
                "this output left");
  flags->cluster.coordinator.AddGenerationConfig(cmd);
  flags->cluster.coordinator.AddKeepInterval(cmd);
  cmd->add_flag("-q,--quiet", flags->quiet, "no progress");
  cmd->footer(
      "A run that was stopped or killed goes on where it was when the same\n"
      "command is given again: until the output is whole, answers, and the\n"
      "tokens of unfinished ones, are kept in OUTPUT.sluice (or --state-dir).\n"
      "Examples:\n"
      "  sluice run --model ./llama -i prompts.jsonl -o answers.jsonl\n"
      "  sluice run --model ./llama -i prompts.txt -o - --max-tokens 32\n"
      "  sluice run --model ./llama -i reviews.csv -o labels.csv \\\n"
      "    --prompt 'Is this positive? {text}'\n"
      "  sluice run --model ./llama -i in.jsonl -o out.jsonl --workers 2 "
      "--dtype bfloat16 --json");
  cmd->callback(
      [=] { *chosen = [=] { return Runner(*flags, signals).Run(); }; });
}

}  // namespace sluice
