#include "worker/link/tcp/tcp_connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/threads/deadline.h"
#include "proto/grpc_endpoint.h"

namespace sluice {
namespace {

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

// Parses a peer as gRPC writes it: "ipv4:10.0.0.2:4711", "ipv6:[::1]:4711",
// with brackets and '%' perhaps escaped as in a URI.
absl::StatusOr<Address> ParsePeer(const std::string& peer) {
  const std::string text =
      absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  absl::string_view rest = text;
  const size_t colon = text.rfind(':');
  addrinfo* found = nullptr;
  if (absl::ConsumePrefix(&rest, "ipv4:") ||
      absl::ConsumePrefix(&rest, "ipv6:")) {
    absl::string_view host = rest.substr(0, rest.rfind(':'));
    if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    if (getaddrinfo(std::string(host).c_str(), text.c_str() + colon + 1, &hints,
                    &found) != 0) {
      found = nullptr;
    }
  }
  if (found == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("\"", peer, "\" is no TCP address"));
  }
  Address address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

// Waits until `fd` is ready for `events`, or has an error. Returns false, with
// errno, if the deadline passes first.
bool Await(int fd, short events, const Deadline& deadline) {
  for (;;) {
    pollfd poll_fd = {.fd = fd, .events = events, .revents = 0};
    const int64_t ms = absl::ToInt64Milliseconds(
        std::min(deadline.left(), absl::Minutes(1)) + absl::Milliseconds(1));
    const int ready = poll(&poll_fd, 1, static_cast<int>(ms));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (deadline.passed()) {
      errno = ETIMEDOUT;
      return false;
    }
  }
}

void SetOption(int fd, int level, int name, int value) {
  // Best effort: without these options a dead peer is noticed by gRPC.
  setsockopt(fd, level, name, &value, sizeof(value));
}

absl::Status NoConnection(const std::string& peer, const std::string& why) {
  return absl::UnimplementedError(
      absl::StrCat("no TCP connection to ", peer, ": ", why));
}

absl::Status Broke(const std::string& why) {
  return absl::UnavailableError(
      absl::StrCat("its TCP connection broke: ", why));
}

}  // namespace

void SetUpConnection(int fd) {
  constexpr EndpointLimits kLimits;
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kLimits.keepalive_timeout_ms);
  // Probes keep an idle connection alive in what lies between the machines.
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kLimits.keepalive_ms / 1000);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
}

TcpConnection::TcpConnection(FileDescriptor socket)
    : socket_(std::move(socket)) {
  const int flags = fcntl(socket_.get(), F_GETFL);
  fcntl(socket_.get(), F_SETFL, flags & ~O_NONBLOCK);
}

absl::StatusOr<std::unique_ptr<TcpConnection>> TcpConnection::Connect(
    const std::string& peer, const std::string& id, absl::Duration timeout) {
  SLUICE_ASSIGN_OR_RETURN(const Address address, ParsePeer(peer));
  const Deadline deadline = Deadline::In(timeout);
  FileDescriptor socket(::socket(address.storage.ss_family,
                                 SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                                 0));
  const int fd = socket.get();
  if (!socket.open()) return NoConnection(peer, std::strerror(errno));
  SetUpConnection(fd);
  int error = 0;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address.storage),
              address.size) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      socklen_t size = sizeof(error);
      error = 0;
      if (!Await(fd, POLLOUT, deadline) ||
          getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
      }
    }
  }
  if (error != 0) return NoConnection(peer, std::strerror(error));
  const std::string preamble =
      absl::StrCat(absl::string_view(kTcpMagic, kTcpMagicBytes), id);
  char answer = 0;
  // So few bytes fit into the buffer of a new connection.
  const bool sent = send(fd, preamble.data(), preamble.size(), MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(preamble.size());
  if (!sent || !Await(fd, POLLIN, deadline) || recv(fd, &answer, 1, 0) != 1) {
    answer = 0;
  }
  if (answer == kTcpUnknown) {
    return absl::UnavailableError("the receiver does not expect it any more");
  }
  if (answer != kTcpExpected) {
    return NoConnection(
        peer,
        "what listens there does not take it; if something between the workers "
        "carries gRPC only, start them with --link grpc");
  }
  return std::make_unique<TcpConnection>(std::move(socket));
}

absl::Status TcpConnection::Send(std::span<iovec> parts) {
  while (!parts.empty()) {
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Broke(std::strerror(errno));
    auto left = static_cast<size_t>(sent);
    while (!parts.empty() && left >= parts.front().iov_len) {
      left -= parts.front().iov_len;
      parts = parts.subspan(1);
    }
    if (left > 0) {
      parts.front().iov_base =
          static_cast<char*>(parts.front().iov_base) + left;
      parts.front().iov_len -= left;
    }
  }
  return absl::OkStatus();
}

absl::Status TcpConnection::Receive(void* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(socket_.get(), to, bytes, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Broke(std::strerror(errno));
    if (got == 0) return absl::CancelledError("its TCP connection has ended");
    to = static_cast<char*>(to) + got;
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

void TcpConnection::Stop() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace sluice
