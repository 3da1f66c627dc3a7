#include "worker/link/link_server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host/host_port.h"
#include "common/status_macros.h"
#include "proto/grpc_endpoint.h"

namespace sluice {
namespace {

constexpr char kLinkServiceName[] = "sluice.v1.LinkService";

}  // namespace

ChannelFactory TcpChannels() {
  return [](const std::string& address) {
    return OpenChannel(ChannelKind::kWorker, address);
  };
}

absl::StatusOr<std::unique_ptr<LinkServer>> LinkServer::Start(
    const std::string& host, int port, grpc::Service* link_service,
    grpc::Service* weights_service) {
  auto server = std::unique_ptr<LinkServer>(new LinkServer());
  std::vector<grpc::Service*> services = {link_service};
  if (weights_service != nullptr) services.push_back(weights_service);
  SLUICE_ASSIGN_OR_RETURN(
      server->server_,
      StartServer(ServerKind::kWorker, JoinHostPort(host, port), services,
                  &server->port_));
  server->SetServing(false);
  return server;
}

LinkServer::~LinkServer() { Shutdown(); }

void LinkServer::SetServing(bool serving) {
  if (auto* health = server_->GetHealthCheckService()) {
    health->SetServingStatus(serving);
    health->SetServingStatus(kLinkServiceName, serving);
  }
}

void LinkServer::Shutdown() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  server_->Wait();
}

}  // namespace sluice
