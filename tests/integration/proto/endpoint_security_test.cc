// TLS and tokens between servers and channels, over loopback.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "proto/grpc_endpoint.h"
#include "sluice/v1/jobs.grpc.pb.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_certificates.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// Answers with the credential that came, as the job's id.
class Echo : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest*,
                      v1::Job* response) override {
    std::string all;
    const auto [begin, end] =
        context->client_metadata().equal_range("authorization");
    for (auto it = begin; it != end; ++it) {
      absl::StrAppend(&all, std::string(it->second.data(), it->second.size()));
    }
    response->set_id(all);
    return grpc::Status::OK;
  }
};

class EndpointSecurityTest : public testing::Test {
 protected:
  EndpointSecurityTest() {
    authority_.Issue("server", server_.certificate, server_.key);
    authority_.Issue("client", Path("client.pem"), Path("client.key"));
  }
  ~EndpointSecurityTest() override {
    if (running_) running_->Shutdown();
  }

  std::string Path(const std::string& name) const {
    return (dir_.path() / name).string();
  }
  void Start(const TlsFiles& files) {
    auto server = StartServer(ServerKind::kCoordinator, "127.0.0.1:0", {&echo_},
                              &port_, files);
    ASSERT_TRUE(server.ok()) << server.status();
    running_ = *std::move(server);
  }
  // The credential that the server saw, or the error.
  std::string Call(const ChannelSecurity& security) const {
    const auto channel = OpenChannel(
        ChannelKind::kWorker, absl::StrCat("127.0.0.1:", port_), security);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(20));
    v1::Job job;
    const grpc::Status status =
        v1::JobService::NewStub(channel)->GetJob(&context, {}, &job);
    if (status.ok()) return absl::StrCat("ok ", job.id());
    return absl::StrCat("code ", status.error_code());
  }
  ChannelSecurity Trusting(const TestAuthority& authority) const {
    return {.tls = true, .files = {.authorities = authority.path()}};
  }

  const TempDir dir_;
  const TestAuthority authority_{dir_.path().string(), "authority"};
  const TestAuthority other_{dir_.path().string(), "other"};
  TlsFiles server_ = {.certificate = Path("server.pem"),
                      .key = Path("server.key")};
  Echo echo_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> running_;
};

constexpr char kNoConnection[] = "code 14";

TEST_F(EndpointSecurityTest, ClientsTrustTheServersAuthorityOnly) {
  Start(server_);
  EXPECT_EQ(Call(Trusting(authority_)), "ok ");
  EXPECT_EQ(Call(Trusting(other_)), kNoConnection);
  EXPECT_EQ(Call({}), kNoConnection);  // in the clear
}

TEST_F(EndpointSecurityTest, TheServersNameIsChecked) {
  Start(server_);
  ChannelSecurity security = Trusting(authority_);
  security.server_name = "localhost";
  EXPECT_EQ(Call(security), "ok ");
  security.server_name = "elsewhere";
  EXPECT_EQ(Call(security), kNoConnection);
}

TEST_F(EndpointSecurityTest, WithMutualTlsClientsShowACertificate) {
  server_.authorities = authority_.path();
  Start(server_);
  ChannelSecurity security = Trusting(authority_);
  EXPECT_EQ(Call(security), kNoConnection);
  security.files.certificate = Path("client.pem");
  security.files.key = Path("client.key");
  EXPECT_EQ(Call(security), "ok ");
  other_.Issue("client", Path("other.pem"), Path("other.key"));
  security.files.certificate = Path("other.pem");
  security.files.key = Path("other.key");
  EXPECT_EQ(Call(security), kNoConnection);
}

TEST_F(EndpointSecurityTest, ATokenGoesWithEveryCallInTheClearAndNot) {
  Start(server_);
  ChannelSecurity security = Trusting(authority_);
  security.token = "abc";
  EXPECT_EQ(Call(security), "ok Bearer abc");
  running_->Shutdown();
  Start({});
  EXPECT_EQ(Call({.token = "abc"}), "ok Bearer abc");
}

TEST_F(EndpointSecurityTest, ARenewedCertificateIsUsedWithoutARestart) {
  Start(server_);
  EXPECT_EQ(Call(Trusting(authority_)), "ok ");
  other_.Issue("renewed", server_.certificate, server_.key);
  while (Call(Trusting(other_)) != "ok ") {
  }
}

TEST_F(EndpointSecurityTest, FilesThatAreNotRightAreNamed) {
  int port = 0;
  const auto why = [&](const TlsFiles& files) {
    return std::string(StartServer(ServerKind::kCoordinator, "127.0.0.1:0",
                                   {&echo_}, &port, files)
                           .status()
                           .message());
  };
  EXPECT_THAT(why({.certificate = "/nowhere", .key = "/nowhere"}),
              HasSubstr("/nowhere"));
  EXPECT_THAT(why({.authorities = authority_.path()}),
              HasSubstr("needs a certificate"));
  EXPECT_FALSE(ChannelSecurity{.token = "a b"}.Validate().ok());
  EXPECT_FALSE(ChannelSecurity{.files = {.authorities = authority_.path()}}
                   .Validate()
                   .ok());
  EXPECT_TRUE(Trusting(authority_).Validate().ok());
}

}  // namespace
}  // namespace sluice
