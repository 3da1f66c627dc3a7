#include "common/threads/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "common/threads/bounded_queue.h"

namespace sluice {
namespace {

TEST(ExecutorTest, RunsAllTasksBeforeItEnds) {
  std::atomic<int> ran = 0;
  {
    Executor executor("test", 3);
    for (int i = 0; i < 100; ++i) {
      executor.Run([&] {
        executor.Run([&] { ++ran; });  // tasks add tasks, up to the end
        ++ran;
      });
    }
  }
  EXPECT_EQ(ran, 200);
}

TEST(ExecutorTest, ATaskThatWaitsHoldsOneThreadOnly) {
  BoundedQueue<int> gate(1), passed(1);
  Executor executor("test", 2);
  executor.Run([&] { gate.Pop(); });
  executor.Run([&] { passed.Push(1); });
  passed.Pop();
  gate.Push(1);
}

TEST(ExecutorTest, TellsHowManyWait) {
  BoundedQueue<int> begun(1), gate(1);
  Executor executor("test", 1);
  executor.Run([&] {
    begun.Push(1);
    gate.Pop();
  });
  begun.Pop();
  EXPECT_EQ(executor.waiting(), 0u);
  executor.Run([] {});
  EXPECT_EQ(executor.waiting(), 1u);
  gate.Push(1);
}

TEST(StrandTest, KeepsTheOrderOnManyThreads) {
  std::vector<int> order;
  {
    Executor executor("test", 4);
    Strand strand(&executor);
    for (int i = 0; i < 1000; ++i) {
      strand.Run([&order, i] { order.push_back(i); });
    }
  }
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(StrandTest, OneOfManyTasksLeavesTheOthersTheirTurn) {
  std::vector<int> order;
  BoundedQueue<int> gate(1);
  {
    Executor executor("test", 1);
    Strand busy(&executor), other(&executor);
    executor.Run([&] { gate.Pop(); });
    for (int i = 0; i < 3; ++i) busy.Run([&] { order.push_back(1); });
    other.Run([&] { order.push_back(2); });
    gate.Push(1);
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1, 1}));
}

TEST(StrandTest, ATaskMayBeTheLastToHoldTheOwner) {
  struct Owner {
    explicit Owner(Executor* executor) : strand(executor) {}
    Strand strand;
  };
  Executor executor("test", 1);
  auto owner = std::make_shared<Owner>(&executor);
  owner->strand.Run([owner] {});
  owner.reset();
}

}  // namespace
}  // namespace sluice
