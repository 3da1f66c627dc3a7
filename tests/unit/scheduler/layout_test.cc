#include "scheduler/plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/unit/scheduler/layout_testing.h"
#include "tests/unit/scheduler/plan_testing.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Groups = std::vector<std::vector<int>>;

std::vector<MachineProfile> Machines(int count, double memory, double disk) {
  std::vector<MachineProfile> machines;
  for (int i = 0; i < count; ++i) {
    machines.push_back(TestMachine(absl::StrCat("m", i), memory, disk));
  }
  return machines;
}

Layout Made(const PlanRequest& request, int32_t replicas = 0) {
  const auto result = MakeLayout(request, replicas);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->best : Layout();
}

Groups GroupsOf(const Layout& layout) {
  Groups groups;
  for (const PipelinePlan& pipeline : layout.pipelines) {
    groups.push_back(pipeline.machines);
  }
  return groups;
}

// Not all sizes of groups are tried where there are many machines.
TEST(LayoutTest, ManyAlikeMachinesAreAsGoodAsWithAnyNumberOfPipelines) {
  constexpr int kMachines = 200;
  PlanRequest request = SmallRequest(Machines(kMachines, 4e8, 0), 40);
  request.workload.classes = {{100, 20, 8000}};
  const Layout best = Made(request);
  ASSERT_FALSE(best.pipelines.empty());
  EXPECT_GT(best.pipelines.size(), 1u);
  for (const int replicas : {5, 6, 8, 10, 12, 14}) {
    const auto other = MakeLayout(request, replicas);
    if (!other.ok()) continue;
    EXPECT_LE(best.seconds, 1.05 * other->best.seconds) << replicas;
  }
}

TEST(ForEachGroupingTest, SeesEachGroupingOnce) {
  const auto count = [](const std::vector<int>& kinds) {
    int groupings = 0;
    ForEachGrouping(kinds, [&](const Groups& groups) {
      ++groupings;
      std::set<int> machines;
      for (const std::vector<int>& group : groups) {
        EXPECT_FALSE(group.empty());
        machines.insert(group.begin(), group.end());
      }
      EXPECT_EQ(machines.size(), kinds.size());
    });
    return groupings;
  };
  // Bell's numbers; the partitions of a number, where all are alike; and
  // multisets of two kinds: {a, a, b} into aab, aa|b, ab|a, a|a|b.
  EXPECT_EQ(count({0}), 1);
  EXPECT_EQ(count({0, 1, 2}), 5);
  EXPECT_EQ(count({0, 1, 2, 3, 4}), 52);
  EXPECT_EQ(count({7, 7, 7, 7}), 5);
  EXPECT_EQ(count({0, 0, 1}), 4);
}

TEST(MakeLayoutTest, ReplicasWhereTheModelFitsEach) {
  // 800 MB of weights in 4 GB: a pipeline only adds hops and bubbles.
  const PlanRequest request = SmallRequest(Machines(3, 4e9, 0));
  const Layout layout = Made(request);
  EXPECT_THAT(GroupsOf(layout),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  double shares = 0;
  for (const PipelinePlan& pipeline : layout.pipelines) {
    shares += pipeline.share;
    EXPECT_EQ(pipeline.plan.stages[0].machine, pipeline.machines[0]);
    EXPECT_EQ(pipeline.plan.stages[0].worker,
              request.machines[pipeline.machines[0]].name);
  }
  EXPECT_NEAR(shares, 1, 1e-9);
  const Layout one = Made(request, 1);
  EXPECT_EQ(one.pipelines.size(), 1u);
  EXPECT_GT(layout.tokens_per_second, one.tokens_per_second);
}

TEST(MakeLayoutTest, OnePipelineWhereTheModelFitsOnlyAll) {
  // 8 layers of about 100 MB: no disk, and two machines do not hold them.
  const PlanRequest request = SmallRequest(Machines(3, 5.5e8, 0));
  const auto result = MakeLayout(request, 0);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(GroupsOf(result->best), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_FALSE(result->rejected_plans.empty());
  ASSERT_FALSE(result->rejected.empty());
  EXPECT_THAT(result->rejected.back().why, HasSubstr("short"));
}

TEST(MakeLayoutTest, FullStagesAreWorthMoreThanReplicasFromDisk) {
  // Half of the model fits: two machines hold all of it, one streams.
  const PlanRequest request = SmallRequest(Machines(4, 7e8, 1e11));
  const auto layout = MakeLayout(request, 0);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_LT(layout->best.pipelines.size(), 4u);
}

TEST(MakeLayoutTest, SaysWhenReplicasDoNotFit) {
  const PlanRequest request = SmallRequest(Machines(3, 5.5e8, 0));
  const auto result = MakeLayout(request, 2);
  ASSERT_TRUE(absl::IsResourceExhausted(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("each of 2 replicas needs room for the whole model"));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeLayout(request, 4).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeLayout(request, -1).status()));
}

TEST(MakeLayoutTest, SaysOfRoomOnlyWhatLacksRoom) {
  PlanRequest request = SmallRequest(Machines(3, 4e9, 0));
  request.max_latency_seconds = 1e-6;
  const auto result = MakeLayout(request, 2);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("within 1e-06 seconds"));
  EXPECT_THAT(std::string(result.status().message()), Not(HasSubstr("room")));
}

TEST(MakeLayoutTest, MachinesThatHoldNoModelAreSpares) {
  std::vector<MachineProfile> machines = Machines(2, 4e9, 0);
  machines.push_back(TestMachine("tiny", 2e8, 0));
  const Layout layout = Made(SmallRequest(std::move(machines)), 2);
  EXPECT_EQ(layout.pipelines.size(), 2u);
  size_t used = layout.spares.size();
  for (const PipelinePlan& p : layout.pipelines) used += p.machines.size();
  EXPECT_EQ(used, 3u);
}

TEST(MakeLayoutTest, WorkersOfOneMachineShareItsCores) {
  // Two workers of each of two machines: more pipelines on one machine take
  // turns.
  std::vector<MachineProfile> machines;
  for (int i = 0; i < 4; ++i) {
    machines.push_back(TestMachine(absl::StrCat("w", i), 4e9, 0));
    machines.back().machine = absl::StrCat("machine", i / 2);
  }
  const PlanRequest request = SmallRequest(std::move(machines));
  const auto four = EvaluateLayout(request, {{0}, {1}, {2}, {3}});
  const auto two = EvaluateLayout(request, {{0}, {2}});
  ASSERT_TRUE(four.ok() && two.ok());
  EXPECT_LT(four->tokens_per_second, 1.1 * two->tokens_per_second);
  EXPECT_THAT(two->spares, ElementsAre(1, 3));
}

TEST(MakeLayoutTest, AllPipelinesHaveTheSameFormats) {
  // The second machine holds the model only in 4 bits; the first one would
  // rather not dequantize.
  PlanRequest request = SmallRequest(
      {TestMachine("large", 4e9, 0), TestMachine("small", 8e8, 0)});
  request.choices.weight_formats = {WeightFormat::kFull, WeightFormat::kInt4};
  const Layout layout = Made(request, 2);
  ASSERT_EQ(layout.pipelines.size(), 2u);
  for (const PipelinePlan& pipeline : layout.pipelines) {
    EXPECT_EQ(pipeline.plan.stages[0].policy.compress_weights,
              WeightFormat::kInt4);
  }
}

// Measured machines are never quite the same.
TEST(MakeLayoutTest, NearlyAlikeMachinesCostFewPlans) {
  std::mt19937 random(3);
  std::vector<MachineProfile> machines;
  for (int m = 0; m < 12; ++m) {
    const double off = 1 + 0.04 * static_cast<double>(random() % 100) / 100;
    machines.push_back(TestMachine(absl::StrCat("m", m), 7e8 * off, 0, off));
  }
  const auto result = MakeLayout(SmallRequest(std::move(machines)), 0);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LE(result->groups, 60);
  EXPECT_GE(result->best.pipelines.size(), 4u);
}

TEST(MakeLayoutTest, HundredsOfMachines) {
  PlanRequest request = SmallRequest(Machines(96, 7e8, 0));
  request.choices.gbs = {32};
  request.workload.classes = {{100, 20, 8000}};
  const auto result = MakeLayout(request, 0);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LE(result->groups, 60);
  EXPECT_GT(result->best.pipelines.size(), 20u);
  // Stages are never more than layers.
  for (const PipelinePlan& pipeline : result->best.pipelines) {
    EXPECT_LE(pipeline.machines.size(), 8u);
  }
}

TEST(MakeLayoutTest, FasterPipelinesTakeMoreRequests) {
  const PlanRequest request = SmallRequest(
      {TestMachine("slow", 4e9, 0, 1), TestMachine("fast", 4e9, 0, 3)});
  const auto layout = EvaluateLayout(request, {{0}, {1}});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_GT(layout->pipelines[1].share, 2 * layout->pipelines[0].share);
  // So both end at about the same time.
  EXPECT_NEAR(layout->pipelines[0].plan.seconds,
              layout->pipelines[1].plan.seconds, 0.15 * layout->seconds);
}

// -- Beside brute force over all groupings, by the simulator.

TEST(MakeLayoutTest, IsNearTheBestOfAllGroupings) {
  std::mt19937 random(15);
  const auto pick = [&](std::vector<double> from) {
    return from[random() % from.size()];
  };
  int several = 0;
  for (int i = 0; i < 32; ++i) {
    const int count = i % 4 == 3 ? 4 : 2 + i % 2;
    const int kinds = 1 + static_cast<int>(random() % 3);
    std::vector<MachineProfile> of_kind;
    for (int k = 0; k < kinds; ++k) {
      of_kind.push_back(TestMachine("", pick({4e8, 7e8, 1.2e9, 3e9}),
                                    pick({0, 1e11}), pick({1, 2, 4})));
    }
    std::vector<MachineProfile> machines;
    for (int m = 0; m < count; ++m) {
      machines.push_back(of_kind[random() % of_kind.size()]);
      machines.back().name = absl::StrCat("m", m);
      // Some share a machine with the one before.
      machines.back().machine =
          absl::StrCat("host", random() % 5 == 0 && m > 0 ? m - 1 : m);
    }
    PlanRequest request = SmallRequest(std::move(machines));
    request.split = random() % 2 == 0 ? Split::kEven : Split::kBalanced;
    request.workload.classes = {{static_cast<int32_t>(pick({32, 200})),
                                 static_cast<int32_t>(pick({8, 40})),
                                 static_cast<int64_t>(pick({200, 800}))}};
    request.choices.gbs = {32};
    SCOPED_TRACE(absl::StrCat("case ", i));
    const double best = BestSimulated(request);
    const auto made = MakeLayout(request, 0);
    if (!std::isfinite(best)) {
      EXPECT_FALSE(made.ok());
      continue;
    }
    ASSERT_TRUE(made.ok()) << made.status();
    const double chosen = SimulatedSeconds(request, made->best);
    EXPECT_LE(chosen, best / 0.95);
    several += made->best.pipelines.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(several, 5);
  EXPECT_LT(several, 32);
}

// More unlike machines than all of whose groupings are tried.
TEST(MakeLayoutTest, IsNearTheBestOfAllGroupingsOfManyMachines) {
  std::mt19937 random(16);
  for (int i = 0; i < 2; ++i) {
    std::vector<MachineProfile> machines;
    for (int m = 0; m < 7; ++m) {
      machines.push_back(TestMachine(absl::StrCat("m", m), m < 3 ? 5e8 : 9e8, 0,
                                     m < 3 ? 1 : 2.0 + i % 2));
    }
    std::shuffle(machines.begin(), machines.end(), random);
    PlanRequest request = SmallRequest(std::move(machines), 6);
    request.split = i == 0 ? Split::kEven : Split::kBalanced;
    request.choices.gbs = {32};
    std::vector<int> kinds;
    for (const MachineProfile& m : request.machines) {
      kinds.push_back(m.host_memory_bytes > 700'000'000 ? 1 : 0);
    }
    double best = INFINITY;
    std::map<std::vector<int>, bool> fits;
    ForEachGrouping(kinds, [&](const Groups& groups) {
      Groups usable;
      for (const std::vector<int>& group : groups) {
        const auto [it, is_new] = fits.try_emplace(group, false);
        if (is_new) it->second = EvaluateLayout(request, {group}).ok();
        if (it->second) usable.push_back(group);
      }
      if (usable.empty()) return;
      const auto layout = EvaluateLayout(request, usable);
      if (layout.ok()) best = std::min(best, layout->seconds);
    });
    const Layout made = Made(request);
    EXPECT_LE(made.seconds, best / 0.95) << "case " << i;
  }
}

}  // namespace
}  // namespace sluice
