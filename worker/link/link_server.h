#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/grpc_endpoint.h"
#include "worker/channel_factory.h"

namespace grpc {
class Server;
class Service;
namespace experimental {
class ExternalConnectionAcceptor;
}  // namespace experimental
}  // namespace grpc

namespace sluice {

class SharedPort;
class TcpLinks;

// A factory of TCP channels from a worker to its coordinator and to others.
ChannelFactory TcpChannels(const ChannelSecurity& security = {});

// A worker's gRPC server: LinkService, WeightsService, grpc.health.v1 and
// reflection. Thread-safe.
class LinkServer {
 public:
  // Port 0 takes a free one. kUnavailable if the address can't be bound.
  // `link_service`, and `weights_service` and `tcp_links` if they are not null,
  // must outlive the server. Its port takes connections of `tcp_links`, too,
  // which are in the clear: with `tls` there must be none. `tls` as for
  // StartServer.
  static absl::StatusOr<std::unique_ptr<LinkServer>> Start(
      const std::string& host, int port, grpc::Service* link_service,
      grpc::Service* weights_service = nullptr, TcpLinks* tcp_links = nullptr,
      const TlsFiles& tls = {});
  ~LinkServer();

  int port() const { return port_; }
  // Sets grpc.health.v1's answer for the server and for LinkService.
  void SetServing(bool serving);
  // Ends all calls. Called by the destructor too.
  void Shutdown();

 private:
  LinkServer();
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  // If there are TCP links; the acceptor takes all other connections.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<SharedPort> shared_port_;
};

}  // namespace sluice
