#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/host/tls_files.h"
#include "proto/wire_limits.h"

namespace grpc {
class Channel;
class Server;
class Service;
namespace experimental {
class ExternalConnectionAcceptor;
}  // namespace experimental
}  // namespace grpc

// The one place that makes gRPC servers and channels, within a process and
// between machines, so that all have limits, and both ends the same ones.

namespace sluice {

enum class ServerKind {
  kCoordinator,  // JobService, ClusterService, WorkerService
  kWorker,       // LinkService
};

enum class ChannelKind {
  kClient,  // of a coordinator's users
  kWorker,  // from workers to their coordinator and to each other
};

// The limits of a server or a channel, and the pings by which it notices a peer
// that is silently gone. A time or count of 0: gRPC's default, or none.
struct EndpointLimits {
  int64_t max_receive_bytes = 0;  // of one message
  int64_t max_send_bytes = 0;
  int64_t max_metadata_bytes =
      kMaxMetadataBytes;  // of one call, statuses included
  // Pings: the silence before one is sent, the time limit of its answer, and
  // the shortest interval allowed to the other end's.
  int keepalive_ms = 10'000;
  int keepalive_timeout_ms = 10'000;
  int min_ping_interval_ms = 0;
  // Used by servers only.
  int max_threads = 0;
  // Used by channels only.
  int first_reconnect_ms = 0;
  int max_reconnect_ms = 0;
  // Channels to one address share a connection.
  bool share_connections = true;
};

const EndpointLimits& LimitsOf(ServerKind kind);
const EndpointLimits& LimitsOf(ChannelKind kind);

// What a channel shows to its server, and asks of it.
struct ChannelSecurity {
  bool tls = false;
  // Used with `tls`: the server's authorities ("": the system's), and what
  // this end shows of itself, if anything.
  TlsFiles files;
  // The name that the server's certificate must have; "": the host's of the
  // address.
  std::string server_name;
  // Sent with every call, in the metadata "authorization"; "": none.
  std::string token;

  // kInvalidArgument says what is wrong with the files or the token.
  absl::Status Validate() const;
};

// A server of `services`, which must outlive it, with reflection and
// grpc.health.v1. With a certificate in `tls` it speaks TLS only, and with
// authorities, clients must show a certificate of one of them; the files are
// read again when they change. Without, it speaks in the clear. Listens on
// `address` ("host:port", port 0 for a free one, which `port` tells), or, if
// that is "", on none: then only LocalChannel reaches it. kUnavailable if the
// address can't be had, kInvalidArgument if the files of `tls` are not right.
absl::StatusOr<std::unique_ptr<grpc::Server>> StartServer(
    ServerKind kind, const std::string& address,
    const std::vector<grpc::Service*>& services, int* port = nullptr,
    const TlsFiles& tls = {});

// A server that listens on no address, and serves connections that its owner
// has accepted and hands to `acceptor`, which must be destroyed before.
// kInternal if it can't be built. `tls` as above.
absl::StatusOr<std::unique_ptr<grpc::Server>> StartServer(
    ServerKind kind, const std::vector<grpc::Service*>& services,
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>* acceptor,
    const TlsFiles& tls = {});

// A channel over TCP to "host:port". Connects when it is used.
std::shared_ptr<grpc::Channel> OpenChannel(
    ChannelKind kind, const std::string& address,
    const ChannelSecurity& security = {});

// A channel to a server of this process.
std::shared_ptr<grpc::Channel> LocalChannel(ChannelKind kind,
                                            grpc::Server* server);

}  // namespace sluice
