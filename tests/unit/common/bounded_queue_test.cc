#include "common/threads/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/threads/thread.h"

namespace sluice {
namespace {

TEST(BoundedQueueTest, FirstInFirstOut) {
  BoundedQueue<int> queue(3);
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_TRUE(queue.Push(3));
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), 3);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(BoundedQueueTest, TryPushNeitherWaitsNorTakesFromTheCaller) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto a = std::make_unique<int>(1);
  auto b = std::make_unique<int>(2);
  EXPECT_TRUE(queue.TryPush(a));
  EXPECT_EQ(a, nullptr);
  EXPECT_FALSE(queue.TryPush(b)) << "full";
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(**queue.Pop(), 1);
  queue.Close();
  EXPECT_FALSE(queue.TryPush(b)) << "closed";
  EXPECT_NE(b, nullptr);
}

TEST(BoundedQueueTest, CloseDrains) {
  BoundedQueue<int> queue(3);
  queue.Push(1);
  queue.Push(2);
  EXPECT_FALSE(queue.closed());
  queue.Close();
  queue.Close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.Push(3));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.PopFor(absl::InfiniteDuration()), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
  EXPECT_EQ(queue.PopFor(absl::Hours(1)), std::nullopt);
}

TEST(BoundedQueueTest, PopForGivesUp) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.PopFor(absl::ZeroDuration()), std::nullopt);
  EXPECT_EQ(queue.PopFor(-absl::Seconds(1)), std::nullopt);
  EXPECT_EQ(queue.PopFor(absl::Milliseconds(1)), std::nullopt);
  queue.Push(1);
  EXPECT_EQ(queue.PopFor(absl::ZeroDuration()), 1) << "there already";
}

TEST(BoundedQueueTest, PopForTakesWhatArrives) {
  BoundedQueue<int> queue(1);
  Thread producer("producer", [&] { queue.Push(5); });
  EXPECT_EQ(queue.PopFor(absl::InfiniteDuration()), 5);
}

// A waiting side must be woken, whether Close comes before or after its wait.
TEST(BoundedQueueTest, CloseWakesConsumers) {
  BoundedQueue<int> queue(1);
  {
    Thread a("consumer-a", [&] { EXPECT_EQ(queue.Pop(), std::nullopt); });
    Thread b("consumer-b",
             [&] { EXPECT_EQ(queue.PopFor(absl::Hours(1)), std::nullopt); });
    queue.Close();
  }
}

TEST(BoundedQueueTest, CloseWakesProducers) {
  BoundedQueue<int> queue(1);
  queue.Push(1);
  {
    Thread a("producer-a", [&] { EXPECT_FALSE(queue.Push(2)); });
    Thread b("producer-b", [&] { EXPECT_FALSE(queue.Push(3)); });
    queue.Close();
  }
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, ManyThreadsLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kItems = 2000;
  BoundedQueue<int> queue(3);
  std::vector<std::vector<int>> got(kThreads);
  {
    std::vector<Thread> consumers;
    for (int t = 0; t < kThreads; ++t) {
      consumers.emplace_back("consumer", [&, t] {
        while (auto item = queue.Pop()) got[t].push_back(*item);
      });
    }
    {
      std::vector<Thread> producers;
      for (int t = 0; t < kThreads; ++t) {
        producers.emplace_back("producer", [&, t] {
          for (int i = 0; i < kItems; ++i)
            EXPECT_TRUE(queue.Push(t * kItems + i));
        });
      }
    }
    queue.Close();
  }
  std::vector<int> seen(kThreads * kItems);
  for (const std::vector<int>& items : got) {
    std::vector<int> last(kThreads, -1);
    for (int item : items) {
      ++seen[item];
      EXPECT_LT(last[item / kItems], item) << "order of one producer";
      last[item / kItems] = item;
    }
  }
  for (int count : seen) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace sluice
