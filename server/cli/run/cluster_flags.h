#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/jobs/progress.h"
#include "server/local_cluster.h"

namespace sluice {

// The flags by which a cluster in this process is described: the model and how
// it is run, not what is run on it. Shared by the commands that start one.
struct ClusterFlags {
  std::string model, dtype = "auto", host_memory, served_model_name, state_dir;
  std::string device = "cpu", device_memory, disk_dir, disk_space,
              load_format = "auto", trace;
  std::vector<std::string> policy;
  int32_t workers = 1, threads = 0, gbs = 0, num_microbatches = 0, blocks = 0;
  int32_t max_model_len = 0, max_step_tokens = 0;
  std::string plan = "off", profile;
  bool no_refill = false;
  bool reserve_kv = false;

  void AddTo(CLI::App* app);
  // Sets what the flags say, all but the state directory, the trace, the
  // metrics and what LocalCluster sets itself. kInvalidArgument for a value out
  // of its range.
  absl::Status Apply(LocalCluster::Options* options) const;
  // For --trace: null without. A file that can't be written shows here, before
  // the work; the end of a command writes it with WriteTrace.
  absl::StatusOr<std::unique_ptr<Tracer>> MakeTracer() const;
  absl::Status WriteTrace(const Tracer* tracer) const;

 private:
  void AddMain(CLI::App* app);
  void AddPlacement(CLI::App* app);
  void AddBatching(CLI::App* app);
};

// A temporary directory for a store, removed with all in it at the end.
class TemporaryStateDir {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryStateDir>> Make();
  ~TemporaryStateDir();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// For LocalCluster::Options::profile_progress.
std::function<void(absl::string_view what, double share)> ShowProfiling(
    ProgressDisplay* display);

// Returns when the cluster can compute, showing how far it is meanwhile.
// kFailedPrecondition names the worker that can't load its stage; the errors of
// LocalCluster::health(); kCancelled once the cluster was shut down.
absl::Status WaitUntilLoaded(LocalCluster& cluster, ProgressDisplay& display);

// Follows a job to its end: gives each result to `on_result`, on a thread of
// its own, and each state to `on_update`. An error of on_result, or workers
// that fail again and again, since in one process nothing comes to help
// (kFailedPrecondition with the last failure) or for the last time
// (LocalCluster::health()), shuts the cluster down and is returned: the job
// stays as it is in its store. kUnavailable if something else shuts it down.
absl::StatusOr<v1::Job> FollowJob(
    LocalCluster& cluster, const std::string& id,
    const std::function<absl::Status(const v1::Result&)>& on_result,
    const std::function<void(const v1::Job&)>& on_update);

}  // namespace sluice
