#include "proto/grpc_endpoint.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <mutex>

#include "common/host/listen_probe.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int kMinPingIntervalMs = EndpointLimits().keepalive_ms / 2;

constexpr EndpointLimits kCoordinatorServer = {
    .max_receive_bytes = kMaxRequestBytes,
    .max_send_bytes = std::max(kMaxInstructionBytes, kMaxAnswerBytes),
    .min_ping_interval_ms = kMinPingIntervalMs,
    // gRPC's own services need these: one for each of their streams.
    .max_threads = 32,
};

constexpr EndpointLimits kWorkerServer = {
    .max_receive_bytes = kMaxFrameBytes,
    .max_send_bytes = kMaxRequestBytes,
    .min_ping_interval_ms = kMinPingIntervalMs,
};

constexpr EndpointLimits kClientChannel = {
    .max_receive_bytes = kMaxAnswerBytes,
    .max_send_bytes = kMaxRequestBytes,
    // A client that follows a job for days notices by pings that the
    // coordinator's machine is gone, and reconnects soon after it is back.
    .first_reconnect_ms = 100,
    .max_reconnect_ms = 2'000,
};

constexpr EndpointLimits kWorkerChannel = {
    .max_receive_bytes = kMaxInstructionBytes,
    .max_send_bytes = std::max(kMaxFrameBytes, kMaxRequestBytes),
    .first_reconnect_ms = 200,
    .max_reconnect_ms = 2'000,
    // On a shared connection, a link would wait for another epoch's data.
    .share_connections = false,
};

// Calls `set(name, value)` for each argument that servers and channels share.
template <typename Set>
void ForEachArgument(const EndpointLimits& limits, const Set& set) {
  const auto maybe = [&set](const char* name, int64_t value) {
    if (value > 0) set(name, static_cast<int>(value));
  };
  maybe(GRPC_ARG_MAX_METADATA_SIZE, limits.max_metadata_bytes);
  maybe(GRPC_ARG_KEEPALIVE_TIME_MS, limits.keepalive_ms);
  maybe(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, limits.keepalive_timeout_ms);
  // Pings go on while nothing else is sent.
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

grpc::ChannelArguments ArgumentsOf(ChannelKind kind) {
  const EndpointLimits& limits = LimitsOf(kind);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(
      static_cast<int>(limits.max_receive_bytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(limits.max_send_bytes));
  ForEachArgument(limits, [&](const char* name, int value) {
    arguments.SetInt(name, value);
  });
  if (limits.first_reconnect_ms > 0) {
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                     limits.first_reconnect_ms);
  }
  if (limits.max_reconnect_ms > 0) {
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                     limits.max_reconnect_ms);
  }
  if (!limits.share_connections) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  }
  return arguments;
}

void SetLimits(const EndpointLimits& limits, grpc::ServerBuilder* builder) {
  static std::once_flag plugins;  // gRPC keeps them in a global list
  std::call_once(plugins, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  builder->SetMaxReceiveMessageSize(static_cast<int>(limits.max_receive_bytes));
  builder->SetMaxSendMessageSize(static_cast<int>(limits.max_send_bytes));
  ForEachArgument(limits, [&](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  });
  if (limits.min_ping_interval_ms > 0) {
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder->AddChannelArgument(
        GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
        limits.min_ping_interval_ms);
  }
  if (limits.max_threads > 0) {
    grpc::ResourceQuota quota;
    quota.SetMaxThreads(limits.max_threads);
    builder->SetResourceQuota(quota);
  }
}

}  // namespace

const EndpointLimits& LimitsOf(ServerKind kind) {
  return kind == ServerKind::kCoordinator ? kCoordinatorServer : kWorkerServer;
}

const EndpointLimits& LimitsOf(ChannelKind kind) {
  return kind == ChannelKind::kClient ? kClientChannel : kWorkerChannel;
}

absl::StatusOr<std::unique_ptr<grpc::Server>> StartServer(
    ServerKind kind, const std::string& address,
    const std::vector<grpc::Service*>& services, int* port) {
  grpc::ServerBuilder builder;
  SetLimits(LimitsOf(kind), &builder);
  int bound = 0;
  if (!address.empty()) {
    SLUICE_RETURN_IF_ERROR(CheckCanListen(address));
    // gRPC would share a taken port silently with the other process, and each
    // would get some of the other's connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(),
                             &bound);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || (!address.empty() && bound == 0)) {
    return Unavailable(
        "can't listen on ", address.empty() ? "a channel in memory" : address,
        ": the port is taken or the address is not this machine's; choose "
        "another --port");
  }
  if (port != nullptr) *port = bound;
  return server;
}

absl::StatusOr<std::unique_ptr<grpc::Server>> StartServer(
    ServerKind kind, const std::vector<grpc::Service*>& services,
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>* acceptor) {
  grpc::ServerBuilder builder;
  SetLimits(LimitsOf(kind), &builder);
  *acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Internal("gRPC can't build a server");
  return server;
}

std::shared_ptr<grpc::Channel> OpenChannel(ChannelKind kind,
                                           const std::string& address) {
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   ArgumentsOf(kind));
}

std::shared_ptr<grpc::Channel> LocalChannel(ChannelKind kind,
                                            grpc::Server* server) {
  return server->InProcessChannel(ArgumentsOf(kind));
}

}  // namespace sluice
