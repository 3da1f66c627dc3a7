#include "scheduler/simulate/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/plan/plan_builder.h"
#include "scheduler/plan/stage_case.h"
#include "tests/unit/scheduler/plan_testing.h"

namespace sluice {
namespace {

Plan Planned(const PlanRequest& request) {
  auto result = MakePlan(request);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->best : Plan();
}

SimulationResult Simulated(const PlanRequest& request, const Plan& plan,
                           const SimulationOptions& options = {}) {
  auto result = Simulate(request, plan, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : SimulationResult();
}

TEST(SimulatorTest, RunsEveryRequestToItsEnd) {
  PlanRequest request =
      TestRequest({TestMachine("a", 8e9, 0), TestMachine("b", 8e9, 0)});
  request.workload.classes = {{100, 20, 150}, {400, 5, 50}, {10, 60, 30}};
  const Plan plan = Planned(request);
  const SimulationResult result =
      Simulated(request, plan, {.max_timeline_events = 1000});
  EXPECT_EQ(result.tokens, 150 * 20 + 50 * 5 + 30 * 60);
  EXPECT_NEAR(result.tokens_per_second,
              static_cast<double>(result.tokens) / result.seconds, 1e-9);
  EXPECT_GT(result.steps, 60);
  EXPECT_GT(result.latency_seconds, 0);
  EXPECT_LT(result.latency_seconds, result.seconds);
  ASSERT_EQ(result.stages.size(), 2u);
  for (size_t s = 0; s < 2; ++s) {
    const SimulatedStage& stage = result.stages[s];
    EXPECT_GT(stage.utilization, 0.3);
    EXPECT_LE(stage.utilization, 1);
    // Full overlap: no resource is busy longer than the stage.
    for (const double busy : stage.busy) {
      EXPECT_LE(busy, stage.seconds * (1 + 1e-9));
    }
  }
  EXPECT_FALSE(result.timeline.empty());
  EXPECT_LE(result.timeline.size(), 1000u);
  // The result is the same every time.
  const SimulationResult again =
      Simulated(request, plan, {.max_timeline_events = 1000});
  EXPECT_EQ(again.seconds, result.seconds);
  EXPECT_EQ(again.timeline, result.timeline);
}

// Returns a plan with any sensible block, not only the best; nullopt if it does
// not fit.
std::optional<std::pair<PlanRequest, Plan>> RandomPlan(std::mt19937_64& rng,
                                                       int64_t max_requests) {
  const auto below = [&](int n) { return static_cast<int>(rng() % n); };
  std::vector<MachineProfile> machines;
  const int stages = 1 + below(4);
  for (int s = 0; s < stages; ++s) {
    const double memory = (1 + below(40)) * 1e9;
    machines.push_back(
        TestMachine("w" + std::to_string(s), memory, 1e12, 1 + below(3)));
  }
  PlanRequest request = TestRequest(std::move(machines), 4 * stages);
  request.workload.classes.clear();
  for (int c = below(3); c >= 0; --c) {
    request.workload.classes.push_back(
        {.prompt = 16 + below(500),
         .output = 4 + below(100),
         .count = max_requests / 30 + below(max_requests)});
  }
  request.choices.gbs = {4 << below(5)};
  request.choices.num_microbatches = {1 + below(4)};
  request.choices.num_blocks = {stages + below(2)};
  request.choices.max_step_tokens = {256 << below(4)};
  request.refill = below(4) > 0;
  auto planned = MakePlan(request);
  if (!planned.ok()) return std::nullopt;
  return std::make_pair(request, planned->best);
}

TEST(SimulatorTest, TheClosedFormIsCloseToIt) {
  std::mt19937_64 rng(5);
  std::vector<double> errors;
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    const auto random = RandomPlan(rng, 1500);
    if (!random.has_value()) continue;
    const auto& [request, plan] = *random;
    std::vector<StageChoice> stages;
    for (const StagePlan& stage : plan.stages) {
      stages.push_back({stage.machine, stage.layers, stage.policy});
    }
    const Plan closed =
        BuildPlan(request, stages, plan.block, JobSteps(request, plan.block));
    const SimulationResult result = Simulated(request, plan);
    errors.push_back(std::abs(closed.seconds / result.seconds - 1));
  }
  ASSERT_GT(errors.size(), 25u);
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.04);
  EXPECT_LT(errors[errors.size() * 9 / 10], 0.2);
}

// Jobs too large to be rehearsed as a whole.
TEST(SimulatorTest, ARehearsedPlanIsCloserToIt) {
  std::mt19937_64 rng(6);
  std::vector<double> errors;
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    const auto random = RandomPlan(rng, 15000);
    if (!random.has_value()) continue;
    const auto& [request, plan] = *random;
    const SimulationResult result = Simulated(request, plan);
    errors.push_back(std::abs(plan.seconds / result.seconds - 1));
    EXPECT_LT(errors.back(), 0.1)
        << plan.seconds << " predicted, " << result.seconds << " simulated, "
        << plan.stages.size() << " stages, gbs " << plan.block.gbs;
  }
  ASSERT_GT(errors.size(), 5u);
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.01);
}

TEST(SimulatorTest, HundredsOfMachines) {
  std::vector<MachineProfile> machines;
  for (int i = 0; i < 200; ++i) {
    machines.push_back(TestMachine("w" + std::to_string(i), 8e9, 0));
  }
  PlanRequest request = TestRequest(std::move(machines), 400);
  request.workload.classes = {{64, 16, 3200}};
  request.choices.gbs = {4};
  request.choices.num_microbatches = {1};
  request.choices.num_blocks = {200};
  request.choices.max_step_tokens = {512};
  const Plan plan = Planned(request);
  const SimulationResult result = Simulated(request, plan);
  EXPECT_EQ(result.tokens, 3200 * 16);
  EXPECT_NEAR(plan.seconds, result.seconds, 0.1 * result.seconds);
}

// One block alone in the pipeline: only a step's own micro-batches overlap. Of
// four in stages of four layers each, the first leaves 3/16 of the stage's time
// before the last.
TEST(SimulatorTest, MicroBatchesOfAStepOverlapInTheStages) {
  std::vector<MachineProfile> machines;
  for (int i = 0; i < 4; ++i) {
    machines.push_back(TestMachine("w" + std::to_string(i), 64e9, 0));
  }
  PlanRequest request = TestRequest(std::move(machines), 16);
  request.workload.classes = {{64, 32, 64}};
  const auto share = [&](int num_microbatches) {
    BlockShape block = {.gbs = 64 / num_microbatches,
                        .num_microbatches = num_microbatches,
                        .num_blocks = 1,
                        .max_step_tokens = 1024};
    Policy policy;
    std::vector<StageChoice> stages;
    for (int s = 0; s < 4; ++s) {
      stages.push_back({s, {4 * s, 4 * s + 4}, policy});
    }
    Plan plan = BuildPlan(request, stages, block, JobSteps(request, block));
    const SimulationResult result = Simulated(request, plan);
    double sum = 0;
    for (const SimulatedStage& stage : result.stages) sum += stage.seconds;
    return result.seconds / sum;
  };
  EXPECT_NEAR(share(1), 1, 0.02);
  EXPECT_NEAR(share(4), 1 - 3 * 3.0 / 16 / 4, 0.03);
}

TEST(SimulatorTest, FewKvPositionsHoldSequencesBack) {
  PlanRequest request = TestRequest({TestMachine("w", 64e9, 0)});
  request.workload.classes = {{100, 50, 200}};
  request.choices.gbs = {32};
  Plan plan = Planned(request);
  const SimulationResult all = Simulated(request, plan);
  plan.kv_positions = 8 * 160;
  const SimulationResult few = Simulated(request, plan);
  EXPECT_EQ(few.tokens, all.tokens);
  EXPECT_GT(few.steps, all.steps);
}

TEST(SimulatorTest, WhatPromptsShareTakesTimeAndRoomOnce) {
  PlanRequest request = TestRequest({TestMachine("w", 64e9, 0)});
  request.workload.classes = {{512, 16, 200}};
  request.choices.gbs = {32};
  Plan plan = Planned(request);
  plan.kv_positions = 8 * 544;
  const SimulationResult apart = Simulated(request, plan);
  request.workload.classes[0].shared = 448;
  const SimulationResult shared = Simulated(request, plan);
  EXPECT_EQ(shared.tokens, apart.tokens);
  EXPECT_LT(shared.seconds, apart.seconds / 3);
  EXPECT_LT(shared.steps, apart.steps / 2);  // more run at once
  // Averages are of whole pages, and of a first one that shares nothing.
  request.workload.classes[0].shared = 446;
  EXPECT_EQ(Simulated(request, plan).seconds, shared.seconds);
  // Nor does each class have a first one.
  request.workload.classes.assign(20, {512, 16, 10, 448});
  EXPECT_NEAR(Simulated(request, plan).seconds, shared.seconds,
              shared.seconds / 50);
}

TEST(SimulatorTest, NothingIsSharedWhereStagesDoNot) {
  PlanRequest request = TestRequest({TestMachine("w", 64e9, 64e9)});
  request.workload.classes = {{512, 16, 200, 448}};
  PlanRequest apart = request;
  apart.workload.classes[0].shared = 0;
  const auto seconds = [](const PlanRequest& r, const char* policy) {
    StageChoice stage = {0, {0, r.model.num_layers}, {}};
    EXPECT_TRUE(UpdatePolicy(policy, &stage.policy).ok());
    const auto plan = EvaluatePlan(r, {stage}, 1);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return std::pair(plan->seconds, Simulated(r, *plan).seconds);
  };
  for (const char* one : {"gbs=32 c=0/100/0", "gbs=32 c=0/0/100", "gbs=32"}) {
    const auto [planned, simulated] = seconds(request, one);
    const auto [planned_apart, simulated_apart] = seconds(apart, one);
    EXPECT_LT(planned, 0.6 * planned_apart) << one;
    EXPECT_LT(simulated, 0.6 * simulated_apart) << one;
  }
  for (const char* two : {"gbs=32 c=0/50/50", "gbs=32 sparsity=0.5"}) {
    EXPECT_EQ(seconds(request, two), seconds(apart, two)) << two;
  }
  // Nor by a model with windows.
  for (PlanRequest* r : {&request, &apart}) {
    LayerSpec& layer = r->model.layers.emplace_back();
    layer.window = 64;
    r->model.layers.resize(static_cast<size_t>(r->model.num_layers), layer);
  }
  EXPECT_EQ(seconds(request, "gbs=32"), seconds(apart, "gbs=32"));
}

// Where memory bounds the sequences in flight, more of those that share fit.
TEST(SimulatorTest, SharedPositionsAreReservedOnce) {
  PlanRequest request = TestRequest({TestMachine("w", 6e9, 0)});
  request.workload.classes = {{1024, 64, 5000}};
  const auto apart = MakePlan(request);
  ASSERT_TRUE(apart.ok()) << apart.status();
  request.workload.classes[0].shared = 896;
  const auto shared = MakePlan(request);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_LT(SequencePositions(shared->best), 400);
  EXPECT_GT(SequencePositions(apart->best), 1000);
  const auto slots = [](const Plan& plan) {
    return plan.block.gbs * plan.block.num_microbatches * plan.block.num_blocks;
  };
  EXPECT_GT(slots(shared->best), 2 * slots(apart->best));
  // The scheduler takes as many.
  const SimulationResult run = Simulated(request, shared->best);
  EXPECT_NEAR(run.seconds / shared->best.seconds, 1, 0.1);
}

TEST(SimulatorTest, RefusesWhatCannotRun) {
  const PlanRequest request = TestRequest({TestMachine("w", 64e9, 0)});
  const Plan plan = Planned(request);
  const auto code = [&](const Plan& p, const SimulationOptions& options = {}) {
    return Simulate(request, p, options).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(plan), absl::StatusCode::kOk);
  EXPECT_EQ(code(plan, {.page_tokens = 0}), kInvalid);
  Plan bad = plan;
  bad.stages.clear();
  EXPECT_EQ(code(bad), kInvalid);
  bad = plan;
  bad.stages[0].machine = 1;
  EXPECT_EQ(code(bad), kInvalid);
  bad = plan;
  bad.block.gbs = 0;
  EXPECT_EQ(code(bad), kInvalid);
  bad = plan;
  bad.kv_positions = 64;  // the longest request wants 320
  EXPECT_EQ(code(bad), kInvalid);
}

}  // namespace
}  // namespace sluice
