#include "common/host/stop_signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "common/threads/clock.h"

namespace sluice {
namespace {

// The signals that are taken.
sigset_t Taken() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  // One that is ignored is kept too while it is blocked.
  sigaddset(&signals, SIGHUP);
  return signals;
}

bool IgnoresHangups() {
  struct sigaction hangup {};
  return sigaction(SIGHUP, nullptr, &hangup) == 0 &&
         hangup.sa_handler == SIG_IGN;
}

void Raise(const FileDescriptor& event) {
  const uint64_t one = 1;
  while (write(event.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

// For poll(), rounded up.
int Milliseconds(absl::Duration time) {
  constexpr absl::Duration kMost =
      absl::Milliseconds(std::numeric_limits<int>::max());
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(
      std::clamp(time, absl::ZeroDuration(), kMost), absl::Milliseconds(1))));
}

// Waits until one of two descriptors is ready; returns whether the first is.
bool FirstIsReady(pollfd first, int second, int timeout_ms) {
  pollfd fds[] = {first, {second, POLLIN, 0}};
  while (poll(fds, 2, timeout_ms) < 0 && errno == EINTR) {
  }
  return fds[0].revents != 0;
}

}  // namespace

StopSignals::StopSignals(Options options)
    : options_(options),
      ignores_hangups_(IgnoresHangups()),
      time_(options.time) {
  const sigset_t signals = Taken();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  signal_fd_ =
      FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_fd_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  stop_fd_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  if (signal_fd_.open() && wake_fd_.open() && stop_fd_.open()) {
    // The thread leaves all other signals to those who wait for them: one that
    // does not block SIGCHLD takes it from a supervisor, and drops it.
    sigset_t all;
    sigset_t mine;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mine);
    try {
      thread_ = Thread("signals", [this] { Run(); });
      pthread_sigmask(SIG_SETMASK, &mine, nullptr);
      return;
    } catch (const std::system_error&) {
    }
  }
  // A system that refuses these refuses much more: its own handling of the
  // signals is better than none.
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

StopSignals::~StopSignals() {
  if (!thread_.joinable()) return;
  closing_ = true;
  Raise(wake_fd_);
  thread_.Join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

absl::Status StopSignals::Check() const {
  return stopped_ ? absl::CancelledError("stopped") : absl::OkStatus();
}

bool StopSignals::WaitFor(absl::Duration time) const {
  pollfd stop = {stop_fd_.get(), POLLIN, 0};
  if (!stopped_) poll(&stop, 1, Milliseconds(time));
  return stopped_;
}

absl::Status StopSignals::WaitToRead(int fd) const {
  if (!stopped_) FirstIsReady({fd, POLLIN, 0}, stop_fd_.get(), -1);
  return Check();
}

absl::Status StopSignals::WaitToWrite(int fd) const {
  if (FirstIsReady({fd, POLLOUT, 0}, stop_fd_.get(), -1)) {
    return absl::OkStatus();
  }
  return Check();
}

void StopSignals::SetTime(absl::Duration time) {
  MutexLock lock(&mu_);
  time_ = time;
  time_began_ = Clock::Real()->Monotonic();
  if (wake_fd_.open()) Raise(wake_fd_);
}

void StopSignals::Run() {
  while (true) {
    pollfd fds[] = {{signal_fd_.get(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}};
    if (poll(fds, 2, TimeLeftMs()) < 0) continue;
    if (closing_) return;
    uint64_t wakes;
    if (fds[1].revents != 0) (void)!read(wake_fd_.get(), &wakes, sizeof(wakes));
    signalfd_siginfo info;
    while (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      OnSignal(static_cast<int>(info.ssi_signo));
    }
    if (stopped_ && TimeLeftMs() == 0) {
      MutexLock lock(&mu_);
      End(options_.serves ? 0 : 128 + signal_);
    }
  }
}

void StopSignals::OnHangup(std::function<void()> reload) {
  MutexLock lock(&mu_);
  on_hangup_ = std::move(reload);
}

void StopSignals::OnSignal(int signal) {
  MutexLock lock(&mu_);
  if (signal == SIGHUP && on_hangup_) return on_hangup_();
  if (signal == SIGHUP && ignores_hangups_) return;
  const bool asks = options_.serves || !watches_.empty();
  if (stopped_ || !asks) End(128 + signal);
  signal_ = signal;
  time_began_ = Clock::Real()->Monotonic();
  stopped_ = true;
  Raise(stop_fd_);
  for (const Watch* watch : watches_) {
    if (watch->on_stop_) watch->on_stop_();
  }
}

// Keeps the lock, so that nothing that is called goes away.
void StopSignals::End(int code) {
  for (auto it = at_ends_.rbegin(); it != at_ends_.rend(); ++it) {
    (*it)->at_end_();
  }
  _exit(code);
}

int StopSignals::TimeLeftMs() {
  MutexLock lock(&mu_);
  if (!stopped_ || time_ == absl::InfiniteDuration()) return -1;
  return Milliseconds(time_began_ + time_ - Clock::Real()->Monotonic());
}

StopSignals::Watch::Watch(StopSignals* signals, std::function<void()> on_stop)
    : signals_(signals), on_stop_(std::move(on_stop)) {
  MutexLock lock(&signals_->mu_);
  signals_->watches_.push_back(this);
  if (signals_->stopped_ && on_stop_) on_stop_();
}

StopSignals::Watch::~Watch() {
  MutexLock lock(&signals_->mu_);
  std::erase(signals_->watches_, this);
}

StopSignals::AtEnd::AtEnd(StopSignals* signals, std::function<void()> at_end)
    : signals_(signals), at_end_(std::move(at_end)) {
  MutexLock lock(&signals_->mu_);
  signals_->at_ends_.push_back(this);
}

StopSignals::AtEnd::~AtEnd() {
  MutexLock lock(&signals_->mu_);
  std::erase(signals_->at_ends_, this);
}

}  // namespace sluice
