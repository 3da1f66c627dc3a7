#include "worker/worker_impl.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "common/codec/profile_json.h"
#include "common/host/disk_gauge.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "common/threads/regular_update.h"
#include "common/threads/thread.h"
#include "common/version.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/profile/machine_facts.h"
#include "sluice/v1/pipeline.pb.h"
#include "worker/coordinator_client.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_service.h"
#include "worker/probe/link_survey.h"
#include "worker/stage/assigned_stage.h"

namespace sluice {
namespace {

// For each link that is measured.
constexpr double kSurveySeconds = 0.2;
constexpr absl::Duration kGaugeInterval = absl::Seconds(1);

std::vector<int> CoresToPin(const Worker::Options& options, int32_t threads) {
  if (!options.pin_threads) return {};
  std::vector<int> cores = UsableCores();
  if (cores.size() != static_cast<size_t>(threads)) cores.clear();
  return cores;
}

class WorkerImpl : public Worker,
                   private FrameSink,
                   private CoordinatorHandler {
 public:
  WorkerImpl(Options options, WorkerModel model,
             std::unique_ptr<PayloadTransport> payloads)
      : options_(std::move(options)),
        num_layers_(model.num_layers),
        content_(std::move(model.content)),
        threads_(options_.compute_threads > 0 ? options_.compute_threads
                                              : UsableCoreCount(UsableCores())),
        null_metrics_(options_.metrics == nullptr ? CreateNullMetrics()
                                                  : nullptr),
        metrics_(options_.metrics != nullptr ? options_.metrics
                                             : null_metrics_.get(),
                 options_.name),
        device_budget_(Tier::kDevice, options_.device_memory_bytes),
        budget_(Tier::kHost, options_.host_memory_bytes),
        disk_budget_(Tier::kDisk, options_.disk_space_bytes),
        links_({.channels = options_.channels,
                .bytes_sent = metrics_.link_bytes_sent}),
        link_service_(LinkService::Create(this, payloads.get(),
                                          metrics_.link_bytes_received)),
        runner_({.loader = std::move(model.loader),
                 .content = content_ == nullptr
                                ? nullptr
                                : std::function<ModelContent()>([this] {
                                    return content_->state().content;
                                  }),
                 .hidden_size = model.hidden_size,
                 .resources = {.compute_threads = threads_,
                               .cores = CoresToPin(options_, threads_),
                               .device = options_.device,
                               .device_budget = options_.device.has_memory()
                                                    ? &device_budget_
                                                    : nullptr,
                               .host_budget = &budget_,
                               .disk_budget = options_.disk_dir.empty()
                                                  ? nullptr
                                                  : &disk_budget_,
                               .disk_dir = options_.disk_dir,
                               .dummy_weights = options_.dummy_weights,
                               .tracer = options_.tracer},
                 .links = &links_,
                 .receiver = link_service_.get(),
                 .payloads = payloads.get(),
                 .metrics = &metrics_,
                 .clock = Clock::Real(),
                 .on_device_loss =
                     [this](const absl::Status& why) { OnDeviceLoss(why); },
                 .failure_level = options_.failure_level}),
        // Its bytes are nobody's activations.
        probes_({.channels = options_.channels}),
        survey_(&probes_, kSurveySeconds),
        payloads_(std::move(payloads)),
        gauges_([this] { SetGauges(); }, kGaugeInterval) {
    if (!options_.link_address.empty()) Announce(options_.link_address);
  }

  ~WorkerImpl() override { Shutdown(); }

  grpc::Service* link_service() override { return link_service_->service(); }

  void SetProfile(std::shared_ptr<const MachineProfile> profile) override {
    MutexLock lock(&mu_);
    profile_ = std::move(profile);
  }

  void Announce(const std::string& link_address) override {
    MutexLock lock(&mu_);
    if (client_ != nullptr || shutdown_ || !health_.ok()) return;
    CoordinatorClient::Options client;
    client.address = options_.coordinator_address;
    client.channels = options_.channels;
    client.identity.name = options_.name;
    client.identity.link_address = link_address;
    client.identity.host_memory_bytes = options_.host_memory_bytes;
    client.identity.compute_threads = threads_;
    client.identity.device = options_.device.backend == BackendKind::kCuda
                                 ? DescribeDevice(options_.device)
                                 : DescribeCpu();
    client.identity.version = BuildVersion();
    client.identity.metrics_address = options_.metrics_address;
    client.identity.model_dir = options_.model_dir.string();
    if (profile_ != nullptr) {
      MachineProfile profile = *profile_;
      profile.name = options_.name;
      client.identity.profile_json = ProfileToJson(profile);
    }
    if (payloads_ == nullptr || options_.link != LinkChoice::kNccl) {
      client.identity.link_transports.push_back(LinkTransport::kGrpc);
    }
    if (payloads_ != nullptr) {
      client.identity.link_transports.push_back(LinkTransport::kNccl);
      client.identity.gpu_uuid = payloads_->gpu_uuid();
    }
    client.content = content_.get();
    client.handler = this;
    client.reconnect_delay = options_.reconnect_delay;
    client_ = CoordinatorClient::Start(std::move(client));
  }

  bool ready() const override { return attached_ && runner_.ready(); }

  absl::Status health() const override {
    MutexLock lock(&mu_);
    return health_;
  }

  RuntimeReport report() const override { return runner_.report(); }

  void Shutdown() override {
    Thread leaving;
    {
      MutexLock lock(&mu_);
      shutdown_ = true;
      leaving = std::move(leaving_);
    }
    leaving.Join();
    survey_.Cancel();
    Leave();
    runner_.Shutdown();
  }

 private:
  absl::Status OnFrame(ActivationFrame frame,
                       std::function<void()> on_consumed) override {
    return runner_.OnFrame(std::move(frame), std::move(on_consumed));
  }
  void OnLinkBroken(PlanEpoch epoch, const absl::Status& status) override {
    runner_.OnLinkBroken(epoch, status);
  }

  void OnAttached() override { attached_ = true; }

  void OnAssign(const v1::AssignStage& proto,
                std::shared_ptr<StageReporter> reporter) override {
    absl::StatusOr<AssignedStage> assignment =
        ParseAssignedStage(proto, num_layers_, reporter);
    if (!assignment.ok()) {
      LogError(assignment.status().ToString());
      reporter->Failed(PlanEpoch(proto.epoch()), assignment.status());
      return;
    }
    runner_.Assign(*std::move(assignment));
  }

  void OnPlan(StepPlan plan) override { runner_.OnPlan(std::move(plan)); }
  void OnBadPlan(PlanEpoch epoch, const absl::Status& status) override {
    runner_.OnBadPlan(epoch, status);
  }
  void OnRetire(PlanEpoch epoch) override {
    LogInfo(absl::StrCat("epoch=", epoch.value(), " retired to be a spare"));
    runner_.Retire();
  }
  void OnLinkId(PlanEpoch epoch, const std::string& id) override {
    runner_.OnLinkId(epoch, id);
  }
  void OnMeasureLinks(std::vector<LinkSurvey::Peer> peers,
                      LinkSurvey::Done answer) override {
    survey_.Start(std::move(peers), std::move(answer));
  }
  void OnReachLinks(std::vector<LinkSurvey::Peer> peers,
                    LinkSurvey::Reached answer) override {
    survey_.Reach(std::move(peers), std::move(answer));
  }
  void OnDetached() override {
    attached_ = false;
    survey_.Cancel();
    runner_.Detach();
  }

  // What the stage said of it goes out before the leave.
  void OnDeviceLoss(const absl::Status& why) {
    MutexLock lock(&mu_);
    if (!health_.ok()) return;
    LogError(absl::StrCat("leaving for good: ", why.message()));
    health_ = why;
    if (!shutdown_) leaving_ = Thread("leaving", [this] { Leave(); });
  }

  void Leave() {
    std::unique_ptr<CoordinatorClient> client;
    {
      MutexLock lock(&mu_);
      client = std::move(client_);
    }
    if (client != nullptr) client->Shutdown();
  }

  void SetGauges() {
    metrics_.SetBudgets(
        options_.device.has_memory() ? &device_budget_ : nullptr, &budget_,
        options_.disk_dir.empty() ? nullptr : &disk_budget_);
    if (!options_.disk_dir.empty()) {
      SetDiskFree(metrics_.registry, options_.disk_dir);
    }
  }

  WorkerTotals totals() override {
    WorkerTotals totals;
    totals.usage = runner_.usage();
    totals.link_bytes_sent = runner_.link_bytes_sent();
    totals.kv_pages_used = static_cast<uint64_t>(runner_.kv_pages_used());
    totals.activity = runner_.activity();
    totals.runtime = runner_.report().stats;
    return totals;
  }

  const Options options_;
  const int32_t num_layers_;
  const std::shared_ptr<ContentCheck> content_;
  const int32_t threads_;
  const std::unique_ptr<MetricsRegistry> null_metrics_;
  const WorkerMetrics metrics_;
  MemoryBudget device_budget_;
  MemoryBudget budget_;
  MemoryBudget disk_budget_;
  GrpcLinkFactory links_;
  const std::unique_ptr<LinkService> link_service_;
  StageRunner runner_;
  GrpcLinkFactory probes_;
  LinkSurvey survey_;
  std::atomic<bool> attached_{false};
  // Its threads call what is above.
  const std::unique_ptr<PayloadTransport> payloads_;

  RegularUpdate gauges_;

  mutable Mutex mu_;
  std::shared_ptr<const MachineProfile> profile_ ABSL_GUARDED_BY(mu_) =
      options_.profile;
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CoordinatorClient> client_ ABSL_GUARDED_BY(mu_);
  Thread leaving_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Worker> CreateWorker(
    Worker::Options options, WorkerModel model,
    std::unique_ptr<PayloadTransport> payloads) {
  return std::make_unique<WorkerImpl>(std::move(options), std::move(model),
                                      std::move(payloads));
}

}  // namespace sluice
