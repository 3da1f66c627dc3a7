#include "server/cli/run/cluster_flags.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/threads/thread.h"
#include "server/cli/jobs/failure_watch.h"
#include "server/cli/jobs/output_file.h"
#include "server/flags/checks.h"
#include "server/flags/command_line.h"
#include "server/flags/foreign_flags.h"

namespace sluice {

void ClusterFlags::AddTo(CLI::App* app) {
  AddMain(app);
  AddPlacement(app);
  AddBatching(app);
  app->add_option("--dtype", dtype,
                  "auto (the model's), float32, bfloat16 or, on GPUs, float16")
      ->capture_default_str();
  app->add_option("--max-model-len", max_model_len,
                  "positions of prompt and answer; default: the model's")
      ->check(AtLeast(1));
  app->add_option("--served-model-name", served_model_name,
                  "what requests may call the model; default: its directory")
      ->check(Utf8Text());
  app->add_option("--load-format", load_format,
                  "auto, or dummy: random weights, for which config.json is "
                  "enough")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  app->add_option("--state-dir", state_dir,
                  "keep the job store here; default: in a temporary place or, "
                  "where the output is a file, beside it until that is whole")
      ->type_name("DIR");
  app->add_option("--trace", trace,
                  "write a timeline (Chrome trace, for Perfetto) here")
      ->type_name("FILE");
}

void ClusterFlags::AddMain(CLI::App* app) {
  app->add_option("--model", model, "model directory in Hugging Face's layout")
      ->required()
      ->group(kMainGroup)
      ->type_name("DIR");
  app->add_option("--host-memory", host_memory,
                  "hard budget over all workers, as 8GiB; default: 75 % of "
                  "what is free")
      ->group(kMainGroup)
      ->type_name("SIZE");
}

void ClusterFlags::AddPlacement(CLI::App* app) {
  const char* group = "Where it computes, and where data lies";
  app->add_option("--device", device,
                  "what computes: cpu; cuda, the first GPU, or cuda:N; "
                  "cpu-discrete, for tests: the CPU with device memory of its "
                  "own")
      ->capture_default_str()
      ->group(group);
  app->add_option("--device-memory", device_memory,
                  "hard budget over all workers, as 20GiB, for devices with "
                  "memory of their own; default: what a GPU has free, but for "
                  "about 1 GiB")
      ->group(group)
      ->type_name("SIZE");
  app->add_option("--disk-dir", disk_dir,
                  "where weights and KV cache that don't fit into memory are "
                  "kept; default: nowhere")
      ->group(group)
      ->type_name("DIR");
  app->add_option("--disk-space", disk_space,
                  "hard budget on disk over all workers, as 100GiB; default: "
                  "90 % of what is free or holds "
                  "weights already")
      ->group(group)
      ->type_name("SIZE");
  app->add_option("--workers,--pipeline-parallel-size", workers,
                  "stages to split the layers over")
      ->check(From(1, 256))
      ->capture_default_str()
      ->group(group);
  app->add_option("--threads", threads,
                  "compute threads over all workers; default: one for each "
                  "core")
      ->check(AtLeast(0))
      ->group(group);
  app->add_option(
         "--policy", policy,
         "key=value pairs, or @FILE of them, which win over other "
         "flags; may be repeated. Keys: gbs num-microbatches "
         "max-step-tokens threads w c h compress-weights compress-kv "
         "attention-site sparsity schedule overlap packing (see README.md)")
      ->group(group);
  AddFormatAliases(app, &policy);
  app->add_option("--plan", plan,
                  "on: measure this machine once, which takes 20 to 30 s, and "
                  "choose the policy that is best for the job, which pays for "
                  "longer ones; what other flags say stays")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--profile", profile,
                  "with --plan on: the machine's profile, instead of measuring "
                  "it")
      ->group(group)
      ->type_name("FILE");
}

void ClusterFlags::AddBatching(CLI::App* app) {
  const char* group = "Batching";
  app->add_option("--gbs,--max-num-seqs", gbs,
                  "sequences in a micro-batch; default: as the memory allows, "
                  "or planned")
      ->check(AtLeast(1))
      ->group(group);
  app->add_option("--num-microbatches", num_microbatches,
                  "micro-batches in a block; default: 1, or planned")
      ->check(AtLeast(1))
      ->group(group);
  app->add_option("--blocks", blocks, "blocks in flight; default: one a worker")
      ->check(AtLeast(1))
      ->group(group);
  app->add_option("--max-step-tokens,--max-num-batched-tokens", max_step_tokens,
                  "new tokens of a micro-batch in one step; default: 2048, or "
                  "planned")
      ->check(AtLeast(1))
      ->group(group);
  app->add_flag("--no-refill", no_refill,
                "start new sequences only when a whole block has ended")
      ->group(group);
  app->add_flag("--reserve-kv", reserve_kv,
                "reserve the KV cache that a sequence may come to need from "
                "its start on, instead of sharing it by need")
      ->group(group);
}

absl::Status ClusterFlags::Apply(LocalCluster::Options* options) const {
  options->num_workers = workers;
  options->compute_threads = threads;
  options->host_memory = host_memory;
  options->device = device;
  options->device_memory = device_memory;
  options->disk_dir = disk_dir;
  options->disk_space = disk_space;
  Coordinator::Options& c = options->coordinator;
  c.model_dir = model;
  c.served_model_name = served_model_name;
  SLUICE_ASSIGN_OR_RETURN(c.dtype, ParseDTypeChoice(dtype));
  c.num_blocks = blocks;
  c.gbs = gbs;
  c.num_microbatches = num_microbatches;
  c.max_step_tokens = max_step_tokens;
  c.max_model_len = max_model_len;
  c.policy = policy;
  c.plan_jobs = plan == "on";
  options->profile = profile;
  c.dummy_weights = load_format == "dummy";
  c.refill = !no_refill;
  c.kv_by_need = !reserve_kv;
  // All workers are here from the start.
  c.settle_time = absl::ZeroDuration();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tracer>> ClusterFlags::MakeTracer() const {
  if (trace.empty()) return nullptr;
  SLUICE_RETURN_IF_ERROR(OutputFile::Plan(trace, "--trace").status());
  return std::make_unique<Tracer>(Tracer::Options());
}

absl::Status ClusterFlags::WriteTrace(const Tracer* tracer) const {
  if (tracer == nullptr) return absl::OkStatus();
  if (const uint64_t dropped = tracer->dropped(); dropped > 0) {
    LogWarning(absl::StrCat("--trace: ", dropped,
                            " spans at the end had no more room"));
  }
  return Annotate(tracer->WriteJson(trace), "--trace");
}

absl::StatusOr<std::unique_ptr<TemporaryStateDir>> TemporaryStateDir::Make() {
  std::error_code error;
  const std::filesystem::path tmp = std::filesystem::temp_directory_path(error);
  std::string name = ((error ? "/tmp" : tmp) / "sluice-run-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    return absl::Status(absl::ErrnoToStatusCode(errno),
                        absl::StrCat("can't make a directory ", name,
                                     "; say where with TMPDIR"));
  }
  auto dir = std::make_unique<TemporaryStateDir>();
  dir->path_ = name;
  return dir;
}

TemporaryStateDir::~TemporaryStateDir() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::function<void(absl::string_view what, double share)> ShowProfiling(
    ProgressDisplay* display) {
  return [display, told = false](absl::string_view what, double share) mutable {
    if (!told && share < 1) {
      // Before anything is waited for.
      display->UpdateText("measuring this machine, once: 20 to 30 s");
      display->Finish();
    }
    told = true;
    display->UpdateText(absl::StrFormat("measuring this machine: %.0f %%, %s",
                                        100 * share, what));
    if (share >= 1) display->Finish();
  };
}

namespace {

// Which worker and layers it was is no matter where all are in one process:
// what could not be loaded is.
std::string WithoutPlace(const std::string& detail) {
  constexpr absl::string_view kLoading = "can't load: ";
  const size_t at = detail.find(kLoading.data());
  if (at == std::string::npos) return detail;
  return absl::StrCat("the model can't be loaded: ",
                      detail.substr(at + kLoading.size()));
}

}  // namespace

absl::Status WaitUntilLoaded(LocalCluster& cluster, ProgressDisplay& display) {
  while (!cluster.coordinator().ready()) {
    if (cluster.stopping()) return absl::CancelledError("stopped");
    SLUICE_RETURN_IF_ERROR(cluster.health());
    const v1::ClusterState state = cluster.coordinator().cluster_state();
    for (const v1::WorkerInfo& worker : state.workers()) {
      // In one process nothing comes to help: an error here is final.
      if (worker.state() == v1::WORKER_STATE_FAILED) {
        return absl::FailedPreconditionError(WithoutPlace(worker.detail()));
      }
    }
    // Before the first plan there are workers, or soon will be.
    display.UpdateText(state.epoch() == 0 ? "starting" : state.state());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  display.Finish();
  return absl::OkStatus();
}

namespace {

constexpr std::chrono::milliseconds kHealthPoll{50};

}  // namespace

absl::StatusOr<v1::Job> FollowJob(
    LocalCluster& cluster, const std::string& id,
    const std::function<absl::Status(const v1::Result&)>& on_result,
    const std::function<void(const v1::Job&)>& on_update) {
  JobClient& client = cluster.client();
  absl::Status results;
  Thread reader("results", [&] {
    results = client.StreamResults(id, 0, true, on_result);
    if (!results.ok()) cluster.Shutdown();
  });
  std::atomic<bool> ended = false;
  // A worker that is gone for good may leave the job without another change.
  Thread watch("health", [&] {
    while (!ended && cluster.health().ok()) {
      std::this_thread::sleep_for(kHealthPoll);
    }
    if (!ended) cluster.Shutdown();
  });
  FailureWatch failures;
  const absl::StatusOr<v1::Job> last =
      client.WatchJob(id, [&](const v1::Job& now) {
        on_update(now);
        return failures.Update(now, cluster.coordinator().cluster_state());
      });
  if (!last.ok() || !failures.status().ok()) cluster.Shutdown();
  ended = true;
  watch.Join();
  reader.Join();
  SLUICE_RETURN_IF_ERROR(cluster.health());
  SLUICE_RETURN_IF_ERROR(failures.status());
  SLUICE_RETURN_IF_ERROR(results);
  return last;
}

}  // namespace sluice
