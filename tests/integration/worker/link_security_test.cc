// Who may send to a worker's port with mutual TLS and the cluster's secret.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/call_guard.h"
#include "sluice/v1/pipeline.grpc.pb.h"
#include "tests/integration/worker/link_testing.h"
#include "tests/support/http_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_certificates.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"
#include "worker/link/tcp/tcp_connection.h"
#include "worker/link/tcp/tcp_links.h"

namespace sluice {
namespace {

constexpr char kSecret[] = "the cluster's secret";

class LinkSecurityTest : public testing::Test {
 protected:
  LinkSecurityTest() {
    const TlsFiles files = Issue(authority_, "server", 3600);
    auto server = LinkServer::Start("127.0.0.1", 0, service_->service(),
                                    nullptr, nullptr, files);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Files of one end, with a certificate of `issuer`.
  TlsFiles Issue(const TestAuthority& issuer, const std::string& name,
                 long seconds) const {
    const std::string path = (dir_.path() / name).string();
    issuer.Issue(name, path + ".pem", path + ".key", seconds);
    return {.certificate = path + ".pem",
            .key = path + ".key",
            .authorities = authority_.path()};
  }
  // How a stream of frames ends for who shows this; it names no epoch.
  grpc::StatusCode Send(const ChannelSecurity& security) const {
    const auto channel = OpenChannel(
        ChannelKind::kWorker, absl::StrCat("127.0.0.1:", port()), security);
    grpc::ClientContext context;
    const auto stream = v1::LinkService::NewStub(channel)->Send(&context);
    return stream->Finish().error_code();
  }
  int port() const { return server_->port(); }

  const TempDir dir_;
  const TestAuthority authority_{dir_.path().string(), "authority"};
  const TestAuthority other_{dir_.path().string(), "other"};
  const std::unique_ptr<CallGuard> guard_ = MakeClusterGuard(kSecret);
  TestSink sink_;
  const std::unique_ptr<LinkService> service_ =
      LinkService::Create(&sink_, {}, nullptr, guard_.get());
  std::unique_ptr<LinkServer> server_;
};

constexpr auto kNoConnection = grpc::StatusCode::UNAVAILABLE;

TEST_F(LinkSecurityTest, OnlyMachinesOfTheClusterSend) {
  const TlsFiles ours = Issue(authority_, "ours", 3600);
  // It is told that the stream names no epoch.
  EXPECT_EQ(Send({.tls = true, .files = ours, .token = kSecret}),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Send({.tls = true, .files = ours}),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Send({.tls = true, .files = ours, .token = "another secret"}),
            grpc::StatusCode::UNAUTHENTICATED);
  const ChannelSecurity nameless = {.tls = true,
                                    .files = {.authorities = authority_.path()},
                                    .token = kSecret};
  EXPECT_EQ(Send(nameless), kNoConnection);
  for (const TlsFiles& files :
       {Issue(other_, "strangers", 3600), Issue(authority_, "expired", -60)}) {
    EXPECT_EQ(Send({.tls = true, .files = files, .token = kSecret}),
              kNoConnection)
        << files.certificate;
  }
  EXPECT_EQ(Send({.token = kSecret}), kNoConnection);  // in the clear
}

TEST_F(LinkSecurityTest, NothingInTheClearIsAnswered) {
  // The connection of a TCP link, and what else may come.
  EXPECT_FALSE(TcpConnection::Connect(absl::StrCat("ipv4:127.0.0.1:", port()),
                                      *TcpLinks::NewId(), absl::Seconds(20))
                   .ok());
  for (const char* text : {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                           "GET / HTTP/1.0\r\n\r\n", "\x16 no handshake"}) {
    const HttpClient raw(port());
    raw.Send(text);
    shutdown(raw.fd(), SHUT_WR);
    EXPECT_THAT(raw.ReadAll(), testing::Not(testing::HasSubstr("HTTP")));
  }
}

TEST_F(LinkSecurityTest, LinksInTheClearDoNotStandBesideTls) {
  TcpLinks tcp;
  EXPECT_TRUE(absl::IsInvalidArgument(
      LinkServer::Start("127.0.0.1", 0, service_->service(), nullptr, &tcp,
                        Issue(authority_, "second", 3600))
          .status()));
}

}  // namespace
}  // namespace sluice
