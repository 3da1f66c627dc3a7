#include "server/local_cluster.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/host/start_check.h"
#include "common/status_macros.h"
#include "proto/grpc_endpoint.h"
#include "runtime/memory/host_memory.h"
#include "runtime/model/model_dir.h"
#include "server/coordinator_server.h"
#include "server/local_profile.h"
#include "worker/machine_share.h"
#include "worker/probe/worker_profile.h"
#include "worker/worker.h"

namespace sluice {
namespace {

constexpr char kCoordinator[] = "local:coordinator";
// The threads of a coordinator and a worker at start, gRPC's included.
constexpr int kThreads = 48;
constexpr size_t kAddressBytes = size_t{384} << 20;

// The machine share of all workers together.
absl::StatusOr<MachineShare> AllWorkers(const LocalCluster::Options& options) {
  if (options.num_workers < 1 || options.num_workers > 256) {
    return InvalidArgument("--workers ", options.num_workers,
                           " is not within 1..256");
  }
  SLUICE_ASSIGN_OR_RETURN(MachineShare all, ParseMachine(options.machine));
  if (all.disk_bytes == 0) SLUICE_RETURN_IF_ERROR(PrepareDisk(&all));
  return all;
}

absl::StatusOr<MachineProfile> ProfileFor(const LocalCluster::Options& options,
                                          const MachineShare& all) {
  if (!options.profile.empty()) return ReadWorkerProfile(options.profile, all);
  LocalProfileOptions local;
  local.machine = options.machine;
  local.machine.warn = false;  // AllWorkers() has
  local.fresh = false;
  local.stop = options.stop;
  return LocalProfile(local, options.profile_progress);
}

// Limits workers to the number of layers: more would only hold memory.
absl::Status FitWorkers(LocalCluster::Options* options) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelDir> model,
                          ModelDir::Open(options->coordinator.model_dir));
  const int32_t layers = model->spec().num_layers;
  if (options->num_workers <= layers) return absl::OkStatus();
  LogWarning("--workers ", options->num_workers, ": the model has ", layers,
             " layers, so there are ", layers, " workers");
  options->num_workers = layers;
  return absl::OkStatus();
}

// Sets the coordinator's options that depend on the workers.
absl::Status SetUp(const MachineShare& all, LocalCluster::Options* options) {
  Coordinator::Options& coordinator = options->coordinator;
  coordinator.has_float16 = all.device.backend == BackendKind::kCuda;
  if (coordinator.dtype == DTypeChoice::kFloat16 && !coordinator.has_float16) {
    return InvalidArgument("--dtype float16 is for --device cuda; with ",
                           DeviceName(all.device),
                           " say bfloat16, which is as small, or float32");
  }
  coordinator.min_workers = options->num_workers;
  coordinator.compare_models = false;
  return absl::OkStatus();
}

}  // namespace

LocalCluster::LocalCluster() = default;

LocalCluster::~LocalCluster() { Shutdown(); }

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    Options options) {
  const auto check = [stop = options.stop] {
    return stop != nullptr && *stop ? absl::CancelledError("stopped")
                                    : absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(CheckStart(kThreads, kAddressBytes));
  SLUICE_RETURN_IF_ERROR(FitWorkers(&options));
  SLUICE_ASSIGN_OR_RETURN(const MachineShare all, AllWorkers(options));
  std::optional<MachineProfile> measured;
  if (options.coordinator.plan_jobs) {
    SLUICE_ASSIGN_OR_RETURN(measured, ProfileFor(options, all));
  }
  SLUICE_RETURN_IF_ERROR(SetUp(all, &options));
  options.coordinator.metrics = options.metrics;
  options.coordinator.failure_level = LogLevel::kInfo;
  SLUICE_RETURN_IF_ERROR(check());
  std::unique_ptr<LocalCluster> cluster(new LocalCluster());
  SLUICE_RETURN_IF_ERROR(cluster->StartCoordinator(options.coordinator));
  for (int i = 0; i < options.num_workers; ++i) {
    SLUICE_RETURN_IF_ERROR(check());
    SLUICE_RETURN_IF_ERROR(cluster->StartWorker(i, options, all, measured));
  }
  return cluster;
}

absl::Status LocalCluster::StartCoordinator(Coordinator::Options options) {
  SLUICE_ASSIGN_OR_RETURN(coordinator_,
                          Coordinator::Create(std::move(options)));
  SLUICE_ASSIGN_OR_RETURN(coordinator_server_,
                          CoordinatorServer::Start(coordinator_.get(), ""));
  client_ = JobClient::FromChannel(
      coordinator_server_->Channel(ChannelKind::kClient), kCoordinator);
  MutexLock lock(&mu_);
  channels_[kCoordinator] = coordinator_server_->Channel(ChannelKind::kWorker);
  return absl::OkStatus();
}

absl::Status LocalCluster::StartWorker(
    int i, const Options& options, const MachineShare& all,
    const std::optional<MachineProfile>& measured) {
  const int n = options.num_workers;
  Worker::Options worker_options;
  worker_options.name = absl::StrCat("local-", i);
  worker_options.model_dir = options.coordinator.model_dir;
  worker_options.coordinator_address = kCoordinator;
  const std::string link_address = absl::StrCat("local:worker-", i);
  worker_options.link_address = link_address;
  MachineShare& part = worker_options.machine;
  part = all;
  part.host_memory_bytes /= n;
  part.device_memory_bytes /= n;
  part.disk_bytes /= n;
  // Stages compute at the same time: cores are divided among them.
  part.threads = std::max(1, (all.threads + i) / n);
  if (n > 1) part.cores.clear();
  if (measured) {
    // Workers share cores and disk as they need them.
    MachineProfile profile = *measured;
    profile.host_memory_bytes = part.host_memory_bytes;
    profile.device_memory_bytes = part.device_memory_bytes;
    profile.disk_bytes /= n;
    profile.cores = all.threads;
    worker_options.profile =
        std::make_shared<const MachineProfile>(std::move(profile));
  }
  worker_options.dummy_weights = options.coordinator.dummy_weights;
  worker_options.hash_model = false;  // there is only one copy
  // Here gRPC is a call within the process.
  worker_options.links.choice = LinkChoice::kGrpc;
  worker_options.channels = [this](const std::string& address) {
    return ChannelTo(address);
  };
  worker_options.metrics = options.metrics;
  worker_options.failure_level = LogLevel::kInfo;
  worker_options.tracer = options.tracer;
  SLUICE_ASSIGN_OR_RETURN(auto worker,
                          Worker::Create(std::move(worker_options)));
  SLUICE_ASSIGN_OR_RETURN(auto server, StartServer(ServerKind::kWorker, "",
                                                   {worker->link_service()}));
  {
    MutexLock lock(&mu_);
    channels_[link_address] = LocalChannel(ChannelKind::kWorker, server.get());
  }
  workers_.push_back(std::move(worker));
  link_servers_.push_back(std::move(server));
  return absl::OkStatus();
}

void LocalCluster::Stop() {
  stopping_ = true;
  client_->Stop();
}

void LocalCluster::Close() {
  if (std::exchange(closed_, true)) return;
  if (client_ != nullptr) Stop();
  // Answers and the tokens of others are stored before anything that may take
  // long. Workers leave before the coordinator ends, as a worker that loses it
  // tries to reconnect.
  if (coordinator_ != nullptr) coordinator_->StopDispatch();
  for (auto& worker : workers_) worker->Leave();
  if (coordinator_server_ != nullptr) coordinator_server_->Shutdown();
}

void LocalCluster::Shutdown() {
  if (std::exchange(shut_down_, true)) return;
  Close();
  for (auto& worker : workers_) worker->Shutdown();
  for (auto& server : link_servers_) {
    server->Shutdown(std::chrono::system_clock::now());
    server->Wait();
  }
}

absl::Status LocalCluster::health() const {
  for (const auto& worker : workers_) {
    SLUICE_RETURN_IF_ERROR(worker->health());
  }
  return absl::OkStatus();
}

RuntimeReport LocalCluster::report() const {
  RuntimeReport sum;
  for (const auto& worker : workers_) sum += worker->report();
  sum.resident_peak_bytes = PeakResidentMemory();
  return sum;
}

std::shared_ptr<grpc::Channel> LocalCluster::ChannelTo(
    const std::string& address) {
  MutexLock lock(&mu_);
  auto it = channels_.find(address);
  // A lame channel fails each call with UNAVAILABLE, like a wrong address.
  return it != channels_.end() ? it->second
                               : OpenChannel(ChannelKind::kWorker, address);
}

absl::StatusOr<std::map<std::string, std::string>> LocalCluster::AnswerFacts(
    Options options) {
  options.machine.warn = false;  // Start() warns
  SLUICE_ASSIGN_OR_RETURN(const MachineShare all, AllWorkers(options));
  SLUICE_RETURN_IF_ERROR(SetUp(all, &options));
  // The state directory need not exist yet.
  if (options.coordinator.state_dir.empty())
    options.coordinator.state_dir = ".";
  SLUICE_ASSIGN_OR_RETURN(auto facts,
                          Coordinator::AnswerFacts(options.coordinator));
  // GPUs of one kind give equal answers; the kind is not checked.
  facts["--device"] = all.device.backend == BackendKind::kCuda ? "cuda" : "cpu";
  return facts;
}

}  // namespace sluice
