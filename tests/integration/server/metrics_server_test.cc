#include "common/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics/http_server.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
        0);
  }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Client() {
    if (fd_ >= 0) close(fd_);
  }

  void Send(const std::string& text) {
    send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // Reads until the server closes.
  std::string ReadAll() {
    std::string all;
    char buffer[4096];
    ssize_t n;
    while ((n = recv(fd_, buffer, sizeof(buffer), 0)) > 0) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  int fd_;
};

std::string Exchange(int port, const std::string& request) {
  Client client(port);
  client.Send(request);
  return client.ReadAll();
}

std::string Get(int port, const std::string& path) {
  return Exchange(port, "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
}

int PortOf(const MetricsServer& server) {
  return std::stoi(server.address().substr(server.address().rfind(':') + 1));
}

TEST(MetricsServerTest, ServesMetricsAndProbes) {
  auto server = MetricsServer::Start("127.0.0.1", 0);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->registry()->GetCounter("sluice_test_total", "of a test")->Add(3);
  const int port = PortOf(**server);
  const std::string metrics = Get(port, "/metrics?x=y");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("\nsluice_test_total 3\n"));
  EXPECT_THAT(metrics, Not(HasSubstr("exposer")));
  EXPECT_THAT(Get(port, "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get(port, "/"), HasSubstr("/metrics"));
  EXPECT_THAT(Get(port, "/other"), HasSubstr("404"));
}

TEST(MetricsServerTest, ReadyzSaysWhyNot) {
  auto server = MetricsServer::Start("127.0.0.1", 0);
  const int port = PortOf(**server);
  EXPECT_THAT(Get(port, "/readyz"), HasSubstr("not ready: starting"));
  (*server)->SetReady(absl::UnavailableError("waiting for workers"));
  const std::string waiting = Get(port, "/readyz");
  EXPECT_THAT(waiting, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(waiting, HasSubstr("waiting for workers"));
  (*server)->SetReady(absl::OkStatus());
  EXPECT_THAT(Get(port, "/readyz"), StartsWith("HTTP/1.1 200"));
}

TEST(MetricsServerTest, ATakenPortIsSaid) {
  auto first = MetricsServer::Start("127.0.0.1", 0);
  const auto second = MetricsServer::Start("127.0.0.1", PortOf(**first));
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("Address already in use"));
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("--metrics-port"));
}

class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpServer::Options options) {
    options.host = "127.0.0.1";
    options.answer = [this](absl::string_view path) {
      return HttpServer::Answer{.body = std::string(size_, 'x') +
                                        std::string(path)};
    };
    auto server = HttpServer::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  size_t size_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, WhatIsNoRequestIsRefused) {
  Start({});
  const int port = server_->port();
  EXPECT_THAT(Exchange(port, "POST /a HTTP/1.1\r\n\r\n"), HasSubstr(" 405 "));
  EXPECT_THAT(Exchange(port, "hello\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(Exchange(port, "GET a HTTP/1.1\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(
      Exchange(port, "GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n"),
      HasSubstr(" 431 "));
  const std::string head = Exchange(port, "HEAD /a HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 2\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(HttpServerTest, ARequestMayComeInPieces) {
  Start({});
  Client client(server_->port());
  for (const char c : std::string("GET /a HTTP/1.1\r\nHost: x\r\n\r\n")) {
    client.Send(std::string(1, c));
  }
  EXPECT_THAT(client.ReadAll(), HasSubstr("\r\n\r\n/a"));
}

TEST_F(HttpServerTest, HalfARequestIsInNobodysWayAndEnds) {
  HttpServer::Options options;
  options.timeout = absl::Milliseconds(200);
  Start(options);
  std::vector<Client> half;
  for (int i = 0; i < 100; ++i) {
    half.emplace_back(server_->port()).Send("GET /a HT");
  }
  EXPECT_THAT(Get(server_->port(), "/b"), HasSubstr("\r\n\r\n/b"));
  for (Client& client : half) EXPECT_EQ(client.ReadAll(), "");
}

TEST_F(HttpServerTest, ANewConnectionTakesTheOldestsPlace) {
  HttpServer::Options options;
  options.timeout = absl::Hours(1);
  options.max_connections = 3;
  Start(options);
  std::vector<Client> half;
  for (int i = 0; i < 10; ++i) half.emplace_back(server_->port()).Send("GET ");
  EXPECT_THAT(Get(server_->port(), "/b"), HasSubstr("\r\n\r\n/b"));
  EXPECT_EQ(half[0].ReadAll(), "");
}

TEST_F(HttpServerTest, AnAnswerThatIsNotReadIsInNobodysWay) {
  size_ = 50 << 20;  // more than the system keeps
  HttpServer::Options options;
  options.timeout = absl::Hours(1);
  Start(options);
  std::vector<Client> mute;
  for (int i = 0; i < 3; ++i) {
    mute.emplace_back(server_->port()).Send("GET /a HTTP/1.1\r\n\r\n");
  }
  EXPECT_GT(Get(server_->port(), "/b").size(), size_);
}

}  // namespace
}  // namespace sluice
