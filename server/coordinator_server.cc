#include "server/coordinator_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/listen_probe.h"
#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Coordinator* coordinator, const std::string& address) {
  static std::once_flag plugins;  // gRPC keeps them in a global list
  std::call_once(plugins, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  if (!address.empty()) SLUICE_RETURN_IF_ERROR(CheckCanListen(address));
  std::unique_ptr<CoordinatorServer> self(new CoordinatorServer(coordinator));
  grpc::ServerBuilder builder;
  if (!address.empty()) {
    // Without this, gRPC shares a taken port silently with the other process.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(),
                             &self->port_);
  }
  // A thread per open stream; a bound, so that clients can't exhaust the host.
  grpc::ResourceQuota quota("sluice-coordinator");
  quota.SetMaxThreads(512);
  builder.SetResourceQuota(quota);
  builder.RegisterService(&self->job_service_);
  builder.RegisterService(&self->cluster_service_);
  builder.RegisterService(coordinator->worker_service());
  self->server_ = builder.BuildAndStart();
  if (self->server_ == nullptr || (!address.empty() && self->port_ == 0)) {
    return absl::UnavailableError(
        absl::StrCat("can't listen on ", address,
                     "; is the port taken? Choose another --port"));
  }
  self->server_->GetHealthCheckService()->SetServingStatus(
      v1::JobService::service_full_name(), true);
  self->server_->GetHealthCheckService()->SetServingStatus(
      v1::ClusterService::service_full_name(), true);
  return self;
}

std::shared_ptr<grpc::Channel> CoordinatorServer::InProcessChannel() {
  grpc::ChannelArguments args;
  return server_->InProcessChannel(args);
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
