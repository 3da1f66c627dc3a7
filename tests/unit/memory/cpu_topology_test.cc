#include "runtime/memory/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

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

TEST(CpuTopologyTest, GroupsOfCores) {
  const char* machine = "numa:2 l3:2 core:3 pu:2";
  EXPECT_EQ(CoreGroups(CoreGroupKind::kCore, machine).size(), 12u);
  const auto caches = CoreGroups(CoreGroupKind::kL3, machine);
  ASSERT_EQ(caches.size(), 4u);
  EXPECT_THAT(caches[1].cpus, ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_EQ(caches[1].cores, 3);
  const auto nodes = CoreGroups(CoreGroupKind::kNumaNode, machine);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1].cores, 6);
  EXPECT_EQ(nodes[1].cpus.front(), 12);
  EXPECT_THAT(CoreGroups(CoreGroupKind::kL3, "numa:1 core:2 pu:1"), IsEmpty());
  EXPECT_THAT(CoreGroups(CoreGroupKind::kCore, "nonsense"), IsEmpty());
}

TEST(CpuTopologyTest, GroupsOfThisMachineAreUsable) {
  const std::vector<int> allowed = Affinity();
  for (const CoreGroupKind kind :
       {CoreGroupKind::kCore, CoreGroupKind::kL3, CoreGroupKind::kNumaNode}) {
    for (const CoreGroup& group : CoreGroups(kind)) {
      EXPECT_FALSE(group.cpus.empty());
      EXPECT_GE(group.cores, 1);
      for (const int cpu : group.cpus) {
        EXPECT_TRUE(std::count(allowed.begin(), allowed.end(), cpu) == 1);
      }
    }
  }
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

TEST(CpuTopologyTest, SomeOfTheCoresAreAThreadsOwn) {
  const std::vector<int> cores = UsableCores();
  if (cores.size() < 2) GTEST_SKIP() << "all cores are one";
  Thread("bound", [&] {
    BindThisThread({{cores[1]}});
    EXPECT_THAT(OwnProcessors(), StartsWith(absl::StrCat("cores ", cores[1])));
  }).Join();
}

TEST(CpuTopologyTest, WhatCannotBeBoundStaysAsItWas) {
  const std::vector<int> before = Affinity();
  BindThisThread({});
  BindThisThread({{-1, 1 << 20}});
  BindThisThread({{60'000}});
  EXPECT_EQ(Affinity(), before);
}

TEST(CpuQuotaTest, IsTheLeastOfTheGroupsAlongThePath) {
  const TempDir root = TempDir::OnDisk();
  const auto write = [&](const std::string& dir, const std::string& name,
                         const std::string& text) {
    const std::filesystem::path path = root / "" + dir;
    std::filesystem::create_directories(path);
    std::ofstream(path / name) << text;
  };
  // Version 1: 1.5 cores above, half a core in the group itself.
  write("cpu/a", "cpu.cfs_quota_us", "150000\n");
  write("cpu/a", "cpu.cfs_period_us", "100000\n");
  write("cpu/a/b", "cpu.cfs_quota_us", "5000\n");
  write("cpu/a/b", "cpu.cfs_period_us", "10000\n");
  EXPECT_DOUBLE_EQ(CpuQuota("4:cpu,cpuacct:/a/b\n2:memory:/x\n", root.path()),
                   0.5);
  EXPECT_DOUBLE_EQ(CpuQuota("4:cpuacct,cpu:/a\n", root.path()), 1.5);
  EXPECT_EQ(CpuQuotaGroup("4:cpu,cpuacct:/a/b\n", root.path()), "/a/b");
  // -1 is no limit.
  write("cpu/free", "cpu.cfs_quota_us", "-1\n");
  write("cpu/free", "cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota("4:cpu:/free\n", root.path()), 0);
  EXPECT_EQ(CpuQuota("4:cpuset:/a\n", root.path()), 0);
  EXPECT_EQ(CpuQuotaGroup("4:cpu:/free\n", root.path()), "");
  // Version 2.
  write("pod", "cpu.max", "max 100000\n");
  write("pod/one", "cpu.max", "25000 100000\n");
  EXPECT_DOUBLE_EQ(CpuQuota("0::/pod/one\n", root.path()), 0.25);
  EXPECT_EQ(CpuQuota("0::/pod\n", root.path()), 0);
  EXPECT_EQ(CpuQuota("", root.path()), 0);
  EXPECT_EQ(CpuQuota("no such line\n0::/nowhere\n", root.path()), 0);
}

TEST(CpuTopology, CoresAreDividedByNodesOrEvenly) {
  const auto divide = [](std::vector<int> nodes, int parts) {
    std::vector<int> cores(nodes.size());
    std::iota(cores.begin(), cores.end(), 10);
    return DivideCores(cores, nodes, parts);
  };
  using Parts = std::vector<std::vector<int>>;
  // Nodes that are not equally large, and that don't come in order.
  EXPECT_EQ(divide({3, 3, 3, 1}, 2), (Parts{{10, 11, 12}, {13}}));
  EXPECT_EQ(divide({0, 1, 0, 1}, 2), (Parts{{10, 12}, {11, 13}}));
  EXPECT_EQ(divide({0, 0, 1, 2, 2, 3}, 2), (Parts{{10, 11, 12}, {13, 14, 15}}));
  // Fewer nodes than parts.
  EXPECT_EQ(divide({0, 0, 0, 0}, 2), (Parts{{10, 11}, {12, 13}}));
  EXPECT_EQ(divide({0, 0, 1}, 3), (Parts{{10}, {11}, {12}}));
  EXPECT_EQ(divide({}, 2), (Parts{{}, {}}));
  EXPECT_EQ(divide({0}, 2), (Parts{{10}, {}}));
  EXPECT_EQ(NumaNodesOf(UsableCores()).size(), UsableCores().size());
}

}  // namespace
}  // namespace sluice
