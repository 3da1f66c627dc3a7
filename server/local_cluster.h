#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_flags.h"
#include "common/machine_profile.h"
#include "common/threads/mutex.h"
#include "coordinator/coordinator.h"
#include "runtime/trace/trace.h"
#include "server/job_client.h"
#include "worker/runtime_report.h"

namespace grpc {
class Channel;
class Server;
}  // namespace grpc

namespace sluice {

class CoordinatorServer;
class Worker;
struct MachineShare;

// A coordinator and its workers in one process, joined by gRPC's in-process
// transport: the same code as on many machines, without a port. Thread-safe,
// but for Close and Shutdown: the thread that owns the cluster takes it down.
class LocalCluster {
 public:
  struct Options {
    Coordinator::Options coordinator;  // min_workers is set to num_workers
    int32_t num_workers = 1;
    MachineFlags machine;  // shared by all workers
    // The file with this machine's profile, for coordinator.plan_jobs; "": the
    // cached one, which is measured if it does not exist.
    std::string profile;
    // Called with the progress of measuring, on another thread; may be empty.
    std::function<void(absl::string_view what, double share)> profile_progress;
    // Ends the start early, with kCancelled.
    const std::atomic<bool>* stop = nullptr;
    MetricsRegistry* metrics = nullptr;
    Tracer* tracer = nullptr;  // if set, must outlive the cluster
  };
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(Options options);
  // Returns Coordinator::AnswerFacts and the device: checks all that can be
  // checked without starting anything.
  static absl::StatusOr<std::map<std::string, std::string>> AnswerFacts(
      Options options);
  ~LocalCluster();

  Coordinator& coordinator() { return *coordinator_; }
  const Coordinator& coordinator() const { return *coordinator_; }
  JobClient& client() { return *client_; }
  // OK, or the Worker::health() that ended a worker and so the cluster.
  absl::Status health() const;
  // The sum over the workers.
  RuntimeReport report() const;

  // Asks the owner to take the cluster down: ends the calls of client(), those
  // that run and later ones, with kCancelled. Does not wait.
  void Stop();
  // Whether Stop was called.
  bool stopping() const { return stopping_; }

  // Ends the coordinator: stores answers and the tokens of others, and writes
  // nothing after that. The steps in flight are not waited for, as they may
  // take minutes. The jobs and the report can still be asked. REQUIRES: no call
  // of client() runs, as a channel within the process may not be used once its
  // server ends.
  void Close();
  // Does Close(), and waits for the steps in flight. Called by the destructor
  // too.
  void Shutdown();

 private:
  LocalCluster();
  absl::Status StartCoordinator(Coordinator::Options options);
  // Starts worker i of options.num_workers, which share `all`.
  absl::Status StartWorker(int i, const Options& options,
                           const MachineShare& all,
                           const std::optional<MachineProfile>& measured);
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address);

  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorServer> coordinator_server_;
  std::unique_ptr<JobClient> client_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<grpc::Server>> link_servers_;
  std::atomic<bool> stopping_ = false;
  bool closed_ = false;  // used by the owner only
  bool shut_down_ = false;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
