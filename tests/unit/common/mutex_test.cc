#include "common/threads/mutex.h"

#include <gtest/gtest.h>

#include "common/threads/thread.h"

namespace sluice {
namespace {

TEST(MutexTest, ExcludesOthers) {
  Mutex mu;
  int64_t count = 0;
  {
    Thread threads[4];
    for (Thread& thread : threads) {
      thread = Thread("counter", [&] {
        for (int i = 0; i < 10000; ++i) {
          MutexLock lock(&mu);
          ++count;
        }
      });
    }
  }
  EXPECT_EQ(count, 40000);
}

TEST(CondVarTest, HandsTurnsBackAndForth) {
  Mutex mu;
  CondVar changed;
  int turn = 0;
  const auto play = [&](int me) {
    for (int i = 0; i < 500; ++i) {
      MutexLock lock(&mu);
      while (turn % 2 != me) changed.Wait(&mu);
      ++turn;
      changed.NotifyOne();
    }
  };
  {
    Thread a("a", [&] { play(0); });
    Thread b("b", [&] { play(1); });
  }
  EXPECT_EQ(turn, 1000);
}

TEST(CondVarTest, NotifyAllWakesAll) {
  Mutex mu;
  CondVar changed;
  bool go = false;
  int woken = 0;
  {
    Thread threads[3];
    for (Thread& thread : threads) {
      thread = Thread("waiter", [&] {
        MutexLock lock(&mu);
        while (!go) changed.Wait(&mu);
        ++woken;
      });
    }
    MutexLock lock(&mu);
    go = true;
    changed.NotifyAll();
  }
  EXPECT_EQ(woken, 3);
}

TEST(CondVarTest, WaitForTimesOutAndHoldsTheMutexAgain) {
  Mutex mu;
  CondVar never;
  int64_t count = 0;
  {
    Thread threads[2];
    for (Thread& thread : threads) {
      thread = Thread("waiter", [&] {
        MutexLock lock(&mu);
        for (int i = 0; i < 20; ++i) {
          while (never.WaitFor(&mu, absl::Microseconds(50))) {
          }
          ++count;
        }
      });
    }
  }
  EXPECT_EQ(count, 40);
}

TEST(CondVarTest, WaitForSeesANotification) {
  Mutex mu;
  CondVar changed;
  bool go = false;
  Thread notifier;
  MutexLock lock(&mu);
  notifier = Thread("notifier", [&] {
    MutexLock inner(&mu);
    go = true;
    changed.NotifyOne();
  });
  while (!go) EXPECT_TRUE(changed.WaitFor(&mu, absl::Hours(1)));
}

}  // namespace
}  // namespace sluice
