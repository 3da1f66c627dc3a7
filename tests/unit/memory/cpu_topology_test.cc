#include "runtime/memory/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <numeric>

#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> Affinity() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cpus.push_back(i);
  }
  return cpus;
}

TEST(CpuTopologyTest, UsableCoresAreDistinctAndAllowed) {
  const std::vector<int> cores = UsableCores();
  ASSERT_FALSE(cores.empty());
  const std::vector<int> allowed = Affinity();
  std::vector<int> sorted = cores;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
  EXPECT_TRUE(std::includes(allowed.begin(), allowed.end(), sorted.begin(),
                            sorted.end()));
  const int count = UsableCoreCount(cores);
  EXPECT_GE(count, 1);
  EXPECT_LE(count, static_cast<int>(cores.size()));
}

TEST(CpuTopologyTest, UsableCoresFollowTheAffinity) {
  const int last = UsableCores().back();
  Thread("bound", [last] {
    BindThisThread({{last}});
    EXPECT_THAT(UsableCores(), ElementsAre(last));
  }).Join();
}

TEST(CpuTopologyTest, BindsThisThreadOnly) {
  const std::vector<int> before = Affinity();
  const std::vector<int> cores = UsableCores();
  Thread("bound", [&] {
    BindThisThread({{cores[0]}});
    EXPECT_THAT(Affinity(), ElementsAre(cores[0]));
    BindThisThread(cores);
    EXPECT_EQ(Affinity().size(), cores.size());
  }).Join();
  EXPECT_EQ(Affinity(), before);
}

TEST(CpuTopologyTest, WhatCannotBeBoundStaysAsItWas) {
  const std::vector<int> before = Affinity();
  BindThisThread({});
  BindThisThread({{-1, 1 << 20}});
  BindThisThread({{60'000}});
  EXPECT_EQ(Affinity(), before);
}

}  // namespace
}  // namespace sluice
