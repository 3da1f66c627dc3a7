#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/machine_profile.h"
#include "common/metrics/metrics.h"
#include "common/threads/mutex.h"
#include "common/threads/regular_update.h"
#include "common/threads/thread.h"
#include "proto/weights_service.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/content_check.h"
#include "runtime/model/pieces/model_cache.h"
#include "runtime/profile/profiler.h"
#include "worker/channel_factory.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_choice.h"
#include "worker/probe/link_survey.h"
#include "worker/runtime_report.h"
#include "worker/stage/stage_runner.h"
#include "worker/tensor_ranks.h"
#include "worker/weights/model_fetcher.h"
#include "worker/worker_metrics.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

class CoordinatorClient;

// A worker: attaches to a coordinator, loads the layers it is told to, runs
// steps, and hands activations on. When the coordinator goes away it keeps its
// weights and attaches again, until Shutdown. When its device is lost, it
// reports that and leaves. Thread-safe.
class Worker {
 public:
  struct Options {
    std::string name;  // unique among live workers
    // "": the worker has no copy of the model, and fetches what it is assigned
    // into `cache`.
    std::filesystem::path model_dir;
    ModelCache::Options cache;
    std::string coordinator_address;
    // The address of link_service(). If "", as when the server's port is not
    // known yet, the worker attaches only after Announce().
    std::string link_address;
    // Asked about calls of link_service() and weights_service(); null: all may
    // call.
    std::shared_ptr<CallGuard> guard;
    std::string metrics_address;  // for display; "" if none
    // The resources that the worker may use. disk_dir, for packed weights and
    // KV cache, is made if it does not exist; workers may share it. disk_bytes:
    // 0: DefaultDiskSpace.
    MachineShare machine;
    bool dummy_weights = false;  // random weights: config.json is enough
    // Whether the model's files are hashed, for the coordinator to compare with
    // others'; not needed if all workers read the same files. The hashes are
    // cached in the file `hash_cache`; "": nowhere.
    bool hash_model = true;
    std::string hash_cache;
    LinkSetup links;
    // The measured profile, which the coordinator plans by; null: none. It is
    // sent under this worker's name.
    std::shared_ptr<const MachineProfile> profile;
    // The profile is being measured: the worker attaches, and takes part when
    // SetProfile() was called.
    bool measuring = false;
    ChannelFactory channels;
    MetricsRegistry* metrics = nullptr;  // if set, must outlive the worker
    Tracer* tracer = nullptr;            // the same
    absl::Duration reconnect_delay = absl::Milliseconds(500);
    // The log level of a stage's failure, and of a lost coordinator if it is
    // below a warning's. The coordinator is told in any case: if it has the
    // same log, once is enough.
    LogLevel failure_level = LogLevel::kError;
    absl::Status Validate() const;
  };

  // The facts that a worker needs of its model, apart from how to load it.
  struct Model {
    // The files' content; if null, as in tests, the coordinator is not told.
    std::shared_ptr<ContentCheck> content;
    int64_t hidden_size = 0;
    int32_t num_layers = 0;
    StageLoader loader;
    // If set, the model comes with each assignment, and the others are not.
    std::unique_ptr<ModelFetcher> fetcher;
  };

  // Opens the model directory (its errors are returned) and starts to attach.
  // The server of link_service() is one of proto/grpc_endpoint.h.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(Options options);
  // Does Create without the model directory, for tests that do not compute.
  // `options` have been validated. `nccl` is for NCCL links, or null.
  Worker(Options options, Model model,
         std::unique_ptr<PayloadTransport> nccl = nullptr);
  ~Worker();

  // LinkService, to be registered with this worker's server. Owned by the
  // worker, which must outlive the server's Shutdown.
  grpc::Service* link_service() { return runner_.link_service(); }

  // Takes the TCP connections of links from that server, likewise; null: there
  // are to be none.
  TcpLinks* tcp_links() { return tcp_.get(); }

  // WeightsService, likewise; null if there is nothing to serve.
  grpc::Service* weights_service() {
    return weights_ == nullptr ? nullptr : weights_->service();
  }

  // Sets the address of link_service(), and starts to attach. No effect if the
  // options have an address.
  void Announce(const std::string& link_address);

  // Says how far measuring the machine is, and whether another process does it.
  void SetMeasured(double share, bool awaits);
  // Ends measuring; null: there is no profile. REQUIRES: Options::measuring.
  void SetProfile(std::shared_ptr<const MachineProfile> profile);

  // Whether the worker is attached to a coordinator, with a loaded stage. A
  // spare worker is not ready.
  bool ready() const;

  // OK, or the reason why this worker has left its coordinator for good: its
  // device is lost to this process, and only a new process can use it.
  absl::Status health() const;

  // Asks the coordinator to do without this worker, which goes on working until
  // another plan begins; left() says that it did, or that there is nothing to
  // be asked.
  void BeginLeaving();
  bool left() const;

  // The report after the last step.
  RuntimeReport report() const { return runner_.report(); }

  // Leaves the coordinator for good. Does not wait for the step in flight.
  void Leave();
  // Does Leave(), and ends all threads. Called by the destructor too.
  void Shutdown();

 private:
  static absl::StatusOr<Model> OpenModel(const Options& options);
  // What this worker serves to others; null: nothing.
  PieceShelf* ServedFiles();
  StageRunner::Options RunnerOptions(Model model, PayloadTransport* nccl);
  // The resources of a stage of so many ranks; 0: as many as there may be.
  absl::StatusOr<StageResources> ResourcesOf(int32_t ranks) const;
  void OnDeviceLoss(const absl::Status& why);
  void EndClient();
  void SetGauges();
  // The profile as the coordinator is to have it; "" for none.
  std::string ProfileText(const MachineProfile* profile) const;

  const Options options_;
  const int32_t num_layers_;
  const std::shared_ptr<ContentCheck> content_;
  const std::unique_ptr<ModelFetcher> fetcher_;
  const std::unique_ptr<MetricsRegistry> null_metrics_;
  const WorkerMetrics metrics_;
  const std::unique_ptr<PieceShelf> shelf_;  // of the worker's own copy
  const std::unique_ptr<WeightsServer> weights_;
  MemoryBudget device_budget_;
  MemoryBudget host_budget_;
  MemoryBudget disk_budget_;
  const TensorRanks ranks_;
  const StageResources resources_;
  // Stopped before the other members are destroyed, which its threads use.
  const std::unique_ptr<TcpLinks> tcp_;
  GrpcLinkFactory links_;
  StageRunner runner_;
  GrpcLinkFactory probes_;
  LinkSurvey survey_;
  // Declared last, as its threads use the members above.
  const std::unique_ptr<PayloadTransport> nccl_;

  RegularUpdate gauges_;

  mutable Mutex mu_;
  // Of a worker that measures, before Announce().
  std::optional<std::string> measured_ ABSL_GUARDED_BY(mu_);
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CoordinatorClient> client_ ABSL_GUARDED_BY(mu_);
  Thread leaving_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
