#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/jobs/output_file.h"
#include "server/cli/jobs/progress.h"
#include "server/coordinator_flags.h"
#include "server/local_cluster.h"

namespace sluice {

// The flags that describe a cluster in this process: the model and how it is
// run, but not the job. Shared by the commands that start one.
struct ClusterFlags {
  LocalCluster::Options options;  // machine, workers and profile are bound
  CoordinatorFlags coordinator;
  std::string state_dir, trace;

  void AddTo(CLI::App* app);
  // Reads all flags but the state directory, the trace, the metrics and those
  // that LocalCluster sets itself. kInvalidArgument for a value out of its
  // range.
  absl::StatusOr<LocalCluster::Options> Read() const;
  // Makes the tracer for --trace, or null without it. Fails before the work if
  // the file can't be written, or is an input or the output (which may be
  // null); the end of a command writes it with WriteTrace.
  absl::StatusOr<std::unique_ptr<Tracer>> MakeTracer(
      const std::vector<NamedInput>& inputs, const OutputFile* output) const;
  absl::Status WriteTrace(const Tracer* tracer) const;

 private:
  void AddMain(CLI::App* app);
  void AddPlacement(CLI::App* app);
  void AddBatching(CLI::App* app);
};

// Returns the LocalCluster::Options::profile_progress for a display.
std::function<void(absl::string_view what, double share)> ShowProfiling(
    ProgressDisplay* display);

// Waits until the cluster can compute, showing progress meanwhile.
// kFailedPrecondition names the worker that can't load its stage; the errors of
// LocalCluster::health(); kCancelled once the cluster is to stop.
absl::Status WaitUntilLoaded(LocalCluster& cluster, ProgressDisplay& display);

// Follows a job to its end: gives each result to `on_result`, on a thread of
// its own, and each state to `on_update`. An error of on_result, or workers
// that fail again and again, as no worker can join this process
// (kFailedPrecondition with the last failure), or for good
// (LocalCluster::health()), stops the cluster and is returned: the job stays as
// it is in its store. kCancelled if something else stops it.
absl::StatusOr<v1::Job> FollowJob(
    LocalCluster& cluster, const std::string& id,
    const std::function<absl::Status(const v1::Result&)>& on_result,
    const std::function<void(const v1::Job&)>& on_update);

}  // namespace sluice
