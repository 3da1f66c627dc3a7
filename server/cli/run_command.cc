// `sluice run`: a coordinator and its workers in this process, for one job.

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "common/thread.h"
#include "server/cli/commands.h"
#include "server/cli/job_io.h"
#include "server/cli/progress.h"
#include "server/local_cluster.h"
#include "server/metrics/metrics_server.h"

namespace sluice {
namespace {

struct RunFlags {
  JobFlags job;
  std::string model, output, errors, state_dir, dtype = "auto", host_memory;
  std::string served_model_name;
  int32_t workers = 1, threads = 0, gbs = 0, num_microbatches = 1, blocks = 0;
  int32_t max_model_len = 0, max_step_tokens = 2048;
  bool no_refill = false, json = false, strict = false, quiet = false;
};

// A directory for the store, removed with all in it at the end unless the user
// named it.
class StateDir {
 public:
  static absl::StatusOr<std::unique_ptr<StateDir>> Open(
      const std::string& wanted) {
    auto dir = std::make_unique<StateDir>();
    if (!wanted.empty()) {
      dir->path_ = wanted;
      return dir;
    }
    std::error_code error;
    const std::filesystem::path tmp =
        std::filesystem::temp_directory_path(error);
    std::string name = ((error ? "/tmp" : tmp) / "sluice-run-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      return absl::Status(absl::ErrnoToStatusCode(errno),
                          absl::StrCat("can't make a directory ", name,
                                       "; say where with --state-dir"));
    }
    dir->path_ = name;
    dir->temporary_ = true;
    return dir;
  }
  ~StateDir() {
    std::error_code ignored;
    if (temporary_) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool temporary_ = false;
};

absl::Status WaitUntilLoaded(LocalCluster& cluster, ProgressDisplay& display) {
  while (!cluster.coordinator().ready()) {
    const v1::ClusterState state = cluster.coordinator().cluster_state();
    for (const v1::WorkerInfo& worker : state.workers()) {
      // In one process nothing comes to help: an error here is final.
      if (worker.state() == v1::WORKER_STATE_FAILED) {
        return absl::FailedPreconditionError(
            absl::StrCat(worker.name(), ": ", worker.detail()));
      }
    }
    display.UpdateText(state.state());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  display.Finish();
  return absl::OkStatus();
}

absl::Status Run(const RunFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(v1::JobSpec spec, flags.job.ToSpec());
  SLUICE_ASSIGN_OR_RETURN(auto input, InputFile::Open(flags.job.input));
  SLUICE_ASSIGN_OR_RETURN(auto files,
                          ResultFiles::Open(flags.output, flags.errors, false));
  SLUICE_ASSIGN_OR_RETURN(auto state_dir, StateDir::Open(flags.state_dir));

  const std::unique_ptr<MetricsRegistry> metrics = CreatePrometheusRegistry();
  LocalCluster::Options options;
  options.num_workers = flags.workers;
  options.compute_threads = flags.threads;
  options.metrics = metrics.get();
  options.host_memory = flags.host_memory;
  Coordinator::Options& c = options.coordinator;
  c.model_dir = flags.model;
  c.served_model_name = flags.served_model_name;
  c.state_dir = state_dir->path();
  SLUICE_ASSIGN_OR_RETURN(c.dtype, ParseDTypeChoice(flags.dtype));
  c.num_blocks = flags.blocks;
  c.gbs = flags.gbs;
  c.num_microbatches = flags.num_microbatches;
  c.max_step_tokens = flags.max_step_tokens;
  c.max_model_len = flags.max_model_len;
  c.refill = !flags.no_refill;
  c.settle_time = absl::ZeroDuration();

  const double start = MonotonicSeconds();
  ProgressDisplay display(Clock::Real(), flags.quiet);
  SLUICE_ASSIGN_OR_RETURN(auto cluster,
                          LocalCluster::Start(std::move(options)));
  SLUICE_RETURN_IF_ERROR(WaitUntilLoaded(*cluster, display));
  const double loaded = MonotonicSeconds();

  JobClient& client = cluster->client();
  SLUICE_ASSIGN_OR_RETURN(v1::Job job,
                          client.CreateJob(spec, &input->stream(), nullptr));
  // Results are written while the job runs; the watch only shows progress.
  absl::Status written;
  Thread writer("results", [&] {
    written = client.StreamResults(
        job.id(), 0, true,
        [&](const v1::Result& result) { return files->Write(result); });
  });
  absl::StatusOr<v1::Job> last =
      client.WatchJob(job.id(), [&](const v1::Job& now) {
        display.Update(now);
        return true;
      });
  display.Finish();
  if (!last.ok()) cluster->client().CancelJob(job.id()).IgnoreError();
  writer.Join();
  SLUICE_RETURN_IF_ERROR(last.status());
  SLUICE_RETURN_IF_ERROR(written);
  SLUICE_RETURN_IF_ERROR(files->Close());
  const double wall = MonotonicSeconds() - loaded;
  const v1::ClusterState state = cluster->coordinator().cluster_state();
  const double rate = wall > 0 ? last->generation_tokens() / wall : 0;

  if (!flags.quiet) {
    std::cerr << absl::StrFormat(
        "%d requests: %d completed, %d failed; %d prompt + %d generated "
        "tokens in %.2f s (%.1f generated tokens/s)\n",
        last->counts().total(), last->counts().completed(),
        last->counts().failed(), last->prompt_tokens(),
        last->generation_tokens(), wall, rate);
  }
  if (flags.json) {
    const nlohmann::ordered_json line = {
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
        {"workers", flags.workers},
        {"dtype", state.dtype()},
        {"gbs", state.gbs()},
        {"blocks", state.num_blocks()}};
    std::cout << line.dump() << std::endl;
  }
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
  flags->job.AddTo(cmd);
  cmd->add_option("--model", flags->model,
                  "model directory in Hugging Face's layout")
      ->required();
  cmd->add_option("-o,--output", flags->output,
                  "result lines, in input order; - is stdout")
      ->required();
  cmd->add_option("--errors", flags->errors,
                  "write error lines here instead of into --output");
  cmd->add_option("--workers", flags->workers,
                  "stages to split the layers over")
      ->capture_default_str();
  cmd->add_option("--dtype", flags->dtype,
                  "auto (the model's), float32 or bfloat16")
      ->capture_default_str();
  cmd->add_option("--threads", flags->threads,
                  "compute threads over all workers; 0: all cores");
  cmd->add_option("--host-memory", flags->host_memory,
                  "hard budget over all workers, as 8GiB; default: 75 % of "
                  "what is free");
  cmd->add_option("--max-model-len", flags->max_model_len,
                  "positions of prompt and answer; default: the model's");
  cmd->add_option("--gbs", flags->gbs, "sequences in a micro-batch");
  cmd->add_option("--num-microbatches", flags->num_microbatches,
                  "micro-batches in a block")
      ->capture_default_str();
  cmd->add_option("--blocks", flags->blocks,
                  "blocks in flight; default: one a worker");
  cmd->add_option("--max-step-tokens", flags->max_step_tokens,
                  "new tokens of a micro-batch in one step")
      ->capture_default_str();
  cmd->add_flag("--no-refill", flags->no_refill,
                "start new sequences only when a whole block has ended");
  cmd->add_option("--served-model-name", flags->served_model_name,
                  "what requests may call the model; default: its directory");
  cmd->add_option("--state-dir", flags->state_dir,
                  "keep the job store here instead of in a temporary place");
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
