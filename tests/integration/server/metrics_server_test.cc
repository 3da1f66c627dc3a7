#include "common/metrics/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/http_client.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

int PortOf(const MetricsServer& server) {
  return std::stoi(server.address().substr(server.address().rfind(':') + 1));
}

TEST(MetricsServerTest, ServesMetricsAndProbes) {
  auto server = MetricsServer::Start({.host = "127.0.0.1"});
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->registry()->GetCounter("sluice_test_total", "of a test")->Add(3);
  const int port = PortOf(**server);
  const std::string metrics = HttpGet(port, "/metrics?x=y");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("\nsluice_test_total 3\n"));
  EXPECT_THAT(metrics, Not(HasSubstr("exposer")));
  EXPECT_THAT(HttpGet(port, "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(HttpGet(port, "/"), HasSubstr("/metrics"));
  EXPECT_THAT(HttpGet(port, "/other"), HasSubstr("404"));
}

TEST(MetricsServerTest, ReadyzSaysWhyNot) {
  auto server = MetricsServer::Start({.host = "127.0.0.1"});
  const int port = PortOf(**server);
  EXPECT_THAT(HttpGet(port, "/readyz"), HasSubstr("not ready: starting"));
  (*server)->SetReady(absl::UnavailableError("waiting for workers"));
  const std::string waiting = HttpGet(port, "/readyz");
  EXPECT_THAT(waiting, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(waiting, HasSubstr("waiting for workers"));
  (*server)->SetReady(absl::OkStatus());
  EXPECT_THAT(HttpGet(port, "/readyz"), StartsWith("HTTP/1.1 200"));
}

TEST(MetricsServerTest, ATakenPortIsSaid) {
  auto first = MetricsServer::Start({.host = "127.0.0.1"});
  const auto second =
      MetricsServer::Start({.host = "127.0.0.1", .port = PortOf(**first)});
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("Address already in use"));
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("--metrics-port"));
}

}  // namespace
}  // namespace sluice
