#include "scheduler/plan/policy_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "common/policy.h"
#include "scheduler/plan/stage_case.h"
#include "tests/unit/scheduler/plan_testing.h"

namespace sluice {
namespace {

// A question with its request and steps.
struct Asked {
  PlanRequest request;
  BlockShape block;
  std::vector<StepShape> steps;

  StageQuestion Question() const {
    return {.request = &request,
            .machine = 0,
            .layers = {0, request.model.num_layers},
            .block = block,
            .steps = steps};
  }
};

Asked Ask(MachineProfile machine, int32_t gbs, int32_t micro_batches,
          int layers = 20) {
  Asked asked;
  asked.request = TestRequest({std::move(machine)}, layers);
  asked.block = {.gbs = gbs,
                 .num_microbatches = micro_batches,
                 .num_blocks = 1,
                 .max_step_tokens = 1024};
  asked.steps = JobSteps(asked.request, asked.block);
  return asked;
}

StageAnswer Answered(const Asked& asked) {
  int64_t programs = 0;
  auto answer = SolveStage(asked.Question(), &programs);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? *answer : StageAnswer();
}

bool Holds(const Asked& asked, const Policy& policy) {
  const StageCase stage = MakeStageCase(
      asked.request, 0, asked.Question().layers, policy, asked.block);
  return PlacementOf(stage, FractionsOf(policy)).Fits(LimitsOf(stage));
}

double SecondsOf(const Asked& asked, const Policy& policy) {
  const StageCase stage = MakeStageCase(
      asked.request, 0, asked.Question().layers, policy, asked.block);
  double seconds = 0;
  for (const StepShape& step : asked.steps) {
    seconds += step.count * StepSeconds(stage, step, FractionsOf(policy));
  }
  return seconds;
}

TEST(SolveStageTest, NeverOffloadsWhatFits) {
  const StageAnswer on_cpu = Answered(Ask(TestMachine("w", 64e9, 1e12), 16, 1));
  ASSERT_TRUE(on_cpu.fits);
  EXPECT_EQ(on_cpu.policy.weights, (TierFractions{0, 1, 0}));
  EXPECT_EQ(on_cpu.policy.kv_cache, (TierFractions{0, 1, 0}));
  EXPECT_EQ(on_cpu.policy.activations, (TierFractions{0, 1, 0}));

  const StageAnswer on_device =
      Answered(Ask(TestDeviceMachine("w", 24e9, 64e9, 1e12), 16, 1));
  ASSERT_TRUE(on_device.fits);
  EXPECT_EQ(on_device.policy.weights, (TierFractions{1, 0, 0}));
  EXPECT_EQ(on_device.policy.kv_cache, (TierFractions{1, 0, 0}));
  EXPECT_EQ(on_device.policy.activations, (TierFractions{1, 0, 0}));
}

TEST(SolveStageTest, PutsOnDiskOnlyWhatMemoryDoesNotHold) {
  // 2.3 GB of weights and about 1.3 GB of KV in 2.5 GB.
  const Asked asked = Ask(TestMachine("w", 2.5e9, 1e12), 16, 1);
  const StageAnswer answer = Answered(asked);
  ASSERT_TRUE(answer.fits);
  EXPECT_TRUE(Holds(asked, answer.policy));
  const double disk = answer.policy.weights.disk + answer.policy.kv_cache.disk;
  EXPECT_GT(disk, 0.05);
  // With a little less there it does not hold.
  Policy more = answer.policy;
  if (more.weights.disk > 0.01) {
    more.weights.disk -= 0.01;
    more.weights.host += 0.01;
  } else {
    more.kv_cache.disk -= 0.01;
    more.kv_cache.host += 0.01;
  }
  EXPECT_FALSE(Holds(asked, more));
}

// All splits of 1 into three parts that are multiples of 1 / parts, on the
// tiers that the machine has.
std::vector<TierFractions> GridOf(const MachineProfile& machine, int parts) {
  std::vector<TierFractions> grid;
  for (int device = 0; device <= (machine.has_device() ? parts : 0); ++device) {
    for (int disk = 0; disk <= (machine.disk_bytes > 0 ? parts - device : 0);
         ++disk) {
      const double part = 1.0 / parts;
      grid.push_back(
          {device * part, (parts - device - disk) * part, disk * part});
    }
  }
  return grid;
}

TEST(SolveStageTest, IsAtLeastAsGoodAsAnyPolicyOfAGrid) {
  std::mt19937_64 rng(3);
  const auto between = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(rng);
  };
  int solved = 0, compared = 0;
  for (int i = 0; i < 24; ++i) {
    SCOPED_TRACE(i);
    const double memory = between(0.5e9, 8e9);
    MachineProfile machine =
        i % 2 == 0 ? TestMachine("w", memory, 20e9)
                   : TestDeviceMachine("w", between(0.5e9, 4e9), memory, 20e9);
    machine.disk.read_bytes_per_second = between(2e8, 6e9);
    Asked asked = Ask(machine, 8, 1 + static_cast<int>(rng() % 3), 10);
    asked.request.choices.attention_sites = {
        i % 4 < 2 ? AttentionSite::kHost : AttentionSite::kDevice};
    // The count keeps KV at its maximum: the grid does not take it by need.
    asked.request.workload.classes[0].count = 2 * 8 * 3;
    asked.steps = JobSteps(asked.request, asked.block);
    const StageAnswer answer = Answered(asked);
    if (answer.fits) {
      ++solved;
      EXPECT_TRUE(Holds(asked, answer.policy)) << PolicyText(answer.policy);
      EXPECT_NEAR(SecondsOf(asked, answer.policy), answer.seconds,
                  1e-9 * answer.seconds);
      EXPECT_GE(answer.seconds, StageBound(asked.Question()) * (1 - 1e-9));
    }
    // If all data fits on the nearest tier it stays there, and no other
    // placement is compared.
    const int nearest = machine.has_device() ? 0 : 1;
    if (FractionsOf(answer.policy)[nearest] == 1 &&
        FractionsOf(answer.policy)[3 + nearest] == 1 &&
        FractionsOf(answer.policy)[6 + nearest] == 1) {
      continue;
    }
    const std::vector<TierFractions> grid = GridOf(machine, 10);
    const std::vector<TierFractions> coarse = GridOf(machine, 2);
    for (const TierFractions& weights : grid) {
      for (const TierFractions& kv : grid) {
        for (const TierFractions& activations : coarse) {
          Policy policy = answer.policy;
          policy.attention_site = asked.request.choices.attention_sites[0];
          policy.weights = weights;
          policy.kv_cache = kv;
          policy.activations = activations;
          policy.automatic_weights = policy.automatic_kv_cache =
              policy.automatic_activations = false;
          if (!Holds(asked, policy)) continue;
          ++compared;
          ASSERT_TRUE(answer.fits) << PolicyText(policy);
          // A grain of each fraction is rounding, and ties cost a little.
          ASSERT_LE(answer.seconds, 1.01 * SecondsOf(asked, policy))
              << PolicyText(policy) << "\nbut " << PolicyText(answer.policy);
        }
      }
    }
  }
  EXPECT_GT(solved, 12);
  EXPECT_GT(compared, 1000);
}

TEST(SolveStageTest, ThePolicyCanBePrintedAndReadBack) {
  for (double memory = 1.5e9; memory < 5e9; memory += 0.37e9) {
    const Asked asked = Ask(TestMachine("w", memory, 1e12), 16, 2);
    const StageAnswer answer = Answered(asked);
    ASSERT_TRUE(answer.fits) << memory;
    Policy read;
    read.dtype = answer.policy.dtype;
    ASSERT_TRUE(UpdatePolicy(PolicyText(answer.policy), &read).ok())
        << PolicyText(answer.policy);
    EXPECT_EQ(PolicyText(read), PolicyText(answer.policy));
    EXPECT_NEAR(read.weights.disk, answer.policy.weights.disk, 1e-12);
    EXPECT_NEAR(read.kv_cache.disk, answer.policy.kv_cache.disk, 1e-12);
  }
}

TEST(SolveStageTest, TakesKvByNeedWhereTheRuntimeDoes) {
  // 6 GB of KV at 576 positions each, 2.4 GB of weights.
  Asked asked = Ask(TestMachine("w", 7.2e9, 0), 64, 1);
  asked.request.workload.classes = {
      {.prompt = 64, .output = 512, .count = 800}};
  asked.steps = JobSteps(asked.request, asked.block);
  const StageAnswer by_need = Answered(asked);
  EXPECT_TRUE(by_need.fits);
  EXPECT_TRUE(by_need.policy.automatic_kv_cache);
  EXPECT_EQ(by_need.policy.kv_cache, (TierFractions{0, 1, 0}));
  // There are too few requests to spread them: all of them would be long at
  // once.
  asked.request.workload.classes[0].count = 70;
  asked.steps = JobSteps(asked.request, asked.block);
  EXPECT_FALSE(Answered(asked).fits);
}

TEST(SolveStageTest, FewerThreadsWhereTheyGiveMore) {
  MachineProfile machine = TestMachine("w", 64e9, 0);
  EXPECT_EQ(Answered(Ask(machine, 8, 1)).policy.compute_threads, 0);
  machine.host.share_by_threads = RateCurve({{1, 0.3}, {4, 1.2}, {8, 1}});
  EXPECT_EQ(Answered(Ask(machine, 8, 1)).policy.compute_threads, 4);
}

TEST(SolveStageTest, AttendsWhereItCostsLess) {
  // KV does not fit on the device. Over a slow bus it is attended where it
  // lies; with a slow host it is copied.
  MachineProfile machine = TestDeviceMachine("w", 4e9, 64e9, 0);
  machine.host_to_device_bytes_per_second = 2e9;
  machine.device_to_host_bytes_per_second = 2e9;
  EXPECT_EQ(Answered(Ask(machine, 64, 4)).policy.attention_site,
            AttentionSite::kHost);
  machine.host_to_device_bytes_per_second = 5e10;
  machine.device_to_host_bytes_per_second = 5e10;
  machine.host = TestCompute(1e11, 2e9);
  ASSERT_TRUE(Answered(Ask(machine, 64, 4)).fits);
  EXPECT_EQ(Answered(Ask(machine, 64, 4)).policy.attention_site,
            AttentionSite::kDevice);
}

TEST(ShortageTest, WhatIsMissingWouldBeEnough) {
  for (const bool disk : {false, true}) {
    SCOPED_TRACE(disk);
    Asked asked = Ask(TestMachine("w", 0.6e9, disk ? 1.5e9 : 0), 16, 1);
    // There are as many requests as slots, so that KV is at its maximum.
    asked.request.workload.classes[0].count = 16;
    EXPECT_FALSE(Answered(asked).fits);
    const auto shortage = ShortageOf(asked.Question());
    ASSERT_TRUE(shortage.ok()) << shortage.status();
    EXPECT_GT(shortage->missing_bytes, 0);
    const auto remedies = RemediesOf(asked.Question());
    ASSERT_TRUE(remedies.ok()) << remedies.status();
    ASSERT_FALSE(remedies->empty());
    for (const CapacityRemedy& remedy : *remedies) {
      SCOPED_TRACE(remedy.what);
      const auto with = [&](double share) {
        Asked more = asked;
        MachineProfile& machine = more.request.machines[0];
        uint64_t& bytes = remedy.what == "host memory"
                              ? machine.host_memory_bytes
                              : machine.disk_bytes;
        bytes += static_cast<uint64_t>(share * remedy.missing_bytes);
        return Answered(more).fits;
      };
      EXPECT_TRUE(with(1.001));
      EXPECT_FALSE(with(0.97));
    }
  }
}

TEST(ShortageTest, NothingIsMissingWhereAllFits) {
  const Asked asked = Ask(TestMachine("w", 64e9, 0), 16, 1);
  const auto shortage = ShortageOf(asked.Question());
  ASSERT_TRUE(shortage.ok()) << shortage.status();
  EXPECT_EQ(shortage->missing_bytes, 0);
}

}  // namespace
}  // namespace sluice
