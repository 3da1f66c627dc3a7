#include "worker/link/link_server.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/listen_probe.h"
#include "common/status_macros.h"
#include "worker/link/frame.h"

namespace sluice {
namespace {

constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kMaxReconnectMs = 2'000;
constexpr char kLinkServiceName[] = "sluice.v1.LinkService";

}  // namespace

void ConfigureLinkServer(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxFrameBytes);
  builder->SetMaxSendMessageSize(kMaxFrameBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveMs / 2);
}

ChannelFactory TcpChannels() {
  return [](const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxFrameBytes);
    arguments.SetMaxSendMessageSize(kMaxFrameBytes);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
    // Without this, channels to one address share a connection, and a link
    // would wait behind what another epoch still has in its socket.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        address, grpc::InsecureChannelCredentials(), arguments);
  };
}

absl::StatusOr<std::unique_ptr<LinkServer>> LinkServer::Start(
    const std::string& host, int port, grpc::Service* link_service) {
  static std::once_flag plugins;  // gRPC keeps them in a global list
  std::call_once(plugins, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  auto server = std::unique_ptr<LinkServer>(new LinkServer());
  const std::string address = JoinHostPort(host, port);
  SLUICE_RETURN_IF_ERROR(CheckCanListen(address));
  grpc::ServerBuilder builder;
  ConfigureLinkServer(&builder);
  // gRPC would share a port with a second worker, and each would get some of
  // the other's connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(),
                           &server->port_);
  builder.RegisterService(link_service);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || server->port_ == 0) {
    return absl::UnavailableError(absl::StrCat(
        "can't listen on ", address,
        ": the port is taken or the address is not this machine's"));
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
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  server_->Wait();
}

std::string JoinHostPort(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return ipv6 ? absl::StrCat("[", host, "]:", port)
              : absl::StrCat(host, ":", port);
}

}  // namespace sluice
