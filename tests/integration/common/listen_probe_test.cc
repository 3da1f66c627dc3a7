#include "common/host/listen_probe.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace sluice {
namespace {

using testing::HasSubstr;

TEST(ListenProbeTest, FreeAndTaken) {
  EXPECT_TRUE(CheckCanListen("127.0.0.1:0").ok());
  EXPECT_TRUE(CheckCanListen("localhost:0").ok());
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t length = sizeof(address);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string taken =
      "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const absl::Status status = CheckCanListen(taken);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(taken));
  EXPECT_THAT(std::string(status.message()), HasSubstr("choose another"));
  close(fd);
  EXPECT_TRUE(CheckCanListen(taken).ok());
}

TEST(ListenProbeTest, NotThisMachinesAddress) {
  for (const char* address : {"192.0.2.1:0", "no.such.host.invalid:1",
                              "127.0.0.1", ":80", "127.0.0.1:port", ""}) {
    EXPECT_EQ(CheckCanListen(address).code(), absl::StatusCode::kUnavailable)
        << address;
  }
}

// All that a name or a wildcard stands for has one port, which is then taken.
TEST(ListenProbeTest, AllAddresses) {
  for (const std::string host : {"127.0.0.1", "localhost", "0.0.0.0"}) {
    const auto sockets = ListenOnAll(host + ":0");
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    const int port = PortOf(sockets->front().get());
    EXPECT_GT(port, 0);
    for (const FileDescriptor& socket : *sockets) {
      EXPECT_EQ(PortOf(socket.get()), port);
    }
    const auto second =
        ListenOnAll("127.0.0.1:" + std::to_string(port), "; choose another");
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << host;
    EXPECT_THAT(second.status().ToString(), HasSubstr("choose another"));
  }
  EXPECT_EQ(ListenOnAll("192.0.2.1:0").status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(ListenProbeTest, WhoReachesAListener) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "[::1]",
                           "localhost", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(*IsLoopbackListener(host)) << host;
  }
  for (const char* host :
       {"0.0.0.0", "::", "[::]", "0", "10.1.2.3", "128.0.0.1", "fe80::1",
        "::ffff:10.0.0.1", "::ffff:0.0.0.0"}) {
    EXPECT_FALSE(*IsLoopbackListener(host)) << host;
  }
  // A name is what its addresses are, whatever it looks like.
  for (const char* host : {"127.0.0.1.invalid", ""}) {
    EXPECT_TRUE(absl::IsUnavailable(IsLoopbackListener(host).status())) << host;
  }
}

}  // namespace
}  // namespace sluice
