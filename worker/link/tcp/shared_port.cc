#include "worker/link/tcp/shared_port.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/host/listen_probe.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "worker/link/tcp/tcp_links.h"

namespace sluice {
namespace {

// The pause after the process ran out of descriptors or memory.
constexpr absl::Duration kPause = absl::Milliseconds(200);

bool IsOutOfResources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedPort>> SharedPort::Listen(
    const std::string& address, TcpLinks* links, Other other,
    absl::Duration patience) {
  auto self = std::unique_ptr<SharedPort>(
      new SharedPort(links, std::move(other), patience));
  SLUICE_ASSIGN_OR_RETURN(self->listeners_,
                          ListenOnAll(address, "; choose another --port"));
  self->port_ = PortOf(self->listeners_.front().get());
  self->stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!self->stop_.open()) {
    return Internal("can't make an eventfd: ", std::strerror(errno));
  }
  self->thread_ = Thread("port", [port = self.get()] { port->Run(); });
  return self;
}

SharedPort::~SharedPort() {
  const uint64_t one = 1;
  if (stop_.open() && write(stop_.get(), &one, sizeof(one)) < 0) {
    LogError("can't stop listening: ", std::strerror(errno));
  }
  thread_.Join();
}

void SharedPort::Run() {
  for (;;) {
    std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}};
    absl::Duration wait = absl::InfiniteDuration();
    const bool accepts = accepting_.passed();
    if (!accepts) wait = accepting_.left();
    for (const FileDescriptor& listener : listeners_) {
      fds.push_back({accepts ? listener.get() : -1, POLLIN, 0});
    }
    for (const Connection& connection : undecided_) {
      fds.push_back({connection.fd.get(), POLLIN, 0});
      wait = std::min(wait, connection.deadline.left());
    }
    int ms = -1;
    if (wait < absl::InfiniteDuration()) {
      ms = static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1;
    }
    poll(fds.data(), fds.size(), ms);  // after an error, nothing is ready
    if (fds[0].revents != 0) return;
    size_t at = 1 + listeners_.size();
    for (auto it = undecided_.begin(); it != undecided_.end(); ++at) {
      const auto here = it++;
      const bool goes_on = fds[at].revents == 0 || Read(&*here);
      if (!goes_on || here->deadline.passed()) undecided_.erase(here);
    }
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (fds[1 + i].revents != 0) Accept(listeners_[i].get());
    }
  }
}

void SharedPort::Accept(int listener) {
  FileDescriptor fd(
      accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.open()) {
    // All other errors are of a connection that is gone already.
    if (IsOutOfResources(errno)) {
      LogWarning("can't accept connections now: ", std::strerror(errno));
      accepting_ = Deadline::In(kPause);
    }
    return;
  }
  SetUpConnection(fd.get());
  if (undecided_.size() >= kMaxUndecided) undecided_.pop_front();
  Connection& connection = undecided_.emplace_back();
  connection.fd = std::move(fd);
  connection.deadline = Deadline::In(patience_);
  // It has often spoken already.
  if (!Read(&connection)) undecided_.pop_back();
}

bool SharedPort::Read(Connection* connection) {
  const int fd = connection->fd.get();
  if (!connection->is_link) {
    char first = 0;
    const ssize_t got = recv(fd, &first, 1, MSG_PEEK);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    if (first != kTcpMagic[0]) {
      other_(std::move(connection->fd));
      return false;
    }
    connection->is_link = true;
  }
  char* const said = connection->said;
  const ssize_t got =
      recv(fd, said + connection->bytes, kPreambleBytes - connection->bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) return false;
  connection->bytes += static_cast<size_t>(got);
  if (std::memcmp(said, kTcpMagic,
                  std::min(connection->bytes, kTcpMagicBytes)) != 0) {
    return false;
  }
  if (connection->bytes < kPreambleBytes) return true;
  links_->Take({said + kTcpMagicBytes, kTcpIdBytes}, std::move(connection->fd));
  return false;
}

}  // namespace sluice
