// `sluice run`: a coordinator and its workers in this process, for one job.

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "coordinator/planning/plan_json.h"
#include "server/cli/cluster_flags.h"
#include "server/cli/commands.h"
#include "server/cli/job_io.h"
#include "server/cli/progress.h"
#include "server/cli/run_report.h"
#include "server/flags/command_line.h"
#include "server/local_cluster.h"
#include "server/metrics/metrics_server.h"

namespace sluice {
namespace {

struct RunFlags {
  JobFlags job;
  ClusterFlags cluster;
  std::string output, errors, generation_config = "auto";
  bool json = false, strict = false, quiet = false;
};

absl::Status Run(const RunFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(v1::JobSpec spec, flags.job.ToSpec());
  SLUICE_ASSIGN_OR_RETURN(auto input, InputFile::Open(flags.job.input));
  SLUICE_ASSIGN_OR_RETURN(auto files,
                          ResultFiles::Open(flags.output, flags.errors, false));
  SLUICE_ASSIGN_OR_RETURN(auto state_dir,
                          StateDir::Open(flags.cluster.state_dir));

  // The tracer and the metrics outlive the cluster.
  const std::unique_ptr<MetricsRegistry> metrics = CreatePrometheusRegistry();
  LocalCluster::Options options;
  SLUICE_RETURN_IF_ERROR(flags.cluster.Apply(&options));
  options.metrics = metrics.get();
  options.coordinator.state_dir = state_dir->path();
  options.coordinator.generation_config = flags.generation_config == "auto";

  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Tracer> tracer,
                          flags.cluster.MakeTracer());
  options.tracer = tracer.get();

  const double start = MonotonicSeconds();
  ProgressDisplay display(Clock::Real(), flags.quiet);
  options.profile_progress = ShowProfiling(&display);
  SLUICE_ASSIGN_OR_RETURN(auto cluster,
                          LocalCluster::Start(std::move(options)));
  JobClient& client = cluster->client();
  v1::Job job;
  // A plan is made for a job that is there; else the workers load first, so
  // that an input from a pipe is read when it can be worked on.
  const auto create = [&] {
    absl::StatusOr<v1::Job> created =
        client.CreateJob(spec, &input->stream(), nullptr);
    if (created.ok()) job = *std::move(created);
    return created.status();
  };
  const bool planned = flags.cluster.plan == "on";
  if (planned) SLUICE_RETURN_IF_ERROR(create());
  SLUICE_RETURN_IF_ERROR(WaitUntilLoaded(*cluster, display));
  const double loaded = MonotonicSeconds();
  const SweepStats loading = cluster->report().stats;
  if (!planned) SLUICE_RETURN_IF_ERROR(create());
  // Results are written while the job runs; the updates only show progress.
  const absl::StatusOr<v1::Job> last = FollowJob(
      *cluster, job.id(),
      [&](const v1::Result& result) { return files->Write(result); },
      [&](const v1::Job& now) { display.Update(now); });
  display.Finish();
  SLUICE_RETURN_IF_ERROR(last.status());
  SLUICE_RETURN_IF_ERROR(files->Close());
  const double wall = MonotonicSeconds() - loaded;
  const v1::ClusterState state = cluster->coordinator().cluster_state();
  const RuntimeReport report = cluster->report();
  const SweepStats stats = report.stats - loading;
  const double rate = wall > 0 ? last->generation_tokens() / wall : 0;

  std::optional<Plan> plan;
  if (!last->plan().empty()) {
    SLUICE_ASSIGN_OR_RETURN(plan, ParsePlan(last->plan()));
  }

  if (!flags.quiet) {
    std::cerr << absl::StrFormat(
        "%d requests: %d completed, %d failed; %d prompt + %d generated "
        "tokens in %.2f s (%.1f generated tokens/s)\n",
        last->counts().total(), last->counts().completed(),
        last->counts().failed(), last->prompt_tokens(),
        last->generation_tokens(), wall, rate);
    std::cerr << RuntimeTable(report, stats, wall, flags.cluster.workers);
    if (plan) std::cerr << PredictionTable(*plan, stats, wall, rate);
  }
  if (flags.json) {
    nlohmann::ordered_json line = {
        {"requests", last->counts().total()},
        {"completed", last->counts().completed()},
        {"failed", last->counts().failed()},
        {"prompt_tokens", last->prompt_tokens()},
        {"generation_tokens", last->generation_tokens()},
        {"prefill_seconds", state.prefill_seconds()},
        {"decode_seconds", state.decode_seconds()},
        {"wall_seconds", wall},
        {"generation_tokens_per_second", rate},
        {"load_seconds", loaded - start},
        {"workers", flags.cluster.workers},
        {"dtype", state.dtype()},
        {"gbs", state.gbs()},
        {"blocks", state.num_blocks()}};
    line.update(RuntimeFigures(
        plan ? plan->stages.front().policy : cluster->coordinator().policy(),
        report, stats));
    if (plan) {
      line["plan"] = nlohmann::ordered_json::parse(last->plan());
      line["predicted"] = PredictionFigures(*plan, stats);
    }
    std::cout << line.dump() << std::endl;
  }
  SLUICE_RETURN_IF_ERROR(flags.cluster.WriteTrace(tracer.get()));
  if (flags.strict && last->counts().failed() > 0) {
    return absl::AbortedError(absl::StrCat(last->counts().failed(), " of ",
                                           last->counts().total(),
                                           " requests failed (--strict)"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddRunCommand(CLI::App* app, Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "run", "Run one job in this process, without servers or ports");
  auto flags = std::make_shared<RunFlags>();
  cmd->group(kAloneCommands);
  flags->cluster.AddTo(cmd);
  flags->job.AddTo(cmd);
  cmd->add_option("-o,--output", flags->output,
                  "result lines, in input order; - is stdout")
      ->required()
      ->group(kMainGroup)
      ->type_name("FILE");
  AddAlias(cmd, "--output-file", flags->output);
  cmd->add_option("--errors", flags->errors,
                  "write error lines here instead of into --output");
  cmd->add_option("--generation-config", flags->generation_config,
                  "auto: requests that do not say get the values of the "
                  "model's generation_config.json; none: as if it had none")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str();
  cmd->add_flag("--json", flags->json,
                "figures as one JSON object in the last line of stdout");
  cmd->add_flag("--strict", flags->strict, "exit with 3 if any request failed");
  cmd->add_flag("-q,--quiet", flags->quiet, "no progress");
  cmd->footer(
      "Examples:\n"
      "  sluice run --model ./llama -i prompts.jsonl -o answers.jsonl\n"
      "  sluice run --model ./llama -i prompts.txt -o - --max-tokens 32\n"
      "  sluice run --model ./llama -i in.jsonl -o out.jsonl --workers 2 "
      "--dtype bfloat16 --json");
  cmd->callback([=] { *chosen = [=] { return Run(*flags); }; });
}

}  // namespace sluice
