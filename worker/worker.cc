#include "worker/worker.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/codec/profile_json.h"
#include "common/host/disk_gauge.h"
#include "common/host/logging.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/threads/clock.h"
#include "common/version.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/exec/weights/packed_store.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/pieces/model_shelf.h"
#include "runtime/profile/machine_facts.h"
#include "worker/coordinator_client.h"
#include "worker/machine_share.h"

namespace sluice {
namespace {

// The time to measure one link.
constexpr double kSurveySeconds = 0.2;
constexpr absl::Duration kGaugeInterval = absl::Seconds(1);

// Has the model's files compared anew if a load found them changed.
absl::StatusOr<std::unique_ptr<StageExecutor>> Doubting(
    ContentCheck* content,
    absl::StatusOr<std::unique_ptr<StageExecutor>> loaded) {
  if (absl::IsDataLoss(loaded.status())) content->Distrust();
  return loaded;
}

}  // namespace

absl::Status Worker::Options::Validate() const {
  const auto wrong = [](const auto&... what) {
    return InvalidArgument("worker: ", what...);
  };
  if (name.empty()) return wrong("name is empty");
  if (model_dir.empty() && cache.dir.empty()) {
    return wrong(
        "no --model directory, and no --cache-dir for a model to be fetched");
  }
  if (coordinator_address.empty()) return wrong("no coordinator address");
  if (machine.host_memory_bytes == 0) return wrong("no host memory");
  const bool has_memory = machine.device.has_memory();
  if (has_memory && machine.device_memory_bytes == 0) {
    return wrong(
        "this device has memory of its own: say how much of it with "
        "--device-memory");
  }
  if (!has_memory && machine.device_memory_bytes > 0) {
    return wrong(
        "--device-memory is for devices with memory of their own; the CPU's is "
        "--host-memory");
  }
  if (machine.threads < 1) return wrong(machine.threads, " compute threads");
  if (channels == nullptr) return wrong("no channel factory");
  if (reconnect_delay <= absl::ZeroDuration()) {
    return wrong("reconnect_delay must be > 0");
  }
  if (machine.disk_dir.empty() && machine.disk_bytes > 0) {
    return wrong("disk space, but no directory");
  }
  if (profile == nullptr) return absl::OkStatus();
  const size_t bytes = ProfileToJson(*profile).size();
  if (bytes > kMaxProfileBytes) {
    return wrong("the profile of this machine takes ", bytes,
                 " bytes; at most ", kMaxProfileBytes,
                 " can be told to a coordinator. Leave out links, or have it "
                 "measured anew with `sluice profile`");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(Options options) {
  SLUICE_RETURN_IF_ERROR(CheckDevice(options.machine.device));
  for (const DeviceChoice& device : options.machine.ranks) {
    SLUICE_RETURN_IF_ERROR(CheckDevice(device));
  }
  SLUICE_RETURN_IF_ERROR(options.Validate());
  Model model;
  if (options.model_dir.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        model.fetcher, ModelFetcher::Create(
                           {.cache = options.cache,
                            .coordinator_address = options.coordinator_address,
                            .channels = options.channels,
                            .dummy_weights = options.dummy_weights}));
  } else {
    SLUICE_ASSIGN_OR_RETURN(model, OpenModel(options));
  }
  SLUICE_RETURN_IF_ERROR(PrepareDisk(&options.machine));
  if (!options.machine.disk_dir.empty()) {
    PackedStore::RemoveOrphans(options.machine.disk_dir);
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PayloadTransport> nccl,
                          OpenPayloads(options.links, options.machine.device));
  if (nccl != nullptr) {
    LogInfo("links may go by ", nccl->name());
  }
  return std::make_unique<Worker>(std::move(options), std::move(model),
                                  std::move(nccl));
}

absl::StatusOr<Worker::Model> Worker::OpenModel(const Options& options) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<ModelDir> opened,
                          ModelDir::Open(options.model_dir));
  const std::shared_ptr<const ModelDir> dir = std::move(opened);
  // In a process of one's own; elsewhere the coordinator tells.
  if (options.hash_model && !options.dummy_weights) {
    if (dir->quantization().quantized()) {
      LogInfo(options.model_dir.string(), ": its weights are quantized: ",
              dir->quantization().Description());
    }
    for (const std::string& remark : dir->Remarks()) {
      LogWarning(options.model_dir.string(), ": ", remark);
    }
  }
  Model model;
  SLUICE_ASSIGN_OR_RETURN(
      model.content,
      ContentCheck::Start({.model = dir,
                           .dummy_weights = options.dummy_weights,
                           .hash = options.hash_model,
                           .cache_file = options.hash_cache}));
  model.hidden_size = dir->spec().hidden_size;
  model.num_layers = dir->spec().num_layers;
  model.loader = [dir, content = model.content](
                     const StageOptions& stage,
                     const StageExecutor::Progress& progress,
                     const std::atomic<bool>* cancelled)
      -> absl::StatusOr<std::unique_ptr<StageExecutor>> {
    // The loaded content is the one that was compared: by its pieces, or, where
    // these were not hashed, by the files' times before and after.
    SLUICE_RETURN_IF_ERROR(content->Verify());
    SLUICE_ASSIGN_OR_RETURN(
        std::unique_ptr<StageExecutor> executor,
        Doubting(content.get(), LoadStage(*dir, stage, progress, cancelled,
                                          content->AllPieces())));
    SLUICE_RETURN_IF_ERROR(content->Verify());
    return executor;
  };
  return model;
}

PieceShelf* Worker::ServedFiles() {
  return fetcher_ != nullptr ? static_cast<PieceShelf*>(fetcher_.get())
                             : shelf_.get();
}

StageRunner::Options Worker::RunnerOptions(Model model,
                                           PayloadTransport* nccl) {
  StageRunner::Options runner;
  runner.loader = std::move(model.loader);
  if (content_ != nullptr) {
    runner.content = [this] { return content_->state().content; };
  }
  runner.hidden_size = model.hidden_size;
  if (fetcher_ != nullptr) {
    runner.model_loader = [this](const AssignedModel& assigned,
                                 const StageOptions& stage,
                                 const StageExecutor::Progress& fetching,
                                 const StageExecutor::Progress& progress,
                                 const std::atomic<bool>* cancelled) {
      return fetcher_->Load(assigned, stage, fetching, progress, cancelled);
    };
  }
  runner.resources = resources_;
  runner.other_device_budgets = ranks_.other_budgets();
  runner.with_ranks = [this](int32_t ranks) { return ResourcesOf(ranks); };
  runner.links = &links_;
  runner.guard = options_.guard.get();
  runner.transports = {.nccl = nccl, .tcp = tcp_.get()};
  runner.metrics = &metrics_;
  runner.clock = Clock::Real();
  runner.on_device_loss = [this](const absl::Status& why) {
    OnDeviceLoss(why);
  };
  runner.failure_level = options_.failure_level;
  return runner;
}

absl::StatusOr<StageResources> Worker::ResourcesOf(int32_t ranks) const {
  if (ranks == 0) ranks = ranks_.count();
  StageResources resources = resources_;
  SLUICE_ASSIGN_OR_RETURN(resources.ranks, ranks_.Shares(ranks));
  std::vector<DeviceChoice> devices;
  for (const RankResources& rank : resources.ranks) {
    devices.push_back(rank.device);
  }
  resources.exchange = ExchangeOf(options_.links, devices);
  return resources;
}

Worker::Worker(Options options, Model model,
               std::unique_ptr<PayloadTransport> nccl)
    : options_(std::move(options)),
      num_layers_(model.num_layers),
      content_(std::move(model.content)),
      fetcher_(std::move(model.fetcher)),
      null_metrics_(options_.metrics == nullptr ? CreateNullMetrics()
                                                : nullptr),
      metrics_(
          options_.metrics != nullptr ? options_.metrics : null_metrics_.get(),
          options_.name),
      shelf_(content_ == nullptr || !options_.hash_model
                 ? nullptr
                 : std::make_unique<ModelShelf>(options_.model_dir,
                                                content_.get())),
      weights_(ServedFiles() == nullptr
                   ? nullptr
                   : WeightsServer::Create(ServedFiles(),
                                           metrics_.weights_served,
                                           options_.guard.get())),
      device_budget_(Tier::kDevice, options_.machine.device_memory_bytes),
      host_budget_(Tier::kHost, options_.machine.host_memory_bytes),
      disk_budget_(Tier::kDisk, options_.machine.disk_bytes),
      ranks_(options_.machine, &device_budget_),
      resources_{
          .compute_threads = options_.machine.threads,
          .cores = options_.machine.cores,
          .device = options_.machine.device,
          .device_budget =
              options_.machine.device.has_memory() ? &device_budget_ : nullptr,
          .host_budget = &host_budget_,
          .disk_budget =
              options_.machine.disk_dir.empty() ? nullptr : &disk_budget_,
          .disk_dir = options_.machine.disk_dir,
          .dummy_weights = options_.dummy_weights,
          .tracer = options_.tracer},
      tcp_(OpenTcpLinks(options_.links)),
      links_({.channels = options_.channels,
              .bytes_sent = metrics_.link_bytes_sent}),
      runner_(RunnerOptions(std::move(model), nccl.get())),
      // The bytes of probes are not counted as activations.
      probes_({.channels = options_.channels}),
      survey_(&probes_, kSurveySeconds),
      nccl_(std::move(nccl)),
      gauges_([this] { SetGauges(); }, kGaugeInterval) {
  if (fetcher_ != nullptr) fetcher_->Count(metrics_.fetched);
  if (!options_.link_address.empty()) Announce(options_.link_address);
}

Worker::~Worker() {
  Shutdown();
  if (tcp_ != nullptr) tcp_->Stop();
}

std::string Worker::ProfileText(const MachineProfile* measured) const {
  if (measured == nullptr) return "";
  MachineProfile profile = *measured;
  profile.name = options_.name;
  profile.nccl_links = nccl_ != nullptr;
  SetRanks(options_.machine, &profile);
  return ProfileToJson(profile);
}

void Worker::SetMeasured(double share, bool awaits) {
  MutexLock lock(&mu_);
  if (client_ != nullptr) client_->SetMeasured(share, awaits);
}

void Worker::SetProfile(std::shared_ptr<const MachineProfile> profile) {
  MutexLock lock(&mu_);
  measured_ = ProfileText(profile.get());
  if (client_ != nullptr) client_->SetProfile(*measured_);
}

void Worker::Announce(const std::string& link_address) {
  MutexLock lock(&mu_);
  if (client_ != nullptr || shutdown_ || !health_.ok()) return;
  CoordinatorClient::Options client;
  client.address = options_.coordinator_address;
  client.channels = options_.channels;
  v1::Register& identity = client.identity;
  identity.set_name(EscapeInvalidUtf8(options_.name));
  identity.set_link_address(EscapeInvalidUtf8(link_address));
  identity.set_host_memory_bytes(options_.machine.host_memory_bytes);
  identity.set_compute_threads(options_.machine.threads);
  const DeviceChoice& device = options_.machine.device;
  identity.set_device(EscapeInvalidUtf8(device.backend == BackendKind::kCuda
                                            ? DescribeDevice(device)
                                            : DescribeCpu()));
  identity.set_version(BuildVersion());
  identity.set_metrics_address(EscapeInvalidUtf8(options_.metrics_address));
  identity.set_model_dir(EscapeInvalidUtf8(
      (fetcher_ != nullptr ? options_.cache.dir : options_.model_dir)
          .string()));
  identity.set_fetches_model(fetcher_ != nullptr);
  identity.set_measuring(options_.measuring && !measured_);
  identity.set_profile_json(
      measured_.value_or(ProfileText(options_.profile.get())));
  const LinkChoice choice = options_.links.choice;
  const bool insists = (choice == LinkChoice::kNccl && nccl_ != nullptr) ||
                       (choice == LinkChoice::kTcp && tcp_ != nullptr);
  if (!insists) identity.add_link_transports(v1::LINK_TRANSPORT_GRPC);
  if (nccl_ != nullptr) {
    identity.add_link_transports(v1::LINK_TRANSPORT_NCCL);
    identity.set_gpu_uuid(nccl_->gpu_uuid());
  }
  if (tcp_ != nullptr) identity.add_link_transports(v1::LINK_TRANSPORT_TCP);
  client.content = content_.get();
  client.num_layers = num_layers_;
  client.runner = &runner_;
  client.survey = &survey_;
  client.reconnect_delay = options_.reconnect_delay;
  client.lost_level = std::min(client.lost_level, options_.failure_level);
  client_ = CoordinatorClient::Start(std::move(client));
}

bool Worker::ready() const {
  if (!runner_.ready()) return false;
  MutexLock lock(&mu_);
  return client_ != nullptr && client_->attached();
}

absl::Status Worker::health() const {
  MutexLock lock(&mu_);
  return health_;
}

void Worker::BeginLeaving() {
  MutexLock lock(&mu_);
  if (client_ != nullptr) client_->BeginLeaving();
}

bool Worker::left() const {
  MutexLock lock(&mu_);
  return client_ == nullptr || client_->left();
}

void Worker::Leave() {
  Thread leaving;
  {
    MutexLock lock(&mu_);
    shutdown_ = true;
    leaving = std::move(leaving_);
  }
  leaving.Join();
  survey_.Cancel();
  EndClient();
}

void Worker::Shutdown() {
  Leave();
  runner_.Shutdown();
}

// The stage's report of the loss is sent before the worker leaves.
void Worker::OnDeviceLoss(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (!health_.ok()) return;
  LogError("leaving for good: ", why.message());
  health_ = why;
  if (!shutdown_) leaving_ = Thread("leaving", [this] { EndClient(); });
}

void Worker::EndClient() {
  std::unique_ptr<CoordinatorClient> client;
  {
    MutexLock lock(&mu_);
    client = std::move(client_);
  }
  if (client != nullptr) client->Shutdown();
}

void Worker::SetGauges() {
  metrics_.SetBudgets(resources_.device_budget, resources_.host_budget,
                      resources_.disk_budget);
  if (const std::string& dir = options_.machine.disk_dir; !dir.empty()) {
    SetDiskFree(metrics_.registry, dir);
  }
}

}  // namespace sluice
