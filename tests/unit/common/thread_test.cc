#include "common/threads/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <string>

#include "common/threads/clock.h"

namespace sluice {
namespace {

std::string NameOfBody(const std::string& name) {
  std::string seen;
  Thread thread(name, [&] {
    char buffer[16] = {};
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    seen = buffer;
  });
  thread.Join();
  return seen;
}

TEST(ThreadTest, NamesAreCut) {
  EXPECT_EQ(NameOfBody("compute"), "compute");
  EXPECT_EQ(NameOfBody("a-name-of-25-characters-."), "a-name-of-25-ch");
}

TEST(ThreadTest, JoinsWhenDestroyedOrReplaced) {
  std::atomic<int> done = 0;
  {
    Thread thread("one", [&] { ++done; });
    EXPECT_TRUE(thread.joinable());
    thread = Thread("two", [&] { ++done; });
    EXPECT_GE(done, 1) << "the first was waited for";
  }
  EXPECT_EQ(done, 2);
}

TEST(ThreadTest, JoinTwiceAndOfNone) {
  Thread none;
  none.Join();
  EXPECT_FALSE(none.joinable());
  Thread thread("one", [] {});
  thread.Join();
  thread.Join();
  EXPECT_FALSE(thread.joinable());
}

TEST(ClockTest, RealClockGoesForward) {
  const Clock* clock = Clock::Real();
  EXPECT_EQ(clock, Clock::Real());
  EXPECT_GT(clock->Now(), absl::FromUnixSeconds(1'600'000'000));
  const absl::Duration before = clock->Monotonic();
  const double seconds = MonotonicSeconds();
  EXPECT_LE(before, clock->Monotonic());
  EXPECT_LE(seconds, MonotonicSeconds());
  EXPECT_LE(absl::ToDoubleSeconds(before), seconds);
}

}  // namespace
}  // namespace sluice
