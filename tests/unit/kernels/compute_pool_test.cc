#include "runtime/memory/compute_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace sluice {
namespace {

TEST(ComputePoolTest, RunsEachTaskOnce) {
  for (int threads : {1, 2, 5}) {
    ComputePool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> count(tasks);
      pool.ParallelFor(tasks, [&](int task, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        count[task].fetch_add(1);
      });
      for (auto& c : count) EXPECT_EQ(c.load(), 1);
    }
  }
}

TEST(ComputePoolTest, LoopsSeeWhatEarlierLoopsWrote) {
  ComputePool pool(3);
  std::vector<int64_t> values(64, 0);
  for (int round = 0; round < 2000; ++round) {
    const int64_t before = std::accumulate(values.begin(), values.end(), 0l);
    ASSERT_EQ(before, int64_t{64} * round);
    pool.ParallelFor(64, [&](int task, int) { values[task] += 1; });
  }
}

TEST(ComputePoolTest, EachThreadNumberBelongsToOneThread) {
  ComputePool pool(4);
  std::vector<std::set<std::thread::id>> ids(4);
  for (int round = 0; round < 100; ++round) {
    pool.ParallelFor(32, [&](int, int thread) {
      ids[thread].insert(std::this_thread::get_id());
    });
  }
  for (const auto& set : ids) EXPECT_LE(set.size(), 1u);
  EXPECT_EQ(*ids[0].begin(), std::this_thread::get_id());
}

TEST(ComputePoolTest, ManyPoolsInOneProcess) {
  std::vector<std::unique_ptr<ComputePool>> pools;
  for (int i = 0; i < 8; ++i) pools.push_back(std::make_unique<ComputePool>(4));
  std::atomic<int> total{0};
  {
    std::vector<std::thread> callers;
    for (auto& pool : pools) {
      callers.emplace_back([&total, &pool] {
        for (int round = 0; round < 200; ++round) {
          pool->ParallelFor(10, [&](int, int) { total.fetch_add(1); });
        }
      });
    }
    for (auto& caller : callers) caller.join();
  }
  EXPECT_EQ(total.load(), 8 * 200 * 10);
}

TEST(ComputePoolTest, StopsWithoutEverHavingRun) {
  for (int i = 0; i < 50; ++i) ComputePool pool(3);
}

}  // namespace
}  // namespace sluice
