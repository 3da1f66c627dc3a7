#include "server/cli/run/cluster_flags.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/flags/checks.h"
#include "common/flags/command_line.h"
#include "common/flags/shared_flags.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/threads/thread.h"
#include "server/cli/jobs/follow.h"

namespace sluice {

void ClusterFlags::AddTo(CLI::App* app) {
  AddMain(app);
  AddPlacement(app);
  AddBatching(app);
  AddDType(app, &coordinator.dtype);
  coordinator.AddMaxModelLen(app)->check(AtLeast(1));
  app->add_option("--served-model-name", coordinator.options.served_model_name,
                  "what requests may call the model; default: its directory")
      ->check(Utf8Text());
  AddLoadFormat(app, &coordinator.load_format);
  app->add_option("--state-dir", state_dir,
                  "keep the job store here; default: in a temporary place or, "
                  "where the output is a file, beside it until that is whole")
      ->type_name("DIR");
  app->add_option("--trace", trace,
                  "write a timeline (Chrome trace, for Perfetto) here")
      ->type_name("FILE");
}

void ClusterFlags::AddMain(CLI::App* app) {
  AddModel(app, &coordinator.model, "")->required()->group(kMainGroup);
  app->add_option("--host-memory", options.machine.host_memory,
                  "hard budget over all workers, as 8GiB; default: 75 % of "
                  "what is free")
      ->group(kMainGroup)
      ->type_name("SIZE");
}

void ClusterFlags::AddPlacement(CLI::App* app) {
  const char* group = "Where it computes, and where data lies";
  AddDevice(app, &options.machine.device)->group(group);
  AddTensorParallel(app, &options.machine.tensor_parallel)->group(group);
  app->add_option("--device-memory", options.machine.device_memory,
                  "hard budget over all workers, as 20GiB, for devices with "
                  "memory of their own; default: what a GPU has free, but for "
                  "about 1 GiB")
      ->group(group)
      ->type_name("SIZE");
  AddDiskDir(app, &options.machine.disk_dir)->group(group);
  app->add_option("--disk-space", options.machine.disk_space,
                  "hard budget on disk over all workers, as 100GiB; default: "
                  "90 % of what is free or holds "
                  "weights already")
      ->group(group)
      ->type_name("SIZE");
  app->add_option("--workers,--pipeline-parallel-size", options.num_workers,
                  "stages to split the layers over")
      ->check(WholeFrom(1, 256))
      ->capture_default_str()
      ->group(group);
  app->add_option("--threads", options.machine.threads,
                  "compute threads over all workers; default: one for each "
                  "core")
      ->check(AtLeast(0))
      ->group(group);
  coordinator.AddPolicy(app)->group(group);
  app->add_option("--plan", coordinator.plan,
                  "on: measure this machine once, which takes 20 to 30 s, and "
                  "choose the policy that is best for the job, which pays for "
                  "longer ones; what other flags say stays")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--profile", options.profile,
                  "with --plan on: the machine's profile, instead of measuring "
                  "it")
      ->group(group)
      ->type_name("FILE");
}

void ClusterFlags::AddBatching(CLI::App* app) {
  const char* group = "Batching";
  app->add_option("--gbs,--max-num-seqs", coordinator.options.gbs,
                  "sequences in a micro-batch; default: as the memory allows, "
                  "or planned")
      ->check(AtLeast(1))
      ->group(group);
  coordinator.AddNumMicrobatches(app)->check(AtLeast(1))->group(group);
  app->add_option("--blocks", coordinator.options.num_blocks,
                  "blocks in flight; default: one a worker, and one more where "
                  "weights stay in memory, or planned")
      ->check(AtLeast(1))
      ->group(group);
  coordinator.AddMaxStepTokens(app, ",--max-num-batched-tokens")
      ->check(AtLeast(1))
      ->group(group);
  coordinator.AddLinkDType(app)->group(group);
  coordinator.AddNoRefill(app)->group(group);
  coordinator.AddReserveKv(app)->group(group);
  coordinator.AddSharePrefixes(app)->group(group);
  coordinator.AddOrder(app)->group(group);
  coordinator.AddPromptDetails(app)->group(group);
}

absl::StatusOr<LocalCluster::Options> ClusterFlags::Read() const {
  LocalCluster::Options read = options;
  SLUICE_ASSIGN_OR_RETURN(read.coordinator,
                          coordinator.Read(ModelFiles::kWeights));
  // All workers exist from the start, so none is waited for.
  read.coordinator.timeouts.settle_time = absl::ZeroDuration();
  return read;
}

absl::StatusOr<std::unique_ptr<Tracer>> ClusterFlags::MakeTracer(
    const std::vector<NamedInput>& inputs, const OutputFile* output) const {
  if (trace.empty()) return nullptr;
  SLUICE_ASSIGN_OR_RETURN(const auto file, OutputFile::Plan(trace, "--trace"));
  SLUICE_RETURN_IF_ERROR(CheckDistinct(inputs, {output, file.get()}));
  return std::make_unique<Tracer>(Tracer::Options());
}

absl::Status ClusterFlags::WriteTrace(const Tracer* tracer) const {
  if (tracer == nullptr) return absl::OkStatus();
  if (const uint64_t dropped = tracer->dropped(); dropped > 0) {
    LogWarning("--trace: ", dropped, " spans at the end had no more room");
  }
  return Annotate(tracer->WriteJson(trace), "--trace");
}

std::function<void(absl::string_view what, double share)> ShowProfiling(
    ProgressDisplay* display) {
  return [display, told = false](absl::string_view what, double share) mutable {
    if (!told && share < 1) {
      // The text is shown before the wait.
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

// Removes the worker and layers from an error, which say nothing where all
// workers are in one process.
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
      // An error is final, as no worker can join this process.
      if (worker.state() == v1::WORKER_STATE_FAILED) {
        return absl::FailedPreconditionError(WithoutPlace(worker.detail()));
      }
    }
    // Before the first plan, workers are starting.
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
    if (!results.ok()) cluster.Stop();
  });
  std::atomic<bool> ended = false;
  // After a worker is gone for good, the job may never change again.
  Thread watch("health", [&] {
    while (!ended && cluster.health().ok()) {
      std::this_thread::sleep_for(kHealthPoll);
    }
    if (!ended) cluster.Stop();
  });
  FailureWatch failures;
  const absl::StatusOr<v1::Job> last =
      client.WatchJob(id, [&](const v1::Job& now) {
        // What a cluster says that ends is of no use.
        if (!cluster.stopping()) on_update(now);
        return failures.Update(now, cluster.coordinator().cluster_state());
      });
  if (!last.ok() || !failures.status().ok()) cluster.Stop();
  ended = true;
  watch.Join();
  reader.Join();
  SLUICE_RETURN_IF_ERROR(cluster.health());
  SLUICE_RETURN_IF_ERROR(failures.status());
  SLUICE_RETURN_IF_ERROR(results);
  return last;
}

}  // namespace sluice
