#include "scheduler/simulate/event_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "scheduler/cost/pipeline_time.h"

namespace sluice {

void PrintTo(const StageEvent& e, std::ostream* os) {
  *os << "stage " << e.stage << " block " << e.block << " step " << e.step
      << ": " << e.begin << " to " << e.end;
}

namespace {

// Blocks with so many steps to do each, one at a time.
struct Blocks {
  Blocks(int num_blocks, int steps)
      : left(num_blocks, steps), idle(num_blocks, true) {}
  // Begins a step of the first idle block that has one; -1: there is none.
  int Take() {
    for (size_t b = 0; b < left.size(); ++b) {
      if (!idle[b] || left[b] == 0) continue;
      --left[b];
      idle[b] = false;
      return static_cast<int>(b);
    }
    return -1;
  }
  std::vector<int> left;
  std::vector<bool> idle;
};

// Each block does so many steps, of kinds that follow each other in runs of
// `run` steps.
class FixedSteps : public StepSource {
 public:
  FixedSteps(std::vector<std::vector<double>> seconds, int num_blocks,
             int steps, int run)
      : seconds_(std::move(seconds)), run_(run), blocks_(num_blocks, steps) {}

  bool Next(double now, int* block, std::vector<double>* seconds) override {
    const int b = blocks_.Take();
    if (b < 0) return false;
    *block = b;
    const int kind =
        blocks_.left[b] / run_ % static_cast<int>(seconds_[0].size());
    for (size_t s = 0; s < seconds_.size(); ++s) {
      (*seconds)[s] = seconds_[s][kind];
    }
    return true;
  }
  void Done(int block, double now) override { blocks_.idle[block] = true; }

 private:
  std::vector<std::vector<double>> seconds_;  // by stage and kind
  int run_;
  Blocks blocks_;
};

PipelineRun RunFixed(const std::vector<PipelineStage>& stages, int num_blocks,
                     double step_seconds, int steps, int64_t timeline = 0) {
  std::vector<std::vector<double>> seconds;
  for (const PipelineStage& stage : stages) seconds.push_back({stage.seconds});
  FixedSteps source(seconds, num_blocks, steps, 1);
  return RunPipeline(stages, step_seconds, &source, timeline);
}

TEST(EventPipelineTest, FollowsBlocksThroughTheStages) {
  const std::vector<PipelineStage> stages = {
      {.machine = 0, .seconds = 2, .hop_seconds = 1},
      {.machine = 1, .seconds = 3}};
  const PipelineRun run = RunFixed(stages, 2, 0.5, 2, 100);
  EXPECT_EQ(run.steps, 4);
  EXPECT_EQ(run.timeline, (std::vector<StageEvent>{{0, 0, 0, 0, 2},
                                                   {0, 1, 1, 2, 4},
                                                   {1, 0, 0, 3, 6},
                                                   {0, 0, 2, 6.5, 8.5},
                                                   {1, 1, 1, 6, 9},
                                                   {0, 1, 3, 9.5, 11.5},
                                                   {1, 0, 2, 9.5, 12.5},
                                                   {1, 1, 3, 12.5, 15.5}}));
  EXPECT_EQ(run.seconds, 16);
  EXPECT_EQ(run.busy, (std::vector<double>{8, 12}));
}

// Stages on machines of their own are followed without events if nobody asks
// for a timeline.
TEST(EventPipelineTest, WithoutATimelineItTakesAsLong) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(0, 3);
  for (int i = 0; i < 50; ++i) {
    std::vector<PipelineStage> stages;
    std::vector<std::vector<double>> kinds;
    for (int s = 0; s <= i % 6; ++s) {
      stages.push_back({.machine = s, .hop_seconds = seconds(random)});
      kinds.push_back({seconds(random), seconds(random), seconds(random)});
    }
    const int blocks = 1 + i % 5;
    const double step = seconds(random);
    FixedSteps same(kinds, blocks, 20, 2), other(kinds, blocks, 20, 2);
    const PipelineRun events = RunPipeline(stages, step, &same, 1);
    const PipelineRun direct = RunPipeline(stages, step, &other, 0);
    EXPECT_EQ(direct.steps, events.steps);
    EXPECT_NEAR(direct.seconds, events.seconds, 1e-9 * events.seconds);
    for (size_t s = 0; s < stages.size(); ++s) {
      EXPECT_NEAR(direct.busy[s], events.busy[s], 1e-9 * events.seconds);
    }
  }
}

TEST(EventPipelineTest, KeepsTheFirstEventsOnly) {
  const std::vector<PipelineStage> stages = {{.machine = 0, .seconds = 1}};
  EXPECT_EQ(RunFixed(stages, 1, 0, 10, 3).timeline.size(), 3u);
  EXPECT_TRUE(RunFixed(stages, 1, 0, 10, 0).timeline.empty());
}

TEST(EventPipelineTest, StagesOfOneMachineTakeTurns) {
  const std::vector<PipelineStage> stages = {{.machine = 5, .seconds = 2},
                                             {.machine = 5, .seconds = 3}};
  EXPECT_EQ(RunFixed(stages, 2, 0, 10).seconds, 100);
}

TEST(EventPipelineTest, NothingToDo) {
  const PipelineRun run = RunFixed({{.machine = 0, .seconds = 1}}, 3, 1, 0);
  EXPECT_EQ(run.steps, 0);
  EXPECT_EQ(run.seconds, 0);
}

struct RandomCase {
  std::vector<PipelineStage> stages;
  int num_blocks;
  double step_seconds;
};

RandomCase MakeCase(std::mt19937_64& rng, bool shared) {
  const auto below = [&](int n) { return static_cast<int>(rng() % n); };
  std::uniform_real_distribution<double> share(0, 1);
  RandomCase c;
  const int stages = 1 + below(8);
  for (int s = 0; s < stages; ++s) {
    c.stages.push_back({.machine = shared ? below(stages) : s,
                        .seconds = 0.2 + share(rng),
                        .hop_seconds = below(3) == 0 ? share(rng) : 0});
  }
  c.num_blocks = 1 + below(2 * stages);
  c.step_seconds = below(2) == 0 ? 0 : share(rng);
  return c;
}

TEST(PipelineTimeTest, IsTheSimulatedTime) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    const RandomCase c = MakeCase(rng, false);
    const int steps = 50;
    std::vector<std::vector<double>> seconds;
    for (const PipelineStage& stage : c.stages) {
      seconds.push_back({stage.seconds});
    }
    const double closed =
        JobSeconds(c.stages, seconds, {steps}, c.num_blocks, c.step_seconds);
    const double simulated =
        RunFixed(c.stages, c.num_blocks, c.step_seconds, steps).seconds;
    EXPECT_NEAR(closed, simulated, 0.02 * simulated);
  }
}

// Stages that share a machine may meet there with nothing to do elsewhere: the
// closed form is the least that is possible.
TEST(PipelineTimeTest, IsCloseWhereStagesShareMachines) {
  std::mt19937_64 rng(2);
  double sum = 0;
  const int cases = 500;
  for (int i = 0; i < cases; ++i) {
    SCOPED_TRACE(i);
    const RandomCase c = MakeCase(rng, true);
    const int steps = 50;
    std::vector<std::vector<double>> seconds;
    for (const PipelineStage& stage : c.stages) {
      seconds.push_back({stage.seconds});
    }
    const double closed =
        JobSeconds(c.stages, seconds, {steps}, c.num_blocks, c.step_seconds);
    const double simulated =
        RunFixed(c.stages, c.num_blocks, c.step_seconds, steps).seconds;
    EXPECT_LE(closed, 1.02 * simulated);
    EXPECT_GE(closed, 0.6 * simulated);
    sum += closed / simulated;
  }
  EXPECT_GT(sum / cases, 0.95);
}

TEST(PipelineTimeTest, SumsTheKindsOfSteps) {
  const std::vector<PipelineStage> stages = {{.machine = 0}, {.machine = 1}};
  const std::vector<std::vector<double>> seconds = {{1, 3}, {2, 1}};
  const double closed = JobSeconds(stages, seconds, {50, 50}, 2, 0);
  EXPECT_NEAR(closed, 50 * (2 * 2 + 2 * 3), 3);
  FixedSteps in_phases(seconds, 2, 100, 50);
  const double simulated = RunPipeline(stages, 0, &in_phases, 0).seconds;
  EXPECT_NEAR(closed, simulated, 0.03 * simulated);
  // Where kinds take turns, one block's slow step is beside another's quick
  // one, and it takes less.
  FixedSteps in_turns(seconds, 2, 100, 1);
  const double mixed = RunPipeline(stages, 0, &in_turns, 0).seconds;
  EXPECT_LT(mixed, closed);
  EXPECT_GT(mixed, 0.8 * closed);
}

// Steps of random kinds, each as slow in all stages as in one.
class RandomSteps : public StepSource {
 public:
  RandomSteps(const std::vector<std::vector<double>>& seconds,
              const std::vector<double>& shares, int num_blocks, int steps)
      : seconds_(seconds),
        kinds_(shares.begin(), shares.end()),
        blocks_(num_blocks, steps) {}
  bool Next(double now, int* block, std::vector<double>* seconds) override {
    *block = blocks_.Take();
    if (*block < 0) return false;
    const size_t kind = kinds_(rng_);
    for (size_t s = 0; s < seconds_.size(); ++s) {
      (*seconds)[s] = seconds_[s][kind];
    }
    return true;
  }
  void Done(int block, double now) override { blocks_.idle[block] = true; }

 private:
  const std::vector<std::vector<double>>& seconds_;
  std::discrete_distribution<size_t> kinds_;
  std::mt19937_64 rng_;
  Blocks blocks_;
};

TEST(PipelineTimeTest, KindsAtRandomHoldEachOtherUp) {
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<double> share(0, 1);
  std::vector<double> errors;
  for (int i = 0; i < 200; ++i) {
    const int stages = 1 + static_cast<int>(rng() % 8);
    const int kinds = 1 + static_cast<int>(rng() % 5);
    const int num_blocks = stages + static_cast<int>(rng() % (stages + 1));
    const int steps = 300;
    std::vector<PipelineStage> pipeline;
    std::vector<std::vector<double>> seconds(stages);
    std::vector<double> rounds;
    for (int k = 0; k < kinds; ++k) {
      rounds.push_back(0.05 + share(rng));
      const double slow = 0.1 + share(rng);
      for (int s = 0; s < stages; ++s) {
        seconds[s].push_back(slow * (1 + 0.1 * share(rng)));
      }
    }
    for (int s = 0; s < stages; ++s) pipeline.push_back({.machine = s});
    double all = 0;
    for (const double r : rounds) all += r;
    for (double& r : rounds) r *= steps / all;
    RandomSteps source(seconds, rounds, num_blocks, steps);
    const double simulated = RunPipeline(pipeline, 0, &source, 0).seconds;
    const double closed =
        JobSeconds(pipeline, seconds, rounds, num_blocks, 0, 1);
    errors.push_back(std::abs(closed / simulated - 1));
    EXPECT_LT(errors.back(), 0.25) << stages << " stages " << num_blocks;
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.06);
}

TEST(PipelineTimeTest, NoRoundsTakeNoTime) {
  EXPECT_EQ(JobSeconds({{.machine = 0}}, {{1}}, {0}, 1, 0), 0);
  EXPECT_EQ(JobSeconds({{.machine = 0}}, {{}}, {}, 1, 0), 0);
}

}  // namespace
}  // namespace sluice
