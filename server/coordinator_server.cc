#include "server/coordinator_server.h"

#include <grpcpp/health_check_service_interface.h>

#include <chrono>

#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Coordinator* coordinator, const std::string& address) {
  std::unique_ptr<CoordinatorServer> self(new CoordinatorServer(coordinator));
  SLUICE_ASSIGN_OR_RETURN(
      self->server_, StartServer(ServerKind::kCoordinator, address,
                                 {&self->job_service_, &self->cluster_service_,
                                  coordinator->worker_service()},
                                 &self->port_));
  self->server_->GetHealthCheckService()->SetServingStatus(
      v1::JobService::service_full_name(), true);
  self->server_->GetHealthCheckService()->SetServingStatus(
      v1::ClusterService::service_full_name(), true);
  return self;
}

std::shared_ptr<grpc::Channel> CoordinatorServer::Channel(ChannelKind kind) {
  return LocalChannel(kind, server_.get());
}

void CoordinatorServer::Shutdown() {
  if (server_ == nullptr) return;
  server_->GetHealthCheckService()->SetServingStatus(false);
  job_service_.BeginShutdown();
  // The workers' streams never end by themselves: the coordinator closes them.
  coordinator_->Shutdown();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  server_->Wait();
  server_.reset();
}

}  // namespace sluice
