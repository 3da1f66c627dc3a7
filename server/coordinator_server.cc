#include "server/coordinator_server.h"

#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <utility>
#include <vector>

#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int kQueryThreads = 2;
constexpr char kWorkerService[] = "sluice.v1.WorkerService";
constexpr absl::Duration kHealthTick = absl::Milliseconds(200);

}  // namespace

CoordinatorServer::CoordinatorServer(Coordinator* coordinator,
                                     const JobServiceImpl::Options& options)
    : coordinator_(coordinator),
      queries_("queries", kQueryThreads),
      job_service_(&coordinator->jobs(), &queries_, options),
      cluster_service_(coordinator, &queries_, options.guard) {}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Coordinator* coordinator, const std::string& address,
    const JobServiceImpl::Options& options, const TlsFiles& tls) {
  std::unique_ptr<CoordinatorServer> self(
      new CoordinatorServer(coordinator, options));
  std::vector<grpc::Service*> services = {&self->job_service_,
                                          &self->cluster_service_,
                                          coordinator->worker_service()};
  if (grpc::Service* const weights = coordinator->weights_service()) {
    services.push_back(weights);
  }
  SLUICE_ASSIGN_OR_RETURN(
      self->server_, StartServer(ServerKind::kCoordinator, address, services,
                                 &self->port_, tls));
  auto* const health = self->server_->GetHealthCheckService();
  health->SetServingStatus(v1::JobService::service_full_name(), true);
  health->SetServingStatus(v1::ClusterService::service_full_name(), true);
  health->SetServingStatus(kWorkerService, true);
  health->SetServingStatus("", false);
  self->health_ = Thread("health", [self = self.get()] { self->ShowHealth(); });
  return self;
}

std::shared_ptr<grpc::Channel> CoordinatorServer::Channel(ChannelKind kind) {
  return LocalChannel(kind, server_.get());
}

void CoordinatorServer::ShowHealth() {
  bool shown = false;
  MutexLock lock(&mu_);
  while (!stop_) {
    const bool ready = coordinator_->ready();
    if (ready != std::exchange(shown, ready)) {
      server_->GetHealthCheckService()->SetServingStatus("", ready);
    }
    stopped_.WaitFor(&mu_, kHealthTick);
  }
}

void CoordinatorServer::Shutdown() {
  if (server_ == nullptr) return;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  health_.Join();
  server_->GetHealthCheckService()->SetServingStatus(false);
  job_service_.BeginShutdown();
  // The workers' streams never end by themselves: the coordinator closes them.
  coordinator_->Shutdown();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  server_->Wait();
  server_.reset();
}

}  // namespace sluice
