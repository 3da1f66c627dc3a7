#include "common/http/http_server.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <chrono>
#include <limits>
#include <list>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host/file_descriptor.h"
#include "common/host/host_port.h"
#include "common/host/listen_probe.h"
#include "common/http/http_router.h"
#include "common/http/http_tls.h"
#include "common/status_macros.h"
#include "common/threads/executor.h"
#include "common/threads/thread.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr uint32_t kMaxHeaderBytes = 16 << 10;
// The pause after the system refused a connection (too many open files).
constexpr std::chrono::milliseconds kAcceptPause(100);
// Bytes a second.
constexpr double kSlowestReader = 100'000;
// What is still read of a peer that sends on after a refusal, so that closing
// does not reset the answer before it was read.
constexpr size_t kMaxDrainedBytes = 64 << 10;
constexpr std::chrono::seconds kDrainTime(1);

using PlainStream = beast::tcp_stream;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

std::string AddressOf(const beast::tcp_stream& stream) {
  ErrorCode error;
  const tcp::endpoint peer = stream.socket().remote_endpoint(error);
  if (error) return "";
  return JoinHostPort(peer.address().to_string(), peer.port());
}

// Says what is wrong with the headers, beyond what Beast's parser refuses
// (RFC 9112, sections 3.2 and 6.1).
absl::Status CheckHeaders(const http::request_header<>& header) {
  const auto count = [&](http::field field) {
    const auto range = header.equal_range(field);
    return std::distance(range.first, range.second);
  };
  if (header.version() != 10 && header.version() != 11) {
    return InvalidArgument("only HTTP/1.0 and HTTP/1.1 are spoken here");
  }
  const auto hosts = count(http::field::host);
  if (hosts > 1 || (hosts == 0 && header.version() == 11)) {
    return InvalidArgument("a request needs one Host header, not ", hosts);
  }
  if (count(http::field::content_length) > 1) {
    return InvalidArgument("several Content-Length headers");
  }
  const auto codings = count(http::field::transfer_encoding);
  if (codings == 0) return absl::OkStatus();
  const auto coding = header[http::field::transfer_encoding];
  if (codings > 1 || header.version() == 10 ||
      count(http::field::content_length) > 0 ||
      !absl::EqualsIgnoreCase(absl::string_view(coding.data(), coding.size()),
                              "chunked")) {
    return InvalidArgument(
        "of transfer codings, only \"chunked\" alone is understood");
  }
  return absl::OkStatus();
}

// The refusal of a request that Beast's parser does not take.
HttpAnswer ParserRefusal(const ErrorCode& error) {
  if (error == http::error::header_limit) {
    return HttpError(431, "the request's headers are too long");
  }
  if (error == http::error::body_limit) {
    return HttpError(413, "the request's body is too long");
  }
  return HttpError(400,
                   absl::StrCat("this is no HTTP request: ", error.message()));
}

}  // namespace

// The thread, its sockets and what they share.
class HttpServer::Loop {
 public:
  Loop(Options options, FileDescriptor listener);
  ~Loop();

  int port() const { return port_; }

 private:
  class Connection;
  template <typename Stream>
  class Session;

  void Accept();
  void Add(tcp::socket socket);

  Options options_;
  const HttpRouter router_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  asio::steady_timer accept_pause_{io_};
  int port_ = 0;
  std::list<std::weak_ptr<Connection>> connections_;  // oldest first
  std::optional<Executor> work_;
  Thread thread_;
};

class HttpServer::Loop::Connection {
 public:
  virtual ~Connection() = default;
  virtual void Close() = 0;
};

// One connection: reads a request, answers it, and reads the next. All runs on
// the loop's thread, but for handlers that are not quick.
template <typename Stream>
class HttpServer::Loop::Session
    : public Connection,
      public std::enable_shared_from_this<Session<Stream>> {
 public:
  template <typename... Args>
  Session(Loop* loop, Args&&... args)
      : loop_(loop), stream_(std::forward<Args>(args)...) {
    peer_ = AddressOf(tcp());
  }

  void Start(std::shared_ptr<asio::ssl::context> tls = nullptr) {
    tls_ = std::move(tls);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      Deadline(loop_->options_.timeout);
      stream_.async_handshake(
          asio::ssl::stream_base::server,
          [self = this->shared_from_this()](const ErrorCode& error) {
            if (!error) self->ReadRequest();
          });
    } else {
      ReadRequest();
    }
  }

  void Close() override {
    ErrorCode ignored;
    tcp().socket().close(ignored);
  }

 private:
  beast::tcp_stream& tcp() { return beast::get_lowest_layer(stream_); }

  void Deadline(absl::Duration time) {
    tcp().expires_after(absl::ToChronoMilliseconds(time));
  }

  void ReadRequest() {
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    // Set by route when the header is there.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    request_ = HttpRequest();
    keep_alive_ = false;
    head_ = false;
    Deadline(loop_->options_.timeout);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = this->shared_from_this()](const ErrorCode& error, size_t) {
          self->OnHeader(error);
        });
  }

  void OnHeader(const ErrorCode& error) {
    if (error.category() ==
            http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream &&
        error != http::error::partial_message) {
      Send(ParserRefusal(error));
      return;
    }
    if (error) return Close();
    const auto& header = parser_->get();
    head_ = header.method() == http::verb::head;
    if (const absl::Status status = CheckHeaders(header); !status.ok()) {
      Send(HttpError(status));
      return;
    }
    const auto method = header.method_string();
    request_.method = head_ ? "GET" : std::string(method);
    request_.peer = peer_;
    const auto target = header.target();
    const absl::Status parsed = HttpRouter::ParseTarget(
        absl::string_view(target.data(), target.size()), &request_);
    if (!parsed.ok()) {
      Send(HttpError(parsed));
      return;
    }
    for (const auto& field : header) {
      request_.headers.try_emplace(
          absl::AsciiStrToLower(absl::string_view(field.name_string().data(),
                                                  field.name_string().size())),
          std::string(field.value()));
    }
    HttpAnswer refusal;
    route_ = loop_->router_.Find(&request_, &refusal);
    if (route_ == nullptr) {
      Send(std::move(refusal));
      return;
    }
    if (route_->scope != Scope::kOpen && loop_->options_.authorize != nullptr) {
      const absl::Status allowed =
          loop_->options_.authorize(&request_, route_->scope);
      if (!allowed.ok()) {
        Send(HttpError(allowed));
        return;
      }
    }
    ReadBody();
  }

  void ReadBody() {
    const auto length = parser_->content_length();
    if (length.has_value() && *length > route_->max_body_bytes) {
      Send(ParserRefusal(http::make_error_code(http::error::body_limit)));
      return;
    }
    parser_->body_limit(route_->max_body_bytes);
    if (parser_->is_done()) return Handle();
    const auto expected = parser_->get()[http::field::expect];
    if (absl::EqualsIgnoreCase(
            absl::string_view(expected.data(), expected.size()),
            "100-continue")) {
      continue_.emplace(http::status::continue_, 11);
      http::async_write(
          stream_, *continue_,
          [self = this->shared_from_this()](const ErrorCode& error, size_t) {
            if (!error) self->ReadBodyOn();
          });
      return;
    }
    ReadBodyOn();
  }

  void ReadBodyOn() {
    http::async_read(
        stream_, buffer_, *parser_,
        [self = this->shared_from_this()](const ErrorCode& error, size_t) {
          if (error == http::error::body_limit ||
              error == http::error::bad_chunk ||
              error == http::error::bad_chunk_extension) {
            self->Send(ParserRefusal(error));
          } else if (!error) {
            self->Handle();
          }
        });
  }

  void Handle() {
    keep_alive_ = parser_->keep_alive();
    request_.body = std::move(parser_->get().body());
    tcp().expires_never();  // while a handler works
    if (route_->quick) {
      Send(route_->handler(request_));
      return;
    }
    loop_->work_->Run([self = this->shared_from_this()] {
      HttpAnswer answer = self->route_->handler(self->request_);
      asio::post(self->loop_->io_,
                 [self, answer = std::move(answer)]() mutable {
                   self->Send(std::move(answer));
                 });
    });
  }

  void Send(HttpAnswer answer) {
    response_ = {};
    response_.version(11);
    response_.result(static_cast<unsigned>(answer.code));
    response_.set(http::field::content_type, answer.content_type);
    // No page of ours is to be read as another type or shown in a frame.
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set(http::field::x_frame_options, "DENY");
    response_.set(http::field::cache_control, "no-store");
    if (answer.code == 401) {
      response_.set(http::field::www_authenticate, "Bearer");
    }
    for (const auto& [name, value] : answer.headers) response_.set(name, value);
    response_.keep_alive(keep_alive_);
    const size_t bytes = answer.body.size();
    if (head_) {
      response_.content_length(bytes);
    } else {
      response_.body() = std::move(answer.body);
      response_.prepare_payload();
    }
    Deadline(loop_->options_.timeout +
             absl::Seconds(static_cast<double>(bytes) / kSlowestReader));
    serializer_.emplace(response_);
    const auto sent = [self = this->shared_from_this()](const ErrorCode& error,
                                                        size_t) {
      if (error) return self->Close();
      if (self->keep_alive_) return self->ReadRequest();
      self->Finish();
    };
    if (head_) {
      http::async_write_header(stream_, *serializer_, sent);
    } else {
      http::async_write(stream_, *serializer_, sent);
    }
  }

  void Finish() {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      stream_.async_shutdown([self = this->shared_from_this()](
                                 const ErrorCode&) { self->Close(); });
      return;
    }
    ErrorCode error;
    tcp().socket().shutdown(tcp::socket::shutdown_send, error);
    tcp().expires_after(kDrainTime);
    Drain();
  }

  void Drain() {
    buffer_.clear();
    tcp().async_read_some(
        buffer_.prepare(4096),
        [self = this->shared_from_this()](const ErrorCode& error, size_t n) {
          self->drained_ += n;
          if (error || self->drained_ > kMaxDrainedBytes) return self->Close();
          self->Drain();
        });
  }

  Loop* const loop_;
  std::shared_ptr<asio::ssl::context> tls_;  // must outlive the stream
  Stream stream_;
  std::string peer_;
  beast::flat_buffer buffer_{kMaxHeaderBytes + (64 << 10)};
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<http::response<http::empty_body>> continue_;
  HttpRequest request_;
  const HttpRoute* route_ = nullptr;
  bool keep_alive_ = false;
  bool head_ = false;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  size_t drained_ = 0;
};

HttpServer::Loop::Loop(Options options, FileDescriptor listener)
    : options_(std::move(options)), router_(std::move(options_.routes)) {
  port_ = PortOf(listener.get());
  const int fd = listener.Release();
  int family = AF_INET;
  socklen_t bytes = sizeof(family);
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes);
  acceptor_.assign(family == AF_INET6 ? tcp::v6() : tcp::v4(), fd);
  work_.emplace("http-work", options_.threads);
  asio::post(io_, [this] { Accept(); });
  thread_ = Thread("http", [this] { io_.run(); });
}

HttpServer::Loop::~Loop() {
  io_.stop();
  thread_.Join();
  work_.reset();
}

void HttpServer::Loop::Accept() {
  acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
    if (!error) {
      Add(std::move(socket));
    } else if (error == asio::error::no_descriptors ||
               error == asio::error::no_memory ||
               error == asio::error::no_buffer_space) {
      accept_pause_.expires_after(kAcceptPause);
      accept_pause_.async_wait([this](const ErrorCode&) { Accept(); });
      return;
    }
    Accept();
  });
}

void HttpServer::Loop::Add(tcp::socket socket) {
  std::erase_if(connections_, [](const auto& c) { return c.expired(); });
  if (connections_.size() >= options_.max_connections) {
    if (const auto oldest = connections_.front().lock()) oldest->Close();
    connections_.pop_front();
  }
  ErrorCode ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  if (options_.tls == nullptr) {
    auto session =
        std::make_shared<Session<PlainStream>>(this, std::move(socket));
    connections_.push_back(session);
    session->Start();
    return;
  }
  auto context = options_.tls->Context();
  auto session =
      std::make_shared<Session<TlsStream>>(this, std::move(socket), *context);
  connections_.push_back(session);
  session->Start(std::move(context));
}

HttpServer::HttpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return loop_->port(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  SLUICE_ASSIGN_OR_RETURN(const int listener,
                          ListenOn(JoinHostPort(options.host, options.port)));
  return std::unique_ptr<HttpServer>(new HttpServer(
      std::make_unique<Loop>(std::move(options), FileDescriptor(listener))));
}

}  // namespace sluice
