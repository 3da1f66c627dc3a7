#include "common/host/stop_signals.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace sluice {
namespace {

// Sends a signal to the process, not to the thread.
void Send(int number) { ASSERT_EQ(kill(getpid(), number), 0); }

[[noreturn]] void WaitForTheEnd() {
  while (true) pause();
}

TEST(StopSignalsTest, TheFirstSignalAsksAndIsRemembered) {
  StopSignals signals({});
  EXPECT_FALSE(signals.stopped());
  EXPECT_EQ(signals.signal(), 0);
  EXPECT_FALSE(signals.WaitFor(absl::ZeroDuration()));
  EXPECT_TRUE(signals.Check().ok());
  absl::Notification asked;
  {
    const StopSignals::Watch watch(&signals, [&] { asked.Notify(); });
    Send(SIGINT);
    asked.WaitForNotification();
  }
  EXPECT_TRUE(signals.WaitFor(absl::InfiniteDuration()));
  EXPECT_TRUE(signals.stopped());
  EXPECT_TRUE(*signals.flag());
  EXPECT_EQ(signals.signal(), SIGINT);
  EXPECT_TRUE(absl::IsCancelled(signals.Check()));
  pollfd fd = {signals.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 1);
  // Who comes later is asked, too.
  int later = 0;
  const StopSignals::Watch watch(&signals, [&] { ++later; });
  EXPECT_EQ(later, 1);
}

TEST(StopSignalsTest, APipeIsNotWaitedForOnceTheProgramIsToStop) {
  StopSignals signals({});
  const StopSignals::Watch watch(&signals);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor from(ends[0]), to(ends[1]);
  ASSERT_EQ(write(to.get(), "x", 1), 1);
  EXPECT_TRUE(signals.WaitToRead(from.get()).ok());
  char byte;
  ASSERT_EQ(read(from.get(), &byte, 1), 1);
  EXPECT_TRUE(signals.WaitToWrite(to.get()).ok());
  Send(SIGTERM);
  EXPECT_TRUE(absl::IsCancelled(signals.WaitToRead(from.get())));
  // What can be written is still written.
  EXPECT_TRUE(signals.WaitToWrite(to.get()).ok());
  const std::string page(4096, 'x');
  ASSERT_EQ(fcntl(to.get(), F_SETFL, O_NONBLOCK), 0);
  while (write(to.get(), page.data(), page.size()) > 0) {
  }
  EXPECT_TRUE(absl::IsCancelled(signals.WaitToWrite(to.get())));
}

// Whether a thread of this process blocks the signal.
bool Blocks(const std::filesystem::path& task, int number) {
  std::ifstream status(task / "status");
  std::string word;
  while (status >> word) {
    uint64_t mask;
    if (word == "SigBlk:" && status >> std::hex >> mask)
      return (mask >> (number - 1) & 1) != 0;
  }
  return false;
}

// A thread that does not block SIGCHLD takes it from a supervisor that waits
// for it, which then does not learn that its child has ended.
TEST(StopSignalsTest, SignalsOfOthersAreLeftToThoseWhoWaitForThem) {
  StopSignals signals({.time = absl::InfiniteDuration()});
  // A thread begins with all signals blocked; it is past that once it calls.
  absl::Notification asked;
  const StopSignals::Watch watch(&signals, [&] { asked.Notify(); });
  Send(SIGTERM);
  asked.WaitForNotification();
  sigset_t waited_for, before;
  sigemptyset(&waited_for);
  sigaddset(&waited_for, SIGCHLD);
  sigaddset(&waited_for, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &waited_for, &before), 0);
  int threads = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++threads;
    EXPECT_TRUE(Blocks(task.path(), SIGCHLD)) << task.path();
    EXPECT_TRUE(Blocks(task.path(), SIGUSR1)) << task.path();
  }
  EXPECT_GE(threads, 2);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

TEST(StopSignalsDeathTest, ASignalThatNobodyWatchesForEndsTheProcess) {
  EXPECT_EXIT(
      {
        StopSignals signals({});
        const StopSignals::AtEnd first(&signals,
                                       [] { (void)!write(2, "last", 4); });
        const StopSignals::AtEnd second(&signals,
                                        [] { (void)!write(2, "first ", 6); });
        Send(SIGTERM);
        WaitForTheEnd();
      },
      testing::ExitedWithCode(143), "first last");
}

TEST(StopSignalsDeathTest, ASecondSignalEndsTheProcessAtOnce) {
  EXPECT_EXIT(
      {
        StopSignals signals({.time = absl::InfiniteDuration()});
        const StopSignals::Watch watch(&signals);
        Send(SIGINT);
        signals.WaitFor(absl::InfiniteDuration());
        Send(SIGTERM);
        WaitForTheEnd();
      },
      testing::ExitedWithCode(143), "");
}

TEST(StopSignalsDeathTest, AProgramThatDoesNotEndIsEndedAfterItsTime) {
  const auto run = [](bool serves) {
    StopSignals signals({.time = absl::Milliseconds(1), .serves = serves});
    std::optional<StopSignals::Watch> watch;
    if (!serves) watch.emplace(&signals);  // a server is always asked
    Send(SIGTERM);
    WaitForTheEnd();
  };
  EXPECT_EXIT(run(false), testing::ExitedWithCode(143), "");
  EXPECT_EXIT(run(true), testing::ExitedWithCode(0), "");
}

TEST(StopSignalsDeathTest, TheTimeOfAProgramThatWasAskedCanBeChanged) {
  EXPECT_EXIT(
      {
        StopSignals signals({.time = absl::Hours(1), .serves = true});
        Send(SIGTERM);
        signals.WaitFor(absl::InfiniteDuration());
        signals.SetTime(absl::Milliseconds(1));
        WaitForTheEnd();
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopSignalsDeathTest, AHangupIsASignalUnlessItIsIgnored) {
  EXPECT_EXIT(
      {
        StopSignals signals({});
        Send(SIGHUP);
        WaitForTheEnd();
      },
      testing::ExitedWithCode(128 + SIGHUP), "");
  EXPECT_EXIT(
      {
        ::signal(SIGHUP, SIG_IGN);
        StopSignals signals({});
        Send(SIGHUP);
        Send(SIGINT);
        WaitForTheEnd();
      },
      testing::ExitedWithCode(130), "");
}

TEST(StopSignalsDeathTest, AHangupCanCallAFunctionInstead) {
  for (const auto handling : {SIG_DFL, SIG_IGN}) {
    EXPECT_EXIT(
        {
          ::signal(SIGHUP, handling);
          StopSignals signals({.serves = true});
          std::atomic<int> hangups{0};
          signals.OnHangup([&hangups] { ++hangups; });
          for (int sent = 1; sent <= 2; ++sent) {
            Send(SIGHUP);
            while (hangups < sent) absl::SleepFor(absl::Milliseconds(1));
          }
          if (signals.stopped()) _exit(1);
          Send(SIGTERM);
          signals.WaitFor(absl::InfiniteDuration());
          _exit(signals.signal() == SIGTERM ? 0 : 2);
        },
        testing::ExitedWithCode(0), "");
  }
}

}  // namespace
}  // namespace sluice
