#include "proto/grpc_endpoint.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <mutex>
#include <utility>

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

// The seconds between two looks at the files of certificates.
constexpr unsigned kRefreshSeconds = 1;

namespace tls_api = grpc::experimental;

std::shared_ptr<tls_api::FileWatcherCertificateProvider> Watch(
    const TlsFiles& files) {
  return std::make_shared<tls_api::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.authorities, kRefreshSeconds);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> CredentialsOf(
    const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureServerCredentials();
  SLUICE_RETURN_IF_ERROR(CheckTlsFiles(files));
  if (files.certificate.empty()) {
    return InvalidArgument("a server of TLS needs a certificate and its key");
  }
  tls_api::TlsServerCredentialsOptions options(Watch(files));
  options.watch_identity_key_cert_pairs();
  if (files.authorities.empty()) {
    options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  } else {
    options.watch_root_certs();
    options.set_cert_request_type(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls_api::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(
    const ChannelSecurity& security) {
  if (!security.tls) return grpc::InsecureChannelCredentials();
  tls_api::TlsChannelCredentialsOptions options;
  const TlsFiles& files = security.files;
  // Without files, gRPC takes the system's authorities.
  if (!files.empty()) options.set_certificate_provider(Watch(files));
  if (!files.authorities.empty()) options.watch_root_certs();
  if (!files.certificate.empty()) options.watch_identity_key_cert_pairs();
  return tls_api::TlsCredentials(options);
}

// Adds the token to each call. gRPC's own credentials of calls would not go
// over connections in the clear, which are for loopback.
class TokenInterceptor : public tls_api::Interceptor {
 public:
  explicit TokenInterceptor(const std::string* value) : value_(value) {}
  void Intercept(tls_api::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            tls_api::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", *value_);
    }
    methods->Proceed();
  }

 private:
  const std::string* const value_;
};

class TokenInterceptorFactory
    : public tls_api::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(const std::string& token)
      : value_("Bearer " + token) {}
  tls_api::Interceptor* CreateClientInterceptor(
      tls_api::ClientRpcInfo*) override {
    return new TokenInterceptor(&value_);
  }

 private:
  const std::string value_;
};

}  // namespace

absl::Status ChannelSecurity::Validate() const {
  SLUICE_RETURN_IF_ERROR(CheckTlsFiles(files));
  if (!tls && !files.empty()) {
    return InvalidArgument("certificates are given, but TLS is off");
  }
  for (const char c : token) {
    if (c <= ' ' || c >= 127) {
      return InvalidArgument("the token has characters that no token has");
    }
  }
  return absl::OkStatus();
}

const EndpointLimits& LimitsOf(ServerKind kind) {
  return kind == ServerKind::kCoordinator ? kCoordinatorServer : kWorkerServer;
}

const EndpointLimits& LimitsOf(ChannelKind kind) {
  return kind == ChannelKind::kClient ? kClientChannel : kWorkerChannel;
}

absl::StatusOr<std::unique_ptr<grpc::Server>> StartServer(
    ServerKind kind, const std::string& address,
    const std::vector<grpc::Service*>& services, int* port,
    const TlsFiles& tls) {
  SLUICE_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(tls));
  grpc::ServerBuilder builder;
  SetLimits(LimitsOf(kind), &builder);
  int bound = 0;
  if (!address.empty()) {
    SLUICE_RETURN_IF_ERROR(CheckCanListen(address));
    // gRPC would share a taken port silently with the other process, and each
    // would get some of the other's connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(address, credentials, &bound);
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
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>* acceptor,
    const TlsFiles& tls) {
  SLUICE_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(tls));
  grpc::ServerBuilder builder;
  SetLimits(LimitsOf(kind), &builder);
  *acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      credentials);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Internal("gRPC can't build a server");
  return server;
}

std::shared_ptr<grpc::Channel> OpenChannel(ChannelKind kind,
                                           const std::string& address,
                                           const ChannelSecurity& security) {
  grpc::ChannelArguments arguments = ArgumentsOf(kind);
  if (!security.server_name.empty()) {
    arguments.SetSslTargetNameOverride(security.server_name);
  }
  if (security.token.empty()) {
    return grpc::CreateCustomChannel(address, CredentialsOf(security),
                                     arguments);
  }
  std::vector<std::unique_ptr<tls_api::ClientInterceptorFactoryInterface>>
      interceptors;
  interceptors.push_back(
      std::make_unique<TokenInterceptorFactory>(security.token));
  return tls_api::CreateCustomChannelWithInterceptors(
      address, CredentialsOf(security), arguments, std::move(interceptors));
}

std::shared_ptr<grpc::Channel> LocalChannel(ChannelKind kind,
                                            grpc::Server* server) {
  return server->InProcessChannel(ArgumentsOf(kind));
}

}  // namespace sluice
