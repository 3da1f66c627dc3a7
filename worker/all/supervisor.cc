#include "worker/all/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host/file_descriptor.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "worker/all/line_buffer.h"

extern char** environ;

namespace sluice {
namespace {

constexpr int kExecFailed = 127;
constexpr size_t kReadBytes = 65536;
// A pipe that others hold open is not read to its end for ever.
constexpr int kMaxLastReads = 64;

struct Pipe {
  FileDescriptor read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Internal("can't make a pipe: ", strerror(errno));
  }
  Pipe pipe = {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return pipe;
}

// What execve() takes: pointers to texts that live as long.
class Arguments {
 public:
  explicit Arguments(std::vector<std::string> texts)
      : texts_(std::move(texts)) {
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char* const* get() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

std::vector<std::string> EnvironmentWithout(
    const std::vector<std::string>& without) {
  std::vector<std::string> left;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view text = *variable;
    const absl::string_view name = text.substr(0, text.find('='));
    if (std::find(without.begin(), without.end(), name) == without.end()) {
      left.emplace_back(text);
    }
  }
  return left;
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) {
    return absl::StrCat("was ended by signal ", WTERMSIG(status), " (",
                        strsignal(WTERMSIG(status)), ")");
  }
  return absl::StrCat("ended with status ", WEXITSTATUS(status));
}

class Supervisor {
 public:
  Supervisor(const std::vector<SupervisedProcess>& processes,
             const SupervisorOptions& options, StopSignals* signals)
      : options_(options),
        signals_(*signals),
        at_end_(signals, [this] { SignalAll(SIGKILL); }) {
    for (const SupervisedProcess& process : processes) {
      children_.emplace_back().process = &process;
    }
  }

  absl::Status Run();

 private:
  struct Child {
    const SupervisedProcess* process = nullptr;
    pid_t pid = -1;  // set and read by others with pids_mu_ held
    FileDescriptor out, err;
    LineBuffer out_lines, err_lines;
    absl::Duration started_at, start_at;  // start_at: while `waits`
    bool waits = true;                    // to be started
    int times = 0;                        // started again in a row
  };

  absl::Status Start(Child* child);
  // Runs in the new process, up to its program.
  [[noreturn]] void Exec(const Child& child, int out, int err, pid_t parent,
                         char* const* arguments, char* const* environment);
  void StartDue();
  void Read(Child* child, FileDescriptor* from, LineBuffer* lines,
            std::ostream& to);
  // Has them end, and starts no more.
  void End();
  void Reap();
  void OnEnd(Child* child, int status);
  void SignalAll(int signal);
  bool AnyLeft() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& c) { return c.pid > 0 || c.waits; });
  }
  int PollTimeout() const;

  const SupervisorOptions& options_;
  StopSignals& signals_;
  Mutex pids_mu_;  // so that no pid is used after it was waited for
  std::vector<Child> children_;
  sigset_t unblocked_{};  // what the children are to block
  bool ending_ = false;
  absl::Status status_;
  const StopSignals::AtEnd at_end_;
};

void Supervisor::Exec(const Child& child, int out, int err, pid_t parent,
                      char* const* arguments, char* const* environment) {
  // Only async-signal-safe calls: there may have been other threads.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kExecFailed);
  setpgid(0, 0);  // a terminal's Ctrl-C is the supervisor's
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (!child.process->cpus.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : child.process->cpus) {
      if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
    }
    sched_setaffinity(0, sizeof set, &set);
  }
  std::signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &unblocked_, nullptr);
  execve(options_.program.c_str(), arguments, environment);
  _exit(kExecFailed);
}

absl::Status Supervisor::Start(Child* child) {
  SLUICE_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  SLUICE_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  std::vector<std::string> texts = {options_.program};
  texts.insert(texts.end(), child->process->arguments.begin(),
               child->process->arguments.end());
  Arguments arguments(std::move(texts));
  Arguments environment(EnvironmentWithout(options_.without));
  const pid_t parent = getpid();
  MutexLock lock(&pids_mu_);
  const pid_t pid = fork();
  if (pid < 0) return Internal("can't start a process: ", strerror(errno));
  if (pid == 0) {
    Exec(*child, out.write.get(), err.write.get(), parent, arguments.get(),
         environment.get());
  }
  child->pid = pid;
  child->waits = false;
  child->out = std::move(out.read);
  child->err = std::move(err.read);
  child->started_at = Clock::Real()->Monotonic();
  LogInfo(LogWorker(child->process->name), " pid=", pid,
          child->times > 0 ? " started again" : " started");
  return absl::OkStatus();
}

void Supervisor::StartDue() {
  if (ending_) return;
  const absl::Duration now = Clock::Real()->Monotonic();
  for (Child& child : children_) {
    if (!child.waits || child.start_at > now) continue;
    const absl::Status status = Start(&child);
    if (status.ok()) continue;
    // A machine may lack processes for a while, but not from the start.
    if (child.times == 0) {
      status_ = status;
      End();
      return;
    }
    LogWarning(LogWorker(child.process->name), ": ", status.message());
    child.start_at = now + options_.max_back_off;
  }
}

void Supervisor::Read(Child* child, FileDescriptor* from, LineBuffer* lines,
                      std::ostream& to) {
  const auto write = [&](absl::string_view line) {
    if (&to == &std::cerr && LogsJson()) {
      // The worker's messages name it; what else comes is made a message.
      if (absl::StartsWith(line, "{")) {
        to << absl::StrCat(line, "\n") << std::flush;
      } else {
        LogWarning(LogWorker(child->process->name), ": ", line);
      }
      return;
    }
    to << absl::StrCat("[", child->process->name, "] ", line, "\n")
       << std::flush;
  };
  const bool ended = child->pid <= 0;
  std::string buffer(kReadBytes, '\0');
  for (int reads = 0; from->open() && reads < (ended ? kMaxLastReads : 1);
       ++reads) {
    const ssize_t got = read(from->get(), buffer.data(), buffer.size());
    if (got > 0) {
      lines->Add(absl::string_view(buffer.data(), static_cast<size_t>(got)),
                 write);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      from->Close();
    } else {
      break;
    }
  }
  if (ended) from->Close();
  if (!from->open()) lines->Flush(write);
}

void Supervisor::SignalAll(int signal) {
  MutexLock lock(&pids_mu_);
  for (const Child& child : children_) {
    if (child.pid > 0) kill(child.pid, signal);
  }
}

void Supervisor::End() {
  if (std::exchange(ending_, true)) return;
  for (Child& child : children_) child.waits = false;
  LogInfo("ending the workers");
  SignalAll(SIGTERM);
}

void Supervisor::Reap() {
  for (Child& child : children_) {
    int status = 0;
    {
      MutexLock lock(&pids_mu_);
      if (child.pid <= 0 || waitpid(child.pid, &status, WNOHANG) != child.pid) {
        continue;
      }
      child.pid = -1;
    }
    Read(&child, &child.out, &child.out_lines, std::cout);
    Read(&child, &child.err, &child.err_lines, std::cerr);
    OnEnd(&child, status);
  }
}

void Supervisor::OnEnd(Child* child, int status) {
  const std::string& name = child->process->name;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    LogInfo(LogWorker(name), " has ended");
    return;
  }
  const std::string how = HowItEnded(status);
  if (ending_) {
    LogWarning(LogWorker(name), " ", how);
    return;
  }
  if (WIFEXITED(status) && (WEXITSTATUS(status) == options_.usage_exit ||
                            WEXITSTATUS(status) == kExecFailed)) {
    status_ = WEXITSTATUS(status) == kExecFailed
                  ? Internal(name, ": ", options_.program, " can't be started")
                  : InvalidArgument(name, " refused its flags; see above");
    End();
    return;
  }
  const absl::Duration now = Clock::Real()->Monotonic();
  if (now - child->started_at >= options_.steady) child->times = 0;
  constexpr int kMaxDoublings = 20;
  const absl::Duration wait =
      std::min(options_.max_back_off,
               options_.first_back_off *
                   (int64_t{1} << std::min(child->times, kMaxDoublings)));
  ++child->times;
  child->waits = true;
  child->start_at = now + wait;
  LogWarning(LogWorker(name), " ", how, "; it is started again in ",
             absl::FormatDuration(wait));
}

int Supervisor::PollTimeout() const {
  absl::Duration wait = absl::InfiniteDuration();
  const absl::Duration now = Clock::Real()->Monotonic();
  for (const Child& child : children_) {
    if (child.waits) wait = std::min(wait, child.start_at - now);
  }
  if (wait == absl::InfiniteDuration()) return -1;
  return static_cast<int>(
             absl::ToInt64Milliseconds(std::max(absl::ZeroDuration(), wait))) +
         1;
}

absl::Status Supervisor::Run() {
  signals_.SetTime(options_.time_to_end);
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &watched, &before);
  sigemptyset(&unblocked_);
  const FileDescriptor events(
      signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!events.open()) return Internal("signalfd: ", strerror(errno));
  while (true) {
    if (signals_.stopped()) End();
    StartDue();
    // Asked to end before any was started, there is nothing to wait for.
    if (!AnyLeft()) break;
    std::vector<pollfd> polled = {{events.get(), POLLIN, 0},
                                  {ending_ ? -1 : signals_.fd(), POLLIN, 0}};
    for (const Child& child : children_) {
      // A closed one is -1, which poll() ignores.
      polled.push_back({child.out.get(), POLLIN, 0});
      polled.push_back({child.err.get(), POLLIN, 0});
    }
    if (poll(polled.data(), polled.size(), PollTimeout()) < 0 &&
        errno != EINTR) {
      status_.Update(Internal("poll: ", strerror(errno)));
      End();
    }
    for (size_t c = 0; c < children_.size(); ++c) {
      Child& child = children_[c];
      if (polled[2 + 2 * c].revents != 0) {
        Read(&child, &child.out, &child.out_lines, std::cout);
      }
      if (polled[3 + 2 * c].revents != 0) {
        Read(&child, &child.err, &child.err_lines, std::cerr);
      }
    }
    signalfd_siginfo info;
    while (read(events.get(), &info, sizeof info) == sizeof info) {
    }
    Reap();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status_;
}

}  // namespace

absl::Status Supervise(const std::vector<SupervisedProcess>& processes,
                       const SupervisorOptions& options, StopSignals* signals) {
  return Supervisor(processes, options, signals).Run();
}

}  // namespace sluice
