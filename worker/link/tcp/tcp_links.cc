#include "worker/link/tcp/tcp_links.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/status_macros.h"

namespace sluice {
namespace {

// Takes the same time wherever the two differ. Both have kTcpIdBytes.
bool SameId(absl::string_view a, absl::string_view b) {
  volatile unsigned char differences = 0;
  for (size_t i = 0; i < kTcpIdBytes; ++i) {
    differences = differences | static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return differences == 0;
}

}  // namespace

void TcpLinks::End::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  if (connection_ != nullptr) connection_->Stop();
  changed_.NotifyAll();
}

bool TcpLinks::End::finished() const {
  MutexLock lock(&mu_);
  return finished_;
}

// Answers and takes the connection, unless this end has one or is stopped.
bool TcpLinks::End::Offer(FileDescriptor* socket) {
  MutexLock lock(&mu_);
  if (stopped_ || connection_ != nullptr ||
      send(socket->get(), &kTcpExpected, 1, MSG_NOSIGNAL) != 1) {
    return false;
  }
  connection_ = std::make_unique<TcpConnection>(std::move(*socket));
  changed_.NotifyAll();
  return true;
}

void TcpLinks::End::Run() {
  TcpConnection* connection = nullptr;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    while (connection_ == nullptr && !stopped_) changed_.Wait(&mu_);
    connection = connection_.get();
    if (stopped_) status = absl::CancelledError("stopped");
  }
  while (status.ok()) status = options_.take(*connection);
  bool tell = !absl::IsCancelled(status);
  {
    MutexLock lock(&mu_);
    tell = tell && !stopped_;
  }
  if (tell) options_.on_broken(status);
  options_.take = nullptr;
  options_.on_broken = nullptr;
  std::unique_ptr<TcpConnection> closed;
  MutexLock lock(&mu_);
  closed = std::move(connection_);
  stopped_ = true;
  finished_ = true;
}

absl::StatusOr<std::string> TcpLinks::NewId() {
  std::string id(kTcpIdBytes, 0);
  if (getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) {
    return Internal("the kernel has no random bytes: ", std::strerror(errno));
  }
  return id;
}

absl::StatusOr<std::shared_ptr<TcpLinks::End>> TcpLinks::Expect(
    Options options) {
  if (options.id.size() != kTcpIdBytes) {
    return InvalidArgument("an id of ", options.id.size(),
                           " bytes for a TCP connection, not ", kTcpIdBytes);
  }
  const std::shared_ptr<End> end(new End(std::move(options)));
  std::list<Playing> done;
  MutexLock lock(&mu_);
  for (auto it = playing_.begin(); it != playing_.end();) {
    const auto here = it++;
    if (here->end->finished()) {
      done.splice(done.end(), playing_, here);
    } else if (SameId(here->end->options_.id, end->options_.id)) {
      return absl::InvalidArgumentError(
          "another link has the same id for its TCP connection");
    }
  }
  if (stopped_) end->Stop();
  playing_.push_back({end, Thread("tcp-recv", [end] { end->Run(); })});
  // The end itself lives until its thread is done.
  return std::shared_ptr<End>(end.get(), [end](End*) { end->Stop(); });
}

void TcpLinks::Take(absl::string_view id, FileDescriptor socket) {
  std::shared_ptr<End> end;
  {
    MutexLock lock(&mu_);
    // All are compared, so that the time tells nothing of them.
    for (const Playing& playing : playing_) {
      if (SameId(playing.end->options_.id, id)) end = playing.end;
    }
  }
  if (end == nullptr || !end->Offer(&socket)) {
    send(socket.get(), &kTcpUnknown, 1, MSG_NOSIGNAL);
  }
}

void TcpLinks::Stop() {
  std::list<Playing> playing;
  {
    MutexLock lock(&mu_);
    playing.swap(playing_);
    stopped_ = true;
  }
  for (Playing& p : playing) p.end->Stop();
  playing.clear();  // joins
}

}  // namespace sluice
