#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "runtime/trace/trace.h"
#include "server/job_client.h"
#include "worker/runtime_report.h"

namespace sluice {

// A coordinator and its workers in one process, joined by gRPC's in-process
// transport: the same code as on many machines, without a port. Thread-safe.
class LocalCluster {
 public:
  struct Options {
    Coordinator::Options coordinator;  // min_workers is set to num_workers
    int32_t num_workers = 1;
    // Over all workers, as "8GiB"; "": DefaultHostMemory().
    std::string host_memory;
    // As in --device; and, over all workers, the memory of those that have
    // their own, as "20GiB" ("": see ParseDeviceMemory).
    std::string device = "cpu";
    std::string device_memory;
    // Weights and KV cache of all workers; "": no disk tier.
    std::string disk_dir;
    std::string disk_space;       // over all workers; "": DefaultDiskSpace()
    int32_t compute_threads = 0;  // over all workers; 0: all cores
    // With coordinator.plan_jobs: a file with the profile of this machine; "":
    // the cached one, which is measured if it is not there.
    std::string profile;
    // Told of the measuring, on another thread; may be empty.
    std::function<void(absl::string_view what, double share)> profile_progress;
    MetricsRegistry* metrics = nullptr;
    Tracer* tracer = nullptr;  // if set, must outlive the cluster
  };
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(Options options);
  // As Coordinator::AnswerFacts, the device included: checks what can be
  // checked without starting anything.
  static absl::StatusOr<std::map<std::string, std::string>> AnswerFacts(
      Options options);
  virtual ~LocalCluster() = default;

  virtual Coordinator& coordinator() = 0;
  virtual const Coordinator& coordinator() const = 0;
  virtual JobClient& client() = 0;
  // OK, or why a worker can't go on, and nor can the cluster: Worker::health().
  virtual absl::Status health() const = 0;
  // The sum over the workers.
  virtual RuntimeReport report() const = 0;

  // Ends it in order: stores what was answered, then waits for the steps under
  // way. Calls of client() end with kUnavailable; the jobs and
  // the report can still be asked. Called by the destructor too.
  virtual void Shutdown() = 0;
  // Shutdown was called.
  virtual bool stopping() const = 0;
};

}  // namespace sluice
