#include "server/cli/cluster_flags.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace sluice {

void ClusterFlags::AddTo(CLI::App* app) {
  app->add_option("--model", model, "model directory in Hugging Face's layout")
      ->required();
  app->add_option("--workers", workers, "stages to split the layers over")
      ->capture_default_str();
  app->add_option("--dtype", dtype, "auto (the model's), float32 or bfloat16")
      ->capture_default_str();
  app->add_option("--threads", threads,
                  "compute threads over all workers; 0: all cores");
  app->add_option("--host-memory", host_memory,
                  "hard budget over all workers, as 8GiB; default: 75 % of "
                  "what is free");
  app->add_option("--max-model-len", max_model_len,
                  "positions of prompt and answer; default: the model's");
  app->add_option("--gbs", gbs, "sequences in a micro-batch");
  app->add_option("--num-microbatches", num_microbatches,
                  "micro-batches in a block")
      ->capture_default_str();
  app->add_option("--blocks", blocks,
                  "blocks in flight; default: one a worker");
  app->add_option("--max-step-tokens", max_step_tokens,
                  "new tokens of a micro-batch in one step")
      ->capture_default_str();
  app->add_flag("--no-refill", no_refill,
                "start new sequences only when a whole block has ended");
  app->add_option("--served-model-name", served_model_name,
                  "what requests may call the model; default: its directory");
  app->add_option("--state-dir", state_dir,
                  "keep the job store here instead of in a temporary place");
}

absl::Status ClusterFlags::Apply(LocalCluster::Options* options) const {
  options->num_workers = workers;
  options->compute_threads = threads;
  options->host_memory = host_memory;
  Coordinator::Options& c = options->coordinator;
  c.model_dir = model;
  c.served_model_name = served_model_name;
  SLUICE_ASSIGN_OR_RETURN(c.dtype, ParseDTypeChoice(dtype));
  c.num_blocks = blocks;
  c.gbs = gbs;
  c.num_microbatches = num_microbatches;
  c.max_step_tokens = max_step_tokens;
  c.max_model_len = max_model_len;
  c.refill = !no_refill;
  // All workers are here from the start.
  c.settle_time = absl::ZeroDuration();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StateDir>> StateDir::Open(
    const std::string& wanted) {
  auto dir = std::make_unique<StateDir>();
  if (!wanted.empty()) {
    dir->path_ = wanted;
    return dir;
  }
  std::error_code error;
  const std::filesystem::path tmp = std::filesystem::temp_directory_path(error);
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

StateDir::~StateDir() {
  std::error_code ignored;
  if (temporary_) std::filesystem::remove_all(path_, ignored);
}

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

}  // namespace sluice
