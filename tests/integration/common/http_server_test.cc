#include "common/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/http/http_tls.h"
#include "common/status_macros.h"
#include "tests/support/http_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_certificates.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpServer::Options options) {
    options.host = "127.0.0.1";
    const auto echo = [this](const HttpRequest& request) {
      return HttpAnswer{.body = std::string(size_, 'x') + request.path +
                                request.body};
    };
    options.routes = {
        {.method = "GET", .pattern = "/a", .handler = echo, .quick = true},
        {.method = "GET", .pattern = "/b", .handler = echo},
        {.method = "POST",
         .pattern = "/a",
         .handler = echo,
         .max_body_bytes = 10},
        {.method = "GET",
         .pattern = "/jobs/{job}/at/{place}",
         .handler =
             [](const HttpRequest& request) {
               return HttpAnswer{.body = request.params.at("job") + "|" +
                                         request.params.at("place") + "|" +
                                         request.query.at("q")};
             }},
        {.method = "POST",
         .pattern = "/closed",
         .scope = Scope::kAdmin,
         .handler = echo,
         .max_body_bytes = 10},
    };
    auto server = HttpServer::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int port() const { return server_->port(); }
  // Sends a request with a Host header that is the connection's last.
  std::string Ask(const std::string& line, const std::string& rest) const {
    return HttpExchange(port(), line +
                                    " HTTP/1.1\r\nHost: x\r\n"
                                    "Connection: close\r\n" +
                                    rest);
  }
  size_t size_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, WhatIsNoRequestIsRefused) {
  Start({});
  EXPECT_THAT(HttpExchange(port(), "hello\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(HttpExchange(port(), "GET a HTTP/1.1\r\nHost: x\r\n\r\n"),
              HasSubstr(" 400 "));
  EXPECT_THAT(HttpExchange(port(), "GET /a HTTP/1.1\r\n\r\n"),
              HasSubstr("one Host header"));
  EXPECT_THAT(
      HttpExchange(port(), "GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
      HasSubstr("one Host header"));
  EXPECT_THAT(Ask("GET /a%0d%0aX: y", "\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(Ask("GET /%zz", "\r\n"), HasSubstr("hexadecimal"));
  EXPECT_THAT(Ask("GET /" + std::string(100'000, 'a'), "\r\n"),
              HasSubstr(" 431 "));
}

TEST_F(HttpServerTest, OtherMethodsAndPathsAreSaid) {
  Start({});
  const std::string other = Ask("DELETE /a", "\r\n");
  EXPECT_THAT(other, StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(other, HasSubstr("Allow: GET, HEAD, POST\r\n"));
  EXPECT_THAT(Ask("GET /c", "\r\n"), HasSubstr(" 404 "));
  EXPECT_THAT(Ask("GET /c", "\r\n"), HasSubstr("there are /a, /b"));
  EXPECT_THAT(Ask("GET /../a", "\r\n"), HasSubstr(" 404 "));
  const std::string head = Ask("HEAD /a", "\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, HasSubstr("Content-Length: 2\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(HttpServerTest, PartsOfThePathAndOfTheQueryAreDecoded) {
  Start({});
  EXPECT_THAT(HttpGet(port(), "/jobs/a%2Fb/at/%C3%A9?q=1+2%2B&r"),
              HasSubstr("\r\n\r\na/b|\xC3\xA9|1 2+"));
  EXPECT_THAT(HttpGet(port(), "/jobs//at/x?q=1"), HasSubstr(" 404 "));
}

TEST_F(HttpServerTest, AConnectionIsKeptForFurtherRequests) {
  Start({});
  const HttpClient client(port());
  client.Send(
      "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n123");
  EXPECT_THAT(client.ReadUntil("/a123"), HasSubstr("\r\n\r\n/aHTTP/1.1 200"));
  client.Send(
      "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
      "Connection: close\r\n\r\n2\r\nxy\r\n0\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), HasSubstr("\r\n\r\n/axy"));
}

// Shapes that two servers in a row could take for different requests.
TEST_F(HttpServerTest, AmbiguousRequestsAreRefusedAndTheConnectionCloses) {
  Start({});
  for (const char* headers : {
           "Content-Length: 3\r\nContent-Length: 4\r\n",
           "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
           "Transfer-Encoding: xchunked\r\n",
           "Transfer-Encoding: chunked, identity\r\n",
           "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding : chunked\r\n",
           "Content-Length: -1\r\n",
           "Content-Length: +3\r\n",
           "Content-Length: 3 3\r\n",
           "Content-Length: 99999999999999999999999\r\n",
           "Content-Length: 0x3\r\n",
       }) {
    const std::string answer = HttpExchange(
        port(), std::string("POST /a HTTP/1.1\r\nHost: x\r\n") + headers +
                    "\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << headers;
    EXPECT_THAT(answer, Not(HasSubstr("/b"))) << headers;
  }
  EXPECT_THAT(HttpExchange(port(),
                           "POST /a HTTP/1.0\r\nHost: x\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpServerTest, ABodyBeyondTheRoutesLimitIsRefused) {
  Start({});
  EXPECT_THAT(Ask("POST /a", "Content-Length: 10\r\n\r\n0123456789"),
              HasSubstr("\r\n\r\n/a0123456789"));
  EXPECT_THAT(Ask("POST /a", "Content-Length: 11\r\n\r\n0123456789a"),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(
      Ask("POST /a", "Transfer-Encoding: chunked\r\n\r\nb\r\n0123456789a\r\n"),
      StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Ask("GET /a", "Content-Length: 1\r\n\r\nx"),
              StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpServerTest, NobodyReadsTheBodyOfWhoeverMayNotSendIt) {
  HttpServer::Options options;
  options.authorize = [](HttpRequest* request, Scope scope) {
    if (scope != Scope::kAdmin) return absl::OkStatus();
    if (request->Header("authorization") == "Bearer x") return absl::OkStatus();
    return absl::UnauthenticatedError("a token is needed");
  };
  Start(std::move(options));
  EXPECT_THAT(Ask("POST /closed",
                  "authorization: Bearer x\r\nContent-Length: 1\r\n\r\ny"),
              HasSubstr("\r\n\r\n/closedy"));
  const std::string refused = Ask("POST /closed", "Content-Length: 1\r\n\r\n");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(refused, HasSubstr("WWW-Authenticate: Bearer\r\n"));
  EXPECT_THAT(refused, HasSubstr("\"message\":\"a token is needed\""));
}

TEST_F(HttpServerTest, ARequestMayComeInPieces) {
  Start({});
  const HttpClient client(port());
  for (const char c :
       std::string("GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) {
    client.Send(std::string(1, c));
  }
  EXPECT_THAT(client.ReadAll(), HasSubstr("\r\n\r\n/b"));
}

TEST_F(HttpServerTest, HalfARequestIsInNobodysWayAndEnds) {
  HttpServer::Options options;
  options.timeout = absl::Milliseconds(200);
  Start(std::move(options));
  std::vector<HttpClient> half;
  for (int i = 0; i < 100; ++i) {
    half.emplace_back(port()).Send(i % 2 == 0
                                       ? "GET /a HT"
                                       : "POST /a HTTP/1.1\r\nHost: x\r\n"
                                         "Content-Length: 9\r\n\r\n1");
  }
  EXPECT_THAT(HttpGet(port(), "/b"), HasSubstr("\r\n\r\n/b"));
  for (const HttpClient& client : half) EXPECT_EQ(client.ReadAll(), "");
}

TEST_F(HttpServerTest, ANewConnectionTakesTheOldestsPlace) {
  HttpServer::Options options;
  options.timeout = absl::Hours(1);
  options.max_connections = 3;
  Start(std::move(options));
  std::vector<HttpClient> half;
  for (int i = 0; i < 10; ++i) half.emplace_back(port()).Send("GET ");
  EXPECT_THAT(HttpGet(port(), "/b"), HasSubstr("\r\n\r\n/b"));
  EXPECT_EQ(half[0].ReadAll(), "");
}

TEST_F(HttpServerTest, AnAnswerThatIsNotReadIsInNobodysWay) {
  size_ = 50 << 20;  // more than the system keeps
  HttpServer::Options options;
  options.timeout = absl::Hours(1);
  Start(std::move(options));
  std::vector<HttpClient> mute;
  for (int i = 0; i < 3; ++i) {
    mute.emplace_back(port()).Send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  EXPECT_GT(HttpGet(port(), "/b").size(), size_);
}

// A client of TLS that trusts one authority.
class TlsClient {
 public:
  TlsClient(int port, const std::string& authority)
      : client_(port), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_load_verify_locations(context_, authority.c_str(), nullptr);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  void Show(const std::string& certificate, const std::string& key) {
    SSL_CTX_use_certificate_chain_file(context_, certificate.c_str());
    SSL_CTX_use_PrivateKey_file(context_, key.c_str(), SSL_FILETYPE_PEM);
  }
  // The whole answer; "" if there is none.
  std::string Get(const std::string& path) {
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, client_.fd());
    if (SSL_connect(ssl_) != 1) return "";
    const std::string request = "GET " + path +
                                " HTTP/1.1\r\nHost: x\r\n"
                                "Connection: close\r\n\r\n";
    SSL_write(ssl_, request.data(), static_cast<int>(request.size()));
    std::string all;
    char buffer[4096];
    int n;
    while ((n = SSL_read(ssl_, buffer, sizeof(buffer))) > 0) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  HttpClient client_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
};

class HttpTlsTest : public HttpServerTest {
 protected:
  void StartTls(bool mutual) {
    files_ = {.certificate = dir_.path().string() + "/server.pem",
              .key = dir_.path().string() + "/server.key",
              .authorities = mutual ? authority_.path() : ""};
    authority_.Issue("server", files_.certificate, files_.key);
    HttpServer::Options options;
    auto tls = HttpTls::Create(files_);
    ASSERT_TRUE(tls.ok()) << tls.status();
    options.tls = *std::move(tls);
    Start(std::move(options));
  }

  const TempDir dir_;
  const TestAuthority authority_{dir_.path().string(), "authority"};
  const TestAuthority other_{dir_.path().string(), "other"};
  TlsFiles files_;
};

TEST_F(HttpTlsTest, ServesWhoeverTrustsItsCertificate) {
  StartTls(false);
  EXPECT_THAT(TlsClient(port(), authority_.path()).Get("/b"),
              HasSubstr("\r\n\r\n/b"));
  EXPECT_EQ(TlsClient(port(), other_.path()).Get("/b"), "");
  EXPECT_EQ(HttpGet(port(), "/b"), "");  // in the clear
}

TEST_F(HttpTlsTest, WithMutualTlsClientsShowACertificateOfTheAuthority) {
  StartTls(true);
  EXPECT_EQ(TlsClient(port(), authority_.path()).Get("/b"), "");
  for (const auto& [issuer, seconds, fine] :
       {std::tuple(&authority_, 3600L, true), std::tuple(&other_, 3600L, false),
        std::tuple(&authority_, -60L, false)}) {
    const std::string path = dir_.path().string() + "/client";
    issuer->Issue("client", path + ".pem", path + ".key", seconds);
    TlsClient client(port(), authority_.path());
    client.Show(path + ".pem", path + ".key");
    EXPECT_EQ(client.Get("/b") != "", fine);
  }
}

TEST_F(HttpTlsTest, ARenewedCertificateIsUsedAndABrokenOneIsNot) {
  StartTls(false);
  other_.Issue("renewed", files_.certificate, files_.key);
  EXPECT_THAT(TlsClient(port(), other_.path()).Get("/b"),
              HasSubstr("\r\n\r\n/b"));
  authority_.Issue("half", files_.certificate,
                   dir_.path().string() + "/elsewhere.key");
  EXPECT_THAT(TlsClient(port(), other_.path()).Get("/b"),
              HasSubstr("\r\n\r\n/b"));
}

TEST_F(HttpTlsTest, FilesThatDoNotFitAreNamed) {
  const std::string a = dir_.path().string() + "/a",
                    b = dir_.path().string() + "/b";
  authority_.Issue("a", a + ".pem", a + ".key");
  authority_.Issue("b", b + ".pem", b + ".key");
  const auto why = [](const TlsFiles& files) {
    return std::string(HttpTls::Create(files).status().message());
  };
  EXPECT_THAT(why({.certificate = a + ".pem", .key = b + ".key"}),
              HasSubstr("is not the key of the certificate"));
  EXPECT_THAT(why({.certificate = a + ".pem"}), HasSubstr("key is missing"));
  EXPECT_THAT(why({.certificate = a + ".key", .key = a + ".key"}),
              HasSubstr("no certificate"));
  EXPECT_THAT(why({.certificate = a + ".pem", .key = a + ".pem"}),
              HasSubstr("no private key"));
  EXPECT_THAT(why({.certificate = "/nowhere", .key = "/nowhere"}),
              HasSubstr("/nowhere"));
  authority_.Issue("old", a + ".pem", a + ".key", -60);
  EXPECT_THAT(why({.certificate = a + ".pem", .key = a + ".key"}),
              HasSubstr("has expired"));
}

}  // namespace
}  // namespace sluice
