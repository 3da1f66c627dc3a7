#include "server/cli/jobs/stop_signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr char kSignalPayload[] = "sluice/signal";

}  // namespace

StopSignals::StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  close_fd_ = eventfd(0, EFD_CLOEXEC);
  if (signal_fd_ < 0 || close_fd_ < 0) {
    // Without descriptors, the system's handling is better than none.
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    return;
  }
  thread_ = Thread("signals", [this] { Run(); });
}

StopSignals::~StopSignals() {
  OnStop(nullptr);
  if (thread_.joinable()) {
    const uint64_t one = 1;
    while (write(close_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.Join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  if (signal_fd_ >= 0) close(signal_fd_);
  if (close_fd_ >= 0) close(close_fd_);
}

void StopSignals::Run() {
  while (true) {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {close_fd_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    const int number = static_cast<int>(info.ssi_signo);
    MutexLock lock(&mu_);
    if (signal_ != 0 || stop_ == nullptr) _exit(128 + number);
    signal_ = number;
    running_ = true;
    stopper_ = Thread("stop", [this, stop = stop_] {
      stop();
      MutexLock done(&mu_);
      running_ = false;
      changed_.NotifyAll();
    });
  }
}

void StopSignals::OnStop(std::function<void()> stop) {
  std::function<void()> now;
  Thread ended;
  {
    MutexLock lock(&mu_);
    while (running_) changed_.Wait(&mu_);
    ended = std::move(stopper_);
    stop_ = std::move(stop);
    if (signal_ != 0) now = stop_;
  }
  ended.Join();
  if (now) now();
}

int StopSignals::signal() const {
  MutexLock lock(&mu_);
  return signal_;
}

absl::Status StoppedBy(int signal, absl::string_view message) {
  absl::Status status = absl::CancelledError(message);
  status.SetPayload(kSignalPayload, absl::Cord(absl::StrCat(signal)));
  return status;
}

int SignalOf(const absl::Status& status) {
  int signal = 0;
  if (const auto payload = status.GetPayload(kSignalPayload)) {
    if (!absl::SimpleAtoi(std::string(*payload), &signal)) return 0;
  }
  return signal;
}

}  // namespace sluice
