#include "worker/link/link_server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host/host_port.h"
#include "common/status_macros.h"
#include "proto/grpc_endpoint.h"
#include "worker/link/tcp/shared_port.h"

namespace sluice {
namespace {

constexpr char kLinkServiceName[] = "sluice.v1.LinkService";

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

// gRPC closes the connection when it is done with it.
void HandOver(FileDescriptor connection, Acceptor* acceptor) {
  Acceptor::NewConnectionParameters parameters;
  parameters.fd = connection.Release();
  acceptor->HandleNewConnection(&parameters);
}

}  // namespace

LinkServer::LinkServer() = default;

ChannelFactory TcpChannels(const ChannelSecurity& security) {
  return [security](const std::string& address) {
    return OpenChannel(ChannelKind::kWorker, address, security);
  };
}

absl::StatusOr<std::unique_ptr<LinkServer>> LinkServer::Start(
    const std::string& host, int port, grpc::Service* link_service,
    grpc::Service* weights_service, TcpLinks* tcp_links, const TlsFiles& tls) {
  if (tcp_links != nullptr && !tls.empty()) {
    return InvalidArgument(
        "links over plain TCP are in the clear, and TLS is asked for");
  }
  auto server = std::unique_ptr<LinkServer>(new LinkServer());
  std::vector<grpc::Service*> services = {link_service};
  if (weights_service != nullptr) services.push_back(weights_service);
  const std::string address = JoinHostPort(host, port);
  if (tcp_links == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(server->server_,
                            StartServer(ServerKind::kWorker, address, services,
                                        &server->port_, tls));
  } else {
    SLUICE_ASSIGN_OR_RETURN(
        server->server_,
        StartServer(ServerKind::kWorker, services, &server->acceptor_));
    SLUICE_ASSIGN_OR_RETURN(
        server->shared_port_,
        SharedPort::Listen(
            address, tcp_links,
            [acceptor = server->acceptor_.get()](FileDescriptor connection) {
              HandOver(std::move(connection), acceptor);
            }));
    server->port_ = server->shared_port_->port();
  }
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
  shared_port_.reset();  // before the server: what it hands over is served
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  server_->Wait();
}

}  // namespace sluice
