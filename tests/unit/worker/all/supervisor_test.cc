#include "worker/all/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "common/host/logging.h"
#include "common/host/stop_signals.h"

namespace sluice {
namespace {

constexpr char kTrue[] = "/bin/true";
constexpr unsigned kMostSeconds = 60;  // for what would wait for ever

// Ends a death test's process with the code of the status.
[[noreturn]] void EndWith(const absl::Status& status) {
  _exit(100 + static_cast<int>(status.code()));
}

testing::ExitedWithCode Ends(absl::StatusCode code) {
  return testing::ExitedWithCode(100 + static_cast<int>(code));
}

const std::vector<SupervisedProcess> kProcesses = {{.name = "a"},
                                                   {.name = "b"}};

[[noreturn]] void SuperviseToTheEnd() {
  alarm(kMostSeconds);
  StopSignals signals({.serves = true});
  EndWith(Supervise(kProcesses, {.program = kTrue}, &signals));
}

TEST(SupervisorDeathTest, AllThatEndWithoutAnErrorAreNotStartedAgain) {
  EXPECT_EXIT(SuperviseToTheEnd(), Ends(absl::StatusCode::kOk), "");
}

[[noreturn]] void SuperviseWhenToldToEnd() {
  StopSignals signals({.serves = true});
  kill(getpid(), SIGTERM);
  signals.WaitFor(absl::InfiniteDuration());
  // If it waits, the process ends with 0.
  const SupervisorOptions options = {.program = kTrue,
                                     .time_to_end = absl::Seconds(1)};
  EndWith(Supervise(kProcesses, options, &signals));
}

TEST(SupervisorDeathTest, ToldToEndBeforeAnyIsStartedItEndsAtOnce) {
  EXPECT_EXIT(SuperviseWhenToldToEnd(), Ends(absl::StatusCode::kOk), "");
}

[[noreturn]] void SuperviseWithoutDescriptors() {
  alarm(kMostSeconds);
  StopSignals signals({.serves = true});
  // It has the one descriptor that it begins with, and none for a pipe.
  const int next = dup(STDIN_FILENO);
  close(next);
  rlimit most;
  most.rlim_cur = most.rlim_max = static_cast<rlim_t>(next) + 1;
  setrlimit(RLIMIT_NOFILE, &most);
  EndWith(Supervise(kProcesses, {.program = kTrue}, &signals));
}

TEST(SupervisorDeathTest, ItIsAnErrorIfNoneCanBeStarted) {
  EXPECT_EXIT(SuperviseWithoutDescriptors(), Ends(absl::StatusCode::kInternal),
              "");
}

[[noreturn]] void SuperviseTalkative() {
  alarm(kMostSeconds);
  StopSignals signals({.serves = true});
  SetLogFormat("json", "the supervisor");
  const std::vector<SupervisedProcess> talkative = {
      {.name = "a",
       .arguments = {"-c", "echo 'plain \"text\"' >&2; echo '{\"b\":1}' >&2"}}};
  EndWith(Supervise(talkative, {.program = "/bin/sh"}, &signals));
}

TEST(SupervisorDeathTest, WithJsonLogsWhatIsNoJsonIsMadeAMessage) {
  EXPECT_EXIT(SuperviseTalkative(), Ends(absl::StatusCode::kOk),
              "\"component\":\"the supervisor\",\"worker\":\"a\","
              "\"message\":\"worker=a: plain \\\\\"text\\\\\"\"\\}\n");
  EXPECT_EXIT(SuperviseTalkative(), Ends(absl::StatusCode::kOk),
              "\n\\{\"b\":1\\}\n");
}

}  // namespace
}  // namespace sluice
