#include "common/metrics/http_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/host/listen_probe.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "common/threads/thread.h"

namespace sluice {
namespace {

constexpr size_t kMaxHttpRequestBytes = 16 << 10;
// The pause after the system refused a connection (too many open files).
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

const char* Reason(int code) {
  if (code == 200) return "OK";
  if (code == 400) return "Bad Request";
  if (code == 404) return "Not Found";
  if (code == 405) return "Method Not Allowed";
  if (code == 431) return "Request Header Fields Too Large";
  return code == 503 ? "Service Unavailable" : "Error";
}

std::string Render(const HttpServer::Answer& answer, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", answer.code, " ", Reason(answer.code),
                      "\r\nContent-Type: ", answer.content_type,
                      "\r\nContent-Length: ", answer.body.size(),
                      answer.code == 405 ? "\r\nAllow: GET, HEAD" : "",
                      "\r\nConnection: close\r\n\r\n",
                      with_body ? answer.body : "");
}

HttpServer::Answer Refusal(int code, absl::string_view why) {
  return {.code = code, .body = absl::StrCat(why, "\n")};
}

struct Connection {
  int fd = -1;
  absl::Duration deadline;
  std::string in;
  std::string out;  // the answer, of which `sent` bytes were sent; "": none yet
  size_t sent = 0;
  bool done = false;
};

}  // namespace

// The thread and its sockets.
class HttpServer::Loop {
 public:
  Loop(Options options, int listener, int stop)
      : options_(std::move(options)),
        listener_(listener),
        stop_(stop),
        port_(PortOf(listener)),
        thread_("http", [this] { Run(); }) {}

  ~Loop() {
    const uint64_t one = 1;
    if (write(stop_, &one, sizeof(one)) < 0) {  // can't fail
    }
    thread_.Join();
    for (const Connection& connection : connections_) close(connection.fd);
    close(listener_);
    close(stop_);
  }

  int port() const { return port_; }

 private:
  void Run() {
    absl::Duration accept_at = -absl::InfiniteDuration();
    std::vector<pollfd> polled;
    while (true) {
      const absl::Duration now = Clock::Real()->Monotonic();
      absl::Duration wait = options_.timeout;
      polled.clear();
      polled.push_back({.fd = stop_, .events = POLLIN, .revents = 0});
      const bool accepts = now >= accept_at;
      if (!accepts) wait = std::min(wait, accept_at - now);
      polled.push_back(
          {.fd = accepts ? listener_ : -1, .events = POLLIN, .revents = 0});
      for (const Connection& c : connections_) {
        polled.push_back(
            {.fd = c.fd,
             .events = static_cast<short>(c.out.empty() ? POLLIN : POLLOUT),
             .revents = 0});
        wait = std::min(wait, c.deadline - now);
      }
      wait = std::max(wait, absl::ZeroDuration()) + absl::Milliseconds(1);
      if (poll(polled.data(), polled.size(),
               static_cast<int>(absl::ToInt64Milliseconds(wait))) < 0) {
        continue;  // a signal
      }
      if (polled[0].revents != 0) return;
      size_t i = 2;
      for (Connection& connection : connections_) {
        if (polled[i++].revents != 0) Serve(connection);
      }
      Sweep();
      if (polled[1].revents != 0 && !Accept()) {
        accept_at = Clock::Real()->Monotonic() + kAcceptPause;
      }
    }
  }

  // Closes connections that are done or timed out.
  void Sweep() {
    const absl::Duration now = Clock::Real()->Monotonic();
    for (auto it = connections_.begin(); it != connections_.end();) {
      if (!it->done && now < it->deadline) {
        ++it;
        continue;
      }
      close(it->fd);
      it = connections_.erase(it);
    }
  }

  // Returns false if no further connection can be accepted now.
  bool Accept() {
    while (true) {
      const int fd =
          accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        return errno != EMFILE && errno != ENFILE && errno != ENOMEM &&
               errno != ENOBUFS;
      }
      if (connections_.size() >= options_.max_connections) {
        close(connections_.front().fd);
        connections_.pop_front();
      }
      Connection& connection = connections_.emplace_back();
      connection.fd = fd;
      connection.deadline = Clock::Real()->Monotonic() + options_.timeout;
    }
  }

  void Serve(Connection& c) {
    if (c.out.empty()) Read(c);
    if (!c.out.empty()) Write(c);
  }

  void Read(Connection& c) {
    char buffer[4096];
    while (true) {
      const ssize_t n = recv(c.fd, buffer, sizeof(buffer), 0);
      if (n > 0) {
        c.in.append(buffer, static_cast<size_t>(n));
        if (c.in.find("\r\n\r\n") != std::string::npos) {
          c.out = AnswerTo(c.in);
          return;
        }
        if (c.in.size() > kMaxHttpRequestBytes) {
          c.out = Render(Refusal(431, "the request is too long"), true);
          return;
        }
        continue;
      }
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      c.done = true;
      return;
    }
  }

  void Write(Connection& c) {
    while (c.sent < c.out.size()) {
      const ssize_t n = send(c.fd, c.out.data() + c.sent, c.out.size() - c.sent,
                             MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) break;
      c.sent += static_cast<size_t>(n);
    }
    // Closing at once could reset the answer if the peer still sends.
    shutdown(c.fd, SHUT_WR);
    char rest[4096];
    for (int i = 0; i < 16 && recv(c.fd, rest, sizeof(rest), 0) > 0; ++i) {
    }
    c.done = true;
  }

  std::string AnswerTo(absl::string_view request) const {
    const std::vector<absl::string_view> words =
        absl::StrSplit(request.substr(0, request.find("\r\n")), ' ');
    if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.") ||
        !absl::StartsWith(words[1], "/")) {
      return Render(Refusal(400, "this is no HTTP/1.1 request"), true);
    }
    const bool head = words[0] == "HEAD";
    if (words[0] != "GET" && !head) {
      return Render(Refusal(405, "only GET and HEAD are answered"), true);
    }
    const absl::string_view path = words[1].substr(0, words[1].find('?'));
    return Render(options_.answer(path), !head);
  }

  const Options options_;
  const int listener_;
  const int stop_;
  const int port_;
  std::list<Connection> connections_;  // used by the thread only; oldest first
  Thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return loop_->port(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  SLUICE_ASSIGN_OR_RETURN(
      const int listener,
      ListenOn(absl::StrCat(options.host, ":", options.port)));
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) {
    close(listener);
    return Unavailable("can't make an event: ", strerror(errno));
  }
  return std::unique_ptr<HttpServer>(new HttpServer(
      std::make_unique<Loop>(std::move(options), listener, stop)));
}

}  // namespace sluice
