#include "server/local_cluster.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/host/start_check.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "proto/grpc_endpoint.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/host_memory.h"
#include "runtime/model/model_dir.h"
#include "server/coordinator_server.h"
#include "server/local_profile.h"
#include "worker/machine.h"
#include "worker/probe/worker_profile.h"
#include "worker/worker.h"

namespace sluice {
namespace {

constexpr char kCoordinator[] = "local:coordinator";
// What coordinator and a worker start with, gRPC's threads among them.
constexpr int kThreads = 48;
constexpr size_t kAddressBytes = size_t{384} << 20;

// Of all workers; 0 without a disk tier.
absl::StatusOr<uint64_t> DiskSpace(const LocalCluster::Options& options) {
  if (options.disk_dir.empty()) {
    if (options.disk_space.empty()) return 0;
    return absl::InvalidArgumentError("--disk-space needs a --disk-dir");
  }
  if (options.disk_space.empty()) {
    absl::StatusOr<uint64_t> space = DefaultDiskSpace(options.disk_dir);
    if (!space.ok()) return Annotate(space.status(), "--disk-dir");
    return space;
  }
  absl::StatusOr<uint64_t> space = ParseByteSize(options.disk_space);
  if (!space.ok()) return Annotate(space.status(), "--disk-space");
  return space;
}

// What all workers have together.
absl::StatusOr<Worker::Options> AllWorkers(
    const LocalCluster::Options& options) {
  if (options.num_workers < 1 || options.num_workers > 256) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--workers ", options.num_workers, " is not within 1..256"));
  }
  Worker::Options all;
  all.compute_threads = options.compute_threads > 0
                            ? options.compute_threads
                            : UsableCoreCount(UsableCores());
  SLUICE_ASSIGN_OR_RETURN(all.host_memory_bytes,
                          ParseHostMemory(options.host_memory));
  SLUICE_ASSIGN_OR_RETURN(all.device, ParseDevice(options.device));
  SLUICE_RETURN_IF_ERROR(CheckDevice(all.device));
  SLUICE_ASSIGN_OR_RETURN(all.device_memory_bytes,
                          ParseDeviceMemory(all.device, options.device_memory));
  all.link = LinkChoice::kGrpc;  // which here is a call within the process
  all.disk_dir = options.disk_dir;
  SLUICE_ASSIGN_OR_RETURN(all.disk_space_bytes, DiskSpace(options));
  return all;
}

absl::StatusOr<MachineProfile> ProfileFor(const LocalCluster::Options& options,
                                          const Worker::Options& all) {
  if (!options.profile.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const ProfilerOptions machine,
                            ProfilerOptionsOf(all));
    return ReadWorkerProfile(options.profile, machine);
  }
  LocalProfileOptions local;
  local.device = options.device;
  local.device_memory = options.device_memory;
  local.host_memory = options.host_memory;
  local.disk_dir = options.disk_dir;
  local.disk_space = options.disk_space;
  local.threads = options.compute_threads;
  local.fresh = false;
  return LocalProfile(local, options.profile_progress);
}

// No more workers than there are layers: others would only hold memory.
absl::Status FitWorkers(LocalCluster::Options* options) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelDir> model,
                          ModelDir::Open(options->coordinator.model_dir));
  const int32_t layers = model->spec().num_layers;
  if (options->num_workers <= layers) return absl::OkStatus();
  LogWarning(absl::StrCat("--workers ", options->num_workers,
                          ": the model has ", layers, " layers, so there are ",
                          layers, " workers"));
  options->num_workers = layers;
  return absl::OkStatus();
}

// What the coordinator's options say of the workers.
absl::Status SetUp(const Worker::Options& all, LocalCluster::Options* options) {
  Coordinator::Options& coordinator = options->coordinator;
  coordinator.has_float16 = all.device.backend == BackendKind::kCuda;
  if (coordinator.dtype == DTypeChoice::kFloat16 && !coordinator.has_float16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dtype float16 is for --device cuda; with ", DeviceName(all.device),
        " say bfloat16, which is as small, or float32"));
  }
  coordinator.min_workers = options->num_workers;
  coordinator.compare_models = false;
  return absl::OkStatus();
}

class LocalClusterImpl : public LocalCluster {
 public:
  ~LocalClusterImpl() override { Shutdown(); }

  void Shutdown() override {
    stopping_ = true;
    MutexLock lock(&shutdown_mu_);
    if (std::exchange(shut_down_, true)) return;
    // What was answered is stored before anything that may take long. Workers
    // go before the coordinator: one that loses it tries to find it again.
    if (coordinator_ != nullptr) coordinator_->jobs().Flush();
    for (auto& worker : workers_) worker->Shutdown();
    if (coordinator_server_ != nullptr) coordinator_server_->Shutdown();
    for (auto& server : link_servers_) {
      server->Shutdown(std::chrono::system_clock::now());
      server->Wait();
    }
  }

  absl::Status Init(Options options) {
    SLUICE_RETURN_IF_ERROR(FitWorkers(&options));
    SLUICE_ASSIGN_OR_RETURN(const Worker::Options all, AllWorkers(options));
    std::optional<MachineProfile> profile;
    if (options.coordinator.plan_jobs) {
      SLUICE_ASSIGN_OR_RETURN(profile, ProfileFor(options, all));
    }
    SLUICE_RETURN_IF_ERROR(SetUp(all, &options));
    options.coordinator.metrics = options.metrics;
    options.coordinator.failure_level = LogLevel::kInfo;
    SLUICE_ASSIGN_OR_RETURN(coordinator_,
                            Coordinator::Create(options.coordinator));
    SLUICE_ASSIGN_OR_RETURN(coordinator_server_,
                            CoordinatorServer::Start(coordinator_.get(), ""));
    client_ = JobClient::FromChannel(
        coordinator_server_->Channel(ChannelKind::kClient), kCoordinator);
    {
      MutexLock lock(&mu_);
      channels_[kCoordinator] =
          coordinator_server_->Channel(ChannelKind::kWorker);
    }
    for (int i = 0; i < options.num_workers; ++i) {
      Worker::Options worker = all;
      worker.name = absl::StrCat("local-", i);
      worker.model_dir = options.coordinator.model_dir;
      worker.coordinator_address = kCoordinator;
      worker.link_address = absl::StrCat("local:worker-", i);
      worker.host_memory_bytes /= options.num_workers;
      worker.device_memory_bytes /= options.num_workers;
      worker.disk_space_bytes /= options.num_workers;
      if (profile) {
        // They share cores and disk as they need them.
        MachineProfile part = *profile;
        part.host_memory_bytes = worker.host_memory_bytes;
        part.device_memory_bytes = worker.device_memory_bytes;
        part.disk_bytes /= options.num_workers;
        worker.profile = std::make_shared<const MachineProfile>(part);
      }
      worker.dummy_weights = options.coordinator.dummy_weights;
      worker.hash_model = false;  // there is but one copy
      worker.pin_threads = options.num_workers == 1;
      // Stages compute at the same time: cores are divided among them.
      worker.compute_threads =
          std::max(1, (all.compute_threads + i) / options.num_workers);
      worker.channels = [this](const std::string& address) {
        return ChannelTo(address);
      };
      worker.metrics = options.metrics;
      worker.failure_level = LogLevel::kInfo;
      worker.tracer = options.tracer;
      const std::string link_address = worker.link_address;
      SLUICE_ASSIGN_OR_RETURN(auto created, Worker::Create(std::move(worker)));
      SLUICE_ASSIGN_OR_RETURN(
          auto server,
          StartServer(ServerKind::kWorker, "", {created->link_service()}));
      {
        MutexLock lock(&mu_);
        channels_[link_address] =
            LocalChannel(ChannelKind::kWorker, server.get());
      }
      workers_.push_back(std::move(created));
      link_servers_.push_back(std::move(server));
    }
    return absl::OkStatus();
  }

  bool stopping() const override { return stopping_; }

  Coordinator& coordinator() override { return *coordinator_; }
  const Coordinator& coordinator() const override { return *coordinator_; }
  JobClient& client() override { return *client_; }
  absl::Status health() const override {
    for (const auto& worker : workers_) {
      SLUICE_RETURN_IF_ERROR(worker->health());
    }
    return absl::OkStatus();
  }
  RuntimeReport report() const override {
    RuntimeReport sum;
    for (const auto& worker : workers_) sum += worker->report();
    sum.resident_peak_bytes = PeakResidentMemory();
    return sum;
  }

 private:
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
    MutexLock lock(&mu_);
    auto it = channels_.find(address);
    // A lame channel fails each call with UNAVAILABLE, as a wrong address does.
    return it != channels_.end() ? it->second
                                 : OpenChannel(ChannelKind::kWorker, address);
  }

  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorServer> coordinator_server_;
  std::unique_ptr<JobClient> client_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<grpc::Server>> link_servers_;
  std::atomic<bool> stopping_ = false;
  Mutex shutdown_mu_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mu_) = false;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    Options options) {
  SLUICE_RETURN_IF_ERROR(CheckStart(kThreads, kAddressBytes));
  auto cluster = std::make_unique<LocalClusterImpl>();
  SLUICE_RETURN_IF_ERROR(cluster->Init(std::move(options)));
  return cluster;
}

absl::StatusOr<std::map<std::string, std::string>> LocalCluster::AnswerFacts(
    Options options) {
  SLUICE_ASSIGN_OR_RETURN(const Worker::Options all, AllWorkers(options));
  SLUICE_RETURN_IF_ERROR(SetUp(all, &options));
  // There need not be one yet.
  if (options.coordinator.state_dir.empty())
    options.coordinator.state_dir = ".";
  SLUICE_ASSIGN_OR_RETURN(auto facts,
                          Coordinator::AnswerFacts(options.coordinator));
  // One GPU computes as another of its kind; that they are of a kind is not
  // looked into.
  switch (all.device.backend) {
    case BackendKind::kCuda:
      facts["--device"] = "cuda";
      break;
    default:
      facts["--device"] = "cpu";
  }
  return facts;
}

}  // namespace sluice
