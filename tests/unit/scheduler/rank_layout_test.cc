#include "scheduler/plan/rank_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/scheduler/layout_testing.h"
#include "tests/unit/scheduler/plan_testing.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Appends `count` parts of machine `whole`.
void AddParts(const std::string& whole, int count, MachineProfile part,
              std::vector<MachineProfile>* machines) {
  for (int p = 0; p < count; ++p) {
    part.name = part.machine = absl::StrCat(whole, "/", p);
    part.part_of = count > 1 ? whole : "";
    machines->push_back(part);
  }
}

MachineProfile Part(double memory, double exchange, double disk = 0,
                    double speed = 1) {
  MachineProfile part = TestMachine("", memory, disk, speed);
  part.exchange = {exchange, 5e-6};
  return part;
}

TEST(TogetherAsTest, AddsWhatIsSharedAndKeepsWhatEachHas) {
  MachineProfile a = TestDeviceMachine("a", 8e9, 4e9, 1e11);
  a.exchange = {1e11, 1e-5};
  a.disk.compute_seconds_per_byte = 1e-10;
  MachineProfile b = a;
  b.device_memory_bytes = 7'900'000'000;
  b.exchange.latency_seconds = 2e-5;
  b.device_compute = TestCompute(4.9e13, 3e11);
  const MachineProfile both = TogetherAs({&a, &b});
  EXPECT_EQ(both.ranks, 2);
  EXPECT_EQ(both.threads, 16);
  EXPECT_EQ(both.rank_threads(), 8);
  EXPECT_EQ(both.host_memory_bytes, 8e9);
  EXPECT_EQ(both.device_memory_bytes, 7.9e9);
  EXPECT_EQ(both.disk_bytes, 2e11);
  EXPECT_EQ(both.disk.read_bytes_per_second, 4e9);
  EXPECT_EQ(both.disk.compute_seconds_per_byte, 5e-11);
  EXPECT_EQ(both.device_compute, b.device_compute);
  EXPECT_EQ(both.exchange.latency_seconds, 2e-5);
  EXPECT_TRUE(both.Check().ok()) << both.Check();
}

TEST(CanComputeTogetherTest, PartsOfOneWholeWithAnExchange) {
  std::vector<MachineProfile> parts;
  AddParts("a", 2, Part(1e9, 1e10), &parts);
  EXPECT_TRUE(CanComputeTogether(parts[0], parts[1]));
  MachineProfile other = parts[1];
  other.part_of = "b";
  EXPECT_FALSE(CanComputeTogether(parts[0], other));
  other = parts[1];
  other.exchange = {};
  EXPECT_FALSE(CanComputeTogether(parts[0], other));
  other = parts[1];
  other.host.Scale(0.5);
  EXPECT_FALSE(CanComputeTogether(parts[0], other));
  other = parts[1];
  other.machine = parts[0].machine;  // the same cores
  EXPECT_FALSE(CanComputeTogether(parts[0], other));
}

TEST(ForEachRankGroupingTest, HasAllSizesThatDivideTheParts) {
  std::vector<MachineProfile> machines;
  AddParts("a", 4, Part(1e9, 1e10), &machines);
  AddParts("b", 3, Part(2e9, 1e10), &machines);
  AddParts("c", 1, Part(1e9, 1e10), &machines);
  std::vector<std::vector<std::vector<int>>> all;
  ForEachRankGrouping(machines, [&](const Grouping& grouping) {
    EXPECT_EQ(grouping.machines.size(), grouping.parts.size());
    for (size_t m = 0; m < grouping.machines.size(); ++m) {
      EXPECT_EQ(static_cast<size_t>(grouping.machines[m].ranks),
                grouping.parts[m].size());
    }
    all.push_back(grouping.parts);
  });
  ASSERT_THAT(all, SizeIs(3 * 2));
  EXPECT_THAT(all[1],
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4),
                          ElementsAre(5), ElementsAre(6), ElementsAre(7)));
}

TEST(MakeRankLayoutTest, MachinesWithoutPartsAreAsByMakeLayout) {
  const PlanRequest request =
      SmallRequest({TestMachine("a", 4e9, 0), TestMachine("b", 4e9, 0, 2)});
  const auto ranks = MakeRankLayout(request, 0);
  const auto plain = MakeLayout(request, 0);
  ASSERT_TRUE(ranks.ok() && plain.ok());
  EXPECT_EQ(ranks->layout.best.seconds, plain->best.seconds);
  EXPECT_THAT(ranks->rejected, SizeIs(0));
  EXPECT_THAT(ranks->grouping.parts,
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

// One request at a time: a pipeline's stages wait for each other, ranks don't.
TEST(MakeRankLayoutTest, FewRequestsAreFastestWithRanks) {
  std::vector<MachineProfile> machines;
  AddParts("a", 4, Part(5.5e8, 5e10), &machines);
  PlanRequest request = SmallRequest(std::move(machines));
  request.workload.classes = {{100, 20, 2}};
  request.choices.gbs = {1};
  request.choices.num_blocks = {1};
  const auto made = MakeRankLayout(request, 0);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->grouping.parts, ElementsAre(ElementsAre(0, 1, 2, 3)));
  ASSERT_FALSE(made->rejected.empty());
  EXPECT_EQ(made->rejected[0].description, "parts alone");
  EXPECT_THAT(made->rejected[0].why, HasSubstr("the best"));
}

// A slow exchange, and requests enough to keep replicas busy.
TEST(MakeRankLayoutTest, ASlowExchangeIsNotWorthIt) {
  std::vector<MachineProfile> machines;
  AddParts("a", 4, Part(4e9, 1e8), &machines);
  const auto made = MakeRankLayout(SmallRequest(std::move(machines)), 0);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->grouping.parts, SizeIs(4));
  EXPECT_THAT(made->rejected, SizeIs(2));
}

TEST(MakeRankLayoutTest, ManyMachinesOfTwoKinds) {
  std::vector<MachineProfile> machines;
  for (int w = 0; w < 6; ++w) {
    AddParts(absl::StrCat("w", w), w < 3 ? 2 : 4,
             Part(w < 3 ? 4e9 : 5.5e8, w < 3 ? 1e8 : 5e10), &machines);
  }
  PlanRequest request = SmallRequest(std::move(machines));
  request.choices.gbs = {32};
  request.choices.num_blocks = {2};
  const auto made = MakeRankLayout(request, 0);
  ASSERT_TRUE(made.ok()) << made.status();
  size_t parts = 0;
  for (const std::vector<int>& of : made->grouping.parts) parts += of.size();
  EXPECT_EQ(parts, 18u);
}

// A worker that may have 2 or 4 ranks, each of which has such a share of the
// rates of one.
MachineProfile FlexibleWorker(double share, double exchange) {
  MachineProfile worker = TestMachine("w", 4e9, 0);
  worker.rank_choices = {{2, share, share, {exchange, 5e-6}},
                         {4, share, share, {exchange, 5e-6}}};
  return worker;
}

TEST(MakeRankLayoutTest, AWorkerHasAsManyRanksAsAreBest) {
  const PlanRequest request = SmallRequest({FlexibleWorker(1, 5e10)});
  const auto made = MakeRankLayout(request, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->grouping.machines[0].ranks, 4);
  const Plan& plan = made->layout.best.pipelines[0].plan;
  EXPECT_EQ(plan.stages[0].policy.ranks, 4);
  EXPECT_THAT(plan.tensor_parallel, HasSubstr("weights stay"));
  // Of 512 rows, 7680 columns in bfloat16, of attention and the MLP, and 2048
  // of the stream twice in float32: three quarters.
  EXPECT_THAT(plan.tensor_parallel,
              HasSubstr("512 rows, each of 4 ranks gets 12.2 MB"));
  EXPECT_THAT(plan.tensor_parallel, HasSubstr("at most 0 % of such a step"));
  EXPECT_THAT(made->rejected, SizeIs(2));
  // A plan that names them is evaluated and simulated with so many.
  const StagePlan& stage = plan.stages[0];
  const auto same = EvaluatePlan(request, {{0, stage.layers, stage.policy}},
                                 plan.block.num_blocks);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_NEAR(same->seconds, plan.seconds, 0.01 * plan.seconds);
  Policy one = stage.policy;
  one.ranks = 1;
  const auto slower =
      EvaluatePlan(request, {{0, stage.layers, one}}, plan.block.num_blocks);
  ASSERT_TRUE(slower.ok()) << slower.status();
  EXPECT_GT(slower->seconds, 1.5 * plan.seconds);
  const auto simulated = Simulate(request, plan, SimulationOptions());
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_NEAR(simulated->seconds, plan.seconds, 0.05 * plan.seconds);
  one.ranks = 3;
  EXPECT_EQ(EvaluatePlan(request, {{0, stage.layers, one}}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MakeRankLayoutTest, RanksThatShareCoresAreNotWorthTheirExchange) {
  PlanRequest request = SmallRequest({FlexibleWorker(0.25, 1e9)});
  const auto made = MakeRankLayout(request, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  const Plan& plan = made->layout.best.pipelines[0].plan;
  EXPECT_EQ(plan.stages[0].policy.ranks, 1);  // not as many as there may be
  EXPECT_EQ(plan.tensor_parallel, "");
  ASSERT_THAT(made->rejected, SizeIs(2));
  EXPECT_EQ(made->rejected[0].description, "tensor-parallel=2");
  EXPECT_THAT(made->rejected[0].why, HasSubstr("the best"));
  // What MakePlan takes for granted is one rank, and said.
  const auto plain = MakePlan(request);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->best.stages[0].policy.ranks, 1);
}

TEST(MakeRankLayoutTest, OnlyTheRanksThatAreAllowed) {
  PlanRequest request = SmallRequest({FlexibleWorker(1, 5e10)});
  request.choices.ranks = {2};
  const auto made = MakeRankLayout(request, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->grouping.machines[0].ranks, 2);
  request.choices.ranks = {3};
  const auto none = MakeRankLayout(request, 1);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("tensor-parallel=3"));
}

TEST(MakeRankLayoutTest, SaysWhatIsMissing) {
  std::vector<MachineProfile> machines;
  AddParts("a", 2, Part(2e8, 1e10), &machines);
  const auto made = MakeRankLayout(SmallRequest(std::move(machines)), 0);
  ASSERT_TRUE(absl::IsResourceExhausted(made.status())) << made.status();
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("is short by"));
}

// -- Beside brute force over the sizes of groups, the groupings of these to
// pipelines, and the splits of layers, by the simulator.

PlanRequest RandomRequest(int i, std::mt19937* random) {
  const auto pick = [&](std::vector<double> from) {
    return from[(*random)() % from.size()];
  };
  std::vector<MachineProfile> machines;
  const double memory = pick({2.5e8, 4e8, 7e8, 1.5e9, 3e9});
  const int kinds[][2] = {{2, 0}, {4, 0}, {2, 1}, {2, 2}};
  const auto& parts = kinds[i % 4];
  for (int w = 0; w < 2; ++w) {
    if (parts[w] == 0) continue;
    MachineProfile part =
        Part(memory * pick({1, 1, 2}), pick({2e8, 1e9, 5e9, 5e10}),
             pick({0, 1e11}), pick({1, 1, 2}));
    part.exchange.latency_seconds = pick({1e-6, 1e-5, 1e-4});
    part.links = {{"", pick({1e8, 1e9, 1e10}), pick({1e-5, 1e-4, 2e-3})}};
    if ((*random)() % 4 == 0) {
      part.device_memory_bytes = static_cast<uint64_t>(part.host_memory_bytes);
      part.device_compute = TestCompute(5e13, 3e11);
      part.host_to_device_bytes_per_second = 1.2e10;
      part.device_to_host_bytes_per_second = 1.2e10;
    }
    AddParts(absl::StrCat("m", w), parts[w], part, &machines);
  }
  PlanRequest request = SmallRequest(std::move(machines));
  request.split = (*random)() % 2 == 0 ? Split::kEven : Split::kBalanced;
  // A few requests only where pipelines are alike: others' shares would be
  // parts of a request.
  const double few = parts[1] == 0 ? 4 : 60;
  request.workload.classes = {{static_cast<int32_t>(pick({32, 200, 600})),
                               static_cast<int32_t>(pick({8, 40})),
                               static_cast<int64_t>(pick({few, 60, 400}))}};
  request.choices.gbs = {static_cast<int32_t>(pick({1, 8, 32}))};
  return request;
}

// Of all sizes of groups, and, where layers may be split either way, of both.
double BestOfAll(const PlanRequest& request) {
  double best = INFINITY;
  ForEachRankGrouping(request.machines, [&](const Grouping& grouping) {
    PlanRequest grouped = request;
    grouped.machines = grouping.machines;
    best = std::min(best, BestSimulated(grouped));
    if (request.split == Split::kEven) return;
    grouped.split = Split::kEven;
    best = std::min(best, BestSimulated(grouped));
  });
  return best;
}

TEST(MakeRankLayoutTest, IsNearTheBestOfAll) {
  std::mt19937 random(4);
  int of_ranks = 0, of_stages = 0, of_replicas = 0, planned = 0;
  for (int i = 0; i < 36; ++i) {
    PlanRequest request = RandomRequest(i, &random);
    SCOPED_TRACE(absl::StrCat("case ", i));
    if (i % 5 == 4) {
      // A limit that the fastest layout may not keep.
      const auto fastest = MakeRankLayout(request, 0);
      if (fastest.ok()) {
        request.max_latency_seconds =
            0.7 * fastest->layout.best.pipelines[0].plan.latency_seconds;
      }
    }
    const double best = BestOfAll(request);
    const auto made = MakeRankLayout(request, 0);
    if (!std::isfinite(best)) {
      EXPECT_FALSE(made.ok());
      continue;
    }
    ASSERT_TRUE(made.ok()) << made.status();
    ++planned;
    PlanRequest grouped = request;
    grouped.machines = made->grouping.machines;
    const double chosen = SimulatedSeconds(grouped, made->layout.best);
    EXPECT_LE(chosen, best / 0.95);
    const auto& pipelines = made->layout.best.pipelines;
    for (const MachineProfile& m : grouped.machines) {
      if (m.ranks > 1) {
        ++of_ranks;
        break;
      }
    }
    of_stages += pipelines[0].plan.stages.size() > 1 ? 1 : 0;
    of_replicas += pipelines.size() > 1 ? 1 : 0;
  }
  // The cases are of all kinds.
  EXPECT_GE(planned, 30);
  EXPECT_GE(of_ranks, 8);
  EXPECT_GE(of_stages, 4);
  EXPECT_GE(of_replicas, 8);
}

}  // namespace
}  // namespace sluice
