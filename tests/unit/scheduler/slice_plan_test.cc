#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/simulate/simulator.h"
#include "tests/unit/scheduler/plan_testing.h"

// Plans of pipelines on the simulated clock: how busy the stages are, and
// whether prompts are cut into slices where that helps.

namespace sluice {
namespace {

using testing::HasSubstr;

// Stages of the same layers, with a head that is next to nothing, so that all
// take as long.
PlanRequest EqualStages(int stages, double memory, double disk) {
  std::vector<MachineProfile> machines;
  for (int s = 0; s < stages; ++s) {
    machines.push_back(TestMachine("w" + std::to_string(s), memory, disk));
  }
  PlanRequest request = TestRequest(std::move(machines), 5 * stages);
  request.model.vocab_size = 256;
  return request;
}

// The plan with prompts cut into slices that follow each other, or not; free
// where `slicing` is not given.
std::optional<Plan> PlanWith(PlanRequest request, std::optional<bool> slicing,
                             int32_t step_tokens = 0) {
  request.choices.slicing = slicing;
  if (step_tokens > 0) request.choices.max_step_tokens = {step_tokens};
  auto result = MakePlan(request);
  if (!result.ok()) return std::nullopt;
  return result->best;
}

// The share of [begin, end) of the job's time in which the least busy stage
// computes.
double BusyShare(const SimulationResult& result, double begin, double end) {
  std::vector<double> busy(result.stages.size());
  for (const StageEvent& event : result.timeline) {
    busy[event.stage] +=
        std::max(0.0, std::min(event.end, end * result.seconds) -
                          std::max(event.begin, begin * result.seconds));
  }
  return *std::min_element(busy.begin(), busy.end()) /
         ((end - begin) * result.seconds);
}

TEST(SlicePlanTest, FourStagesAreBusyInSteadyDecode) {
  PlanRequest request = EqualStages(4, 8e9, 0);
  request.workload.classes = {{64, 512, 640}};
  const std::optional<Plan> plan = PlanWith(request, std::nullopt);
  ASSERT_TRUE(plan.has_value());
  const auto simulated =
      Simulate(request, *plan, {.max_timeline_events = int64_t{1} << 20});
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  const double share = BusyShare(*simulated, 0.3, 0.7);
  std::cout << "steady decode, 4 stages, " << plan->block.num_blocks
            << " blocks: busy " << share << "\n";
  EXPECT_GE(share, 0.9);
}

// Room for two sequences of 4k tokens at a time.
TEST(SlicePlanTest, SlicesFillThePipelineWhereFewLongPromptsFit) {
  PlanRequest request = EqualStages(4, 1.05e9, 0);
  request.workload.classes = {{4096, 2, 24}};
  const std::optional<Plan> with = PlanWith(request, true);
  const std::optional<Plan> without = PlanWith(request, false);
  const std::optional<Plan> chosen = PlanWith(request, std::nullopt);
  ASSERT_TRUE(with && without && chosen);
  const double gain = with->tokens_per_second / without->tokens_per_second;
  std::cout << "4k prompts, 4 stages, " << with->block.gbs << " x "
            << with->block.num_microbatches << " x " << with->block.num_blocks
            << " sequences: slices of " << with->block.max_step_tokens
            << " (context " << with->block.slice_context << ") are " << gain
            << " times as fast as " << without->block.max_step_tokens
            << " without, of " << without->block.gbs << " x "
            << without->block.num_microbatches << " x "
            << without->block.num_blocks << "\n"
            << chosen->slicing << "\n";
  EXPECT_GE(gain, 1.5);
  EXPECT_GE(chosen->tokens_per_second, 0.999 * with->tokens_per_second);
  EXPECT_GT(chosen->block.steps_in_flight, 0);
  EXPECT_TRUE(chosen->stages[0].policy.slicing);
  EXPECT_THAT(chosen->slicing, HasSubstr("follow each other"));
  // The prediction is what is simulated.
  const auto simulated = Simulate(request, *with, {});
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_NEAR(with->seconds, simulated->seconds, 0.02 * simulated->seconds);
}

TEST(SlicePlanTest, OneStageHasNoneAndSaysNothing) {
  PlanRequest request = EqualStages(1, 8e9, 0);
  const std::optional<Plan> plan = PlanWith(request, std::nullopt);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->block.steps_in_flight, 0);
  EXPECT_EQ(plan->slicing, "");
  // Stages of one machine take turns.
  request = EqualStages(2, 8e9, 0);
  for (MachineProfile& machine : request.machines) machine.machine = "one";
  EXPECT_EQ(PlanWith(request, std::nullopt)->block.steps_in_flight, 0);
  request = EqualStages(2, 8e9, 0);
  request.refill = false;
  EXPECT_EQ(PlanWith(request, std::nullopt)->block.steps_in_flight, 0);
}

// Weights that stream make each slice cost a sweep. The choice, of lengths and
// of whether, is about as good as the best of all that the simulator knows.
TEST(SlicePlanTest, TheChoiceIsTheBestOfAllLengths) {
  std::mt19937_64 rng(11);
  const auto any = [&](int from, int to) {
    return from + static_cast<int>(rng() % (to - from + 1));
  };
  int sliced = 0, streamed = 0, tried = 0, within = 0;
  for (int i = 0; i < 12; ++i) {
    const int stages = any(2, 4);
    // A stage's weights are 0.46 GB.
    const bool streams = i % 2 == 0;
    PlanRequest request = EqualStages(
        stages, streams ? 0.5e9 + 0.05e9 * any(0, 3) : 1e9 + 0.2e9 * any(0, 4),
        streams ? 1e11 : 0);
    for (MachineProfile& machine : request.machines) {
      machine.disk.read_bytes_per_second = 2.5e8 * (1 << any(0, 4));
    }
    request.workload.classes = {
        {1024 << any(0, 2), 1 << any(0, 5), any(6, 30)}};
    SCOPED_TRACE(i);
    const std::optional<Plan> chosen = PlanWith(request, std::nullopt);
    if (!chosen.has_value()) continue;
    double best = chosen->seconds;
    int32_t best_tokens = 0;
    bool best_slices = false;
    for (const bool slicing : {false, true}) {
      for (int32_t tokens = 64; tokens <= 4096; tokens *= 2) {
        const std::optional<Plan> plan = PlanWith(request, slicing, tokens);
        if (!plan.has_value() || plan->seconds >= best) continue;
        best = plan->seconds;
        best_tokens = tokens;
        best_slices = slicing;
      }
    }
    ++tried;
    within += chosen->seconds <= 1.02 * best;
    streamed += chosen->stages[0].policy.weights.disk > 0;
    sliced += chosen->block.steps_in_flight > 0;
    EXPECT_LE(chosen->seconds, 1.05 * best)
        << chosen->block.max_step_tokens << " tokens chosen, slicing "
        << (chosen->block.steps_in_flight > 0) << "; best " << best_tokens
        << ", " << best_slices;
    EXPECT_NE(chosen->slicing, "");
  }
  std::cout << tried << " plans, " << streamed << " with streamed weights, "
            << sliced << " with slices, " << within
            << " within 2 % of the best\n";
  EXPECT_GE(tried, 10);
  EXPECT_GE(streamed, 3);
  EXPECT_GE(within, tried * 9 / 10);
}

}  // namespace
}  // namespace sluice
