#include "server/cli/jobs/stop_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "absl/synchronization/notification.h"

namespace sluice {
namespace {

// Sends a signal to the process, not to the thread.
void Send(int number) { ASSERT_EQ(kill(getpid(), number), 0); }

[[noreturn]] void WaitForTheEnd() {
  while (true) pause();
}

TEST(StopSignalsTest, TheFirstSignalAsksToStop) {
  absl::Notification stopped;
  StopSignals signals;
  signals.OnStop([&] { stopped.Notify(); });
  EXPECT_EQ(signals.signal(), 0);
  Send(SIGINT);
  stopped.WaitForNotification();
  EXPECT_EQ(signals.signal(), SIGINT);
  // A function set later is called, too.
  int asked = 0;
  signals.OnStop([&] { ++asked; });
  EXPECT_EQ(asked, 1);
}

TEST(StopSignalsDeathTest, ASignalThatNobodyMindsEndsTheProcess) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        Send(SIGTERM);
        WaitForTheEnd();
      },
      testing::ExitedWithCode(143), "");
}

TEST(StopSignalsDeathTest, ASecondSignalEndsTheProcessAtOnce) {
  EXPECT_EXIT(
      {
        absl::Notification stopping;
        StopSignals signals;
        signals.OnStop([&] {
          stopping.Notify();
          WaitForTheEnd();
        });
        Send(SIGINT);
        stopping.WaitForNotification();
        Send(SIGINT);
        WaitForTheEnd();
      },
      testing::ExitedWithCode(130), "");
}

TEST(StopSignalsTest, AStatusKnowsItsSignal) {
  const absl::Status status = StoppedBy(SIGINT, "stopped: 3 of 4");
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(status.message(), "stopped: 3 of 4");
  EXPECT_EQ(SignalOf(status), SIGINT);
  EXPECT_EQ(SignalOf(absl::CancelledError("another")), 0);
  EXPECT_EQ(SignalOf(absl::OkStatus()), 0);
}

}  // namespace
}  // namespace sluice
