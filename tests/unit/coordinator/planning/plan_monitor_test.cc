#include "coordinator/planning/plan_monitor.h"

#include <gtest/gtest.h>

#include "tests/support/sample_profile.h"

namespace sluice {
namespace {

constexpr auto kRead = static_cast<size_t>(Resource::kDiskRead);
constexpr auto kCompute = static_cast<size_t>(Resource::kDeviceCompute);

// One stage on a machine without a device, whose disk reads 2 GB/s. For each of
// 1000 rows 50 ms of the disk and 40 ms of the cores were predicted.
class PlanMonitorTest : public testing::Test {
 protected:
  PlanMonitorTest() {
    machine_ = SampleProfile();
    machine_.device_memory_bytes = 0;
    machine_.device_compute = {};
    machine_.disk.read_bytes_per_second = 2e9;
    machine_.disk.rates = {{1 << 20, 32, 2e9, 1e9}};
    StagePlan& stage = plan_.stages.emplace_back();
    stage.busy[kRead] = 50;
    stage.busy[kCompute] = 40;
    monitor_.Start(plan_, {machine_}, {500, 500});
    totals_.busy_seconds[kRead] = 7;  // of earlier plans
    totals_.bytes[kRead] = 99e9;
    monitor_.Observe(0, totals_);
  }

  // Adds to the totals for this many rows.
  void Did(double rows, double read_seconds, double read_rate,
           double compute_seconds) {
    totals_.busy_seconds[kRead] += read_seconds;
    totals_.bytes[kRead] += read_seconds * read_rate;
    totals_.busy_seconds[kCompute] += compute_seconds;
    monitor_.Observe(0, totals_);
    rows_.prompt += prompt_share_ * rows;
    rows_.answer += (1 - prompt_share_) * rows;
    seconds_ += std::max(read_seconds, compute_seconds);
    monitor_.Progress(rows_, seconds_, in_flight_);
  }

  MachineProfile machine_;
  Plan plan_;
  PlanMonitor monitor_;
  ResourceTotals totals_;
  PhaseRows rows_;
  double seconds_ = 0;
  double prompt_share_ = 0.5, in_flight_ = 0;
};

TEST_F(PlanMonitorTest, APredictionThatHoldsIsLeftAlone) {
  Did(400, 20, 2e9, 16);
  EXPECT_FALSE(monitor_.Refit().has_value());
  EXPECT_DOUBLE_EQ(monitor_.PredictedSeconds(0, Resource::kDiskRead), 20);
  EXPECT_DOUBLE_EQ(monitor_.MeasuredSeconds(0, Resource::kDiskRead), 20);
  // The rate is within the tolerance of 1.3.
  Did(400, 20, 1.7e9, 20);
  EXPECT_FALSE(monitor_.Refit().has_value());
}

TEST_F(PlanMonitorTest, OfStagesThatThePlanHasNotItKnowsNothing) {
  Did(400, 20, 2e9, 16);
  for (const int stage : {-1, 1}) {
    EXPECT_EQ(monitor_.PredictedSeconds(stage, Resource::kDiskRead), 0);
    EXPECT_EQ(monitor_.MeasuredSeconds(stage, Resource::kDiskRead), 0);
  }
}

TEST_F(PlanMonitorTest, ASlowDiskIsNoticedAndItsRateIsTheMeasuredOne) {
  Did(100, 20, 0.5e9, 4);
  const auto machines = monitor_.Refit();
  ASSERT_TRUE(machines.has_value());
  ASSERT_EQ(machines->size(), 1u);
  EXPECT_NEAR((*machines)[0].disk.read_bytes_per_second, 0.5e9, 1);
  EXPECT_NEAR((*machines)[0].disk.rates[0].read_bytes_per_second, 0.5e9, 1);
  // The cores did as predicted.
  EXPECT_EQ((*machines)[0].host, machine_.host);
}

// Bytes are those of all ranks, seconds of the one that takes longest.
TEST_F(PlanMonitorTest, RanksHaveWiresOfTheirOwn) {
  constexpr auto kWire = static_cast<size_t>(Resource::kHostToDevice);
  MachineProfile machine = SampleProfile();
  machine.ranks = 1;
  machine.host_to_device_bytes_per_second = 1e10;
  plan_.stages[0].policy.ranks = 2;
  plan_.stages[0].busy[kWire] = 50;
  monitor_.Start(plan_, {machine}, {500, 500});
  ResourceTotals totals;
  monitor_.Observe(0, totals);
  totals.busy_seconds[kWire] = 20;
  totals.bytes[kWire] = 20 * 2e10;
  monitor_.Observe(0, totals);
  monitor_.Progress({400.0 / 2, 400.0 / 2}, 20, 0);
  EXPECT_FALSE(monitor_.Refit().has_value());
  // As many bytes as one rank could move are half of what two can.
  totals.busy_seconds[kWire] = 60;
  totals.bytes[kWire] = 60 * 1e10;
  monitor_.Observe(0, totals);
  monitor_.Progress({800.0 / 2, 800.0 / 2}, 60, 0);
  const auto machines = monitor_.Refit();
  ASSERT_TRUE(machines.has_value());
  EXPECT_NEAR((*machines)[0].host_to_device_bytes_per_second, 5e9, 1);
}

TEST_F(PlanMonitorTest, SlowCoresAreNoticed) {
  Did(200, 10, 2e9, 16);  // 8 predicted
  const auto machines = monitor_.Refit();
  ASSERT_TRUE(machines.has_value());
  EXPECT_NEAR((*machines)[0].host.products[0].flops_by_rows.Best(),
              machine_.host.products[0].flops_by_rows.Best() / 2, 1);
  EXPECT_NEAR((*machines)[0].host.layer_seconds,
              machine_.host.layer_seconds * 2, 1e-9);
  EXPECT_EQ((*machines)[0].disk, machine_.disk);
}

TEST_F(PlanMonitorTest, CoresAreNotJudgedByTheFirstPrompts) {
  Did(150, 7.5, 2e9, 16);  // 6 predicted, but prompts come first
  EXPECT_FALSE(monitor_.Refit().has_value());
  Did(50, 2.5, 2e9, 1);
  EXPECT_TRUE(monitor_.Refit().has_value());
}

TEST_F(PlanMonitorTest, CoresAreNotJudgedByOtherRowsThanPlanned) {
  prompt_share_ = 0.65;
  Did(400, 20, 2e9, 32);  // 16 predicted
  EXPECT_FALSE(monitor_.Refit().has_value());
  prompt_share_ = 0.5;
  Did(400, 20, 2e9, 32);
  EXPECT_TRUE(monitor_.Refit().has_value());
}

TEST_F(PlanMonitorTest, CoresAreNotJudgedByWhatMayBeInFlight) {
  in_flight_ = 60;
  Did(400, 20, 2e9, 32);  // 16 predicted
  EXPECT_FALSE(monitor_.Refit().has_value());
  in_flight_ = 0;  // what was in flight once is in the time or not
  Did(79, 4, 2e9, 6.4);
  EXPECT_FALSE(monitor_.Refit().has_value());
  Did(1, 0.1, 2e9, 0.1);
  EXPECT_TRUE(monitor_.Refit().has_value());
}

TEST_F(PlanMonitorTest, FasterThanThoughtIsNoticedToo) {
  Did(800, 28, 3e9, 32);
  const auto machines = monitor_.Refit();
  ASSERT_TRUE(machines.has_value());
  EXPECT_NEAR((*machines)[0].disk.read_bytes_per_second, 3e9, 1);
}

TEST_F(PlanMonitorTest, ADiskThatWaitsIsNotCalledFaster) {
  // It may have saved up what it may do.
  Did(800, 13, 6e9, 32);
  EXPECT_FALSE(monitor_.Refit().has_value());
}

TEST_F(PlanMonitorTest, CoresThatWaitAreNotCalledFaster) {
  // 20 s of computing for what was predicted to take 32, beside 40 s of reads.
  Did(800, 40, 2e9, 20);
  EXPECT_FALSE(monitor_.Refit().has_value());
  // The same while nothing else takes any longer.
  plan_.stages[0].busy[kRead] = 5;
  monitor_.Start(plan_, {machine_}, {500, 500});
  monitor_.Observe(0, totals_);
  rows_ = {};
  seconds_ = 0;
  Did(800, 4, 2e9, 20);
  EXPECT_TRUE(monitor_.Refit().has_value());
}

TEST_F(PlanMonitorTest, TooLittleToTell) {
  Did(2, 2.5, 0.1e9, 0.1);  // less than three seconds of work
  EXPECT_FALSE(monitor_.Refit().has_value());
}

TEST_F(PlanMonitorTest, WhatDoesNotMatterIsLeftAlone) {
  // The disk is slow, but takes a tenth of the time.
  plan_.stages[0].busy[kRead] = 2;
  monitor_.Start(plan_, {machine_}, {500, 500});
  monitor_.Observe(0, totals_);
  rows_ = {};
  seconds_ = 0;
  Did(1000, 4, 1e9, 42);
  EXPECT_FALSE(monitor_.Refit().has_value());
}

TEST_F(PlanMonitorTest, NothingBeforeTheFirstObservation) {
  monitor_.Start(plan_, {machine_}, {500, 500});
  monitor_.Progress({500.0 / 2, 500.0 / 2}, 100, 0);
  EXPECT_EQ(monitor_.MeasuredSeconds(0, Resource::kDiskRead), 0);
  EXPECT_FALSE(monitor_.Refit().has_value());
  monitor_.Observe(3, totals_);  // no such stage
  monitor_.Stop();
  EXPECT_FALSE(monitor_.active());
  EXPECT_FALSE(monitor_.Refit().has_value());
}

}  // namespace
}  // namespace sluice
