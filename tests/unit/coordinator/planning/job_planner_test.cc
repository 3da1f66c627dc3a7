#include "coordinator/planning/job_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/scheduler/plan_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class FindPlanTest : public testing::Test {
 protected:
  FindPlanTest() {
    const PlanRequest request = TestRequest({TestMachine("a", 4e9, 1e11)});
    base_.model = request.model;
    base_.max_model_len = 320;
    workload_ = request.workload;
    task_.machines = request.machines;
    // The slow plan has steps of a single sequence.
    PlanRequest slow = base_;
    slow.choices.gbs = {1};
    slow.choices.num_microbatches = {1};
    std::optional<Plan> none;
    auto plan = FindPlan(slow, workload_, task_, &none);
    EXPECT_TRUE(plan.ok()) << plan.status();
    task_.present = *plan;
  }

  PlanRequest base_;
  Workload workload_;
  PlanTask task_;
};

TEST_F(FindPlanTest, ABetterPlanTakesThePresentOnesPlace) {
  std::optional<Plan> present;
  const auto best = FindPlan(base_, workload_, task_, &present);
  ASSERT_TRUE(best.ok()) << best.status();
  ASSERT_TRUE(present.has_value());
  EXPECT_GT(best->tokens_per_second, 2 * present->tokens_per_second);
  // The best plan is then the one to beat.
  task_.present = *best;
  EXPECT_TRUE(absl::IsAlreadyExists(
      FindPlan(base_, workload_, task_, &present).status()));
}

TEST_F(FindPlanTest, NoneThatSavesLessThanLoadingTakes) {
  std::optional<Plan> present;
  const auto best = FindPlan(base_, workload_, task_, &present);
  ASSERT_TRUE(best.ok()) << best.status();
  const double saved = present->seconds - best->seconds;
  task_.load_seconds = 0.99 * saved;
  EXPECT_TRUE(FindPlan(base_, workload_, task_, &present).ok());
  task_.load_seconds = 1.01 * saved;
  const absl::Status status =
      FindPlan(base_, workload_, task_, &present).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("but loading takes"));
  EXPECT_TRUE(present.has_value());
  // Half of the requests' rows would have to be computed again.
  task_.load_seconds = 0;
  task_.held_rows = 0.5 * RowsOf(workload_).all();
  const bool worth = 0.5 * present->seconds > best->seconds;
  EXPECT_EQ(FindPlan(base_, workload_, task_, &present).ok(), worth);
  task_.load_seconds = 0.5 * present->seconds - 0.99 * best->seconds;
  EXPECT_FALSE(FindPlan(base_, workload_, task_, &present).ok());
  task_.load_seconds = 0.5 * present->seconds - 1.01 * best->seconds;
  EXPECT_TRUE(FindPlan(base_, workload_, task_, &present).ok());
}

// KV of the present plan was reserved for requests of 320 positions.
TEST_F(FindPlanTest, APlanForShorterRequestsGivesWayToLongerOnes) {
  base_.max_model_len = 8192;
  task_.machines = {TestDeviceMachine("a", 4e9, 4e9, 1e11)};
  base_.choices.gbs = {2};
  base_.choices.num_microbatches = {1};
  base_.choices.num_blocks = {1};
  task_.present = std::nullopt;
  std::optional<Plan> present;
  const auto plan = FindPlan(base_, workload_, task_, &present);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->stages[0].policy.automatic_kv_cache);
  EXPECT_EQ(SequencePositions(*plan), 320) << "not for all 8192";
  task_.present = *plan;
  EXPECT_TRUE(absl::IsAlreadyExists(
      FindPlan(base_, workload_, task_, &present).status()));
  // 640 positions are all that there is: one at a time.
  workload_.classes = {{576, 64, 100}};
  EXPECT_TRUE(FindPlan(base_, workload_, task_, &present).ok());
  ASSERT_TRUE(present.has_value());
  EXPECT_EQ(SequencePositions(*present), 320);
  // Longer ones could not run at all, however long loading takes.
  workload_.classes = {{2000, 64, 1}};
  task_.load_seconds = 1e9;
  const auto longer = FindPlan(base_, workload_, task_, &present);
  ASSERT_TRUE(longer.ok()) << longer.status();
  EXPECT_GE(SequencePositions(*longer), 2064);
}

// As the coordinator counts them when steps come back: see BlockDriver.
TEST(RowsOfTest, AnAnswersFirstTokenTakesNoRow) {
  EXPECT_EQ(RowsOf({{{100, 1, 4}, {10, 5, 2}}}), (PhaseRows{420, 8}));
}

TEST_F(FindPlanTest, WorkersHaveTheRanksThatAreBest) {
  MachineProfile& worker = task_.machines[0];
  worker.rank_choices = {{2, 1, 1, {5e10, 1e-6}}};
  std::optional<Plan> present;
  const auto best = FindPlan(base_, workload_, task_, &present);
  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_EQ(best->stages[0].policy.ranks, 2);
  // A plan of one rank is predicted with one.
  task_.present = *best;
  task_.present->stages[0].policy.ranks = 1;
  ASSERT_TRUE(FindPlan(base_, workload_, task_, &present).ok());
  EXPECT_GT(present->seconds, 1.2 * best->seconds);
  // Two workers have no stage together, whatever their profiles say.
  worker.rank_choices.clear();
  worker.part_of = "a";
  worker.exchange = {5e10, 1e-6};
  task_.present.reset();
  task_.machines.push_back(worker);
  task_.machines[1].name = task_.machines[1].machine = "b";
  const auto two = FindPlan(base_, workload_, task_, &present);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->stages.size(), 2u);
  EXPECT_EQ(two->stages[0].policy.ranks, 0);
}

class FindLayoutTest : public testing::Test {
 protected:
  FindLayoutTest() {
    const PlanRequest request =
        TestRequest({TestMachine("a", 4e9, 0), TestMachine("b", 4e9, 0)}, 8);
    base_.model = request.model;
    base_.max_model_len = 320;
    base_.choices.gbs = {32};
    workload_ = request.workload;
    task_.machines = request.machines;
    task_.layout.emplace();
  }

  PlanRequest base_;
  Workload workload_;
  PlanTask task_;
};

TEST_F(FindLayoutTest, GroupsThatAreAsGoodStay) {
  const auto best = FindLayout(base_, workload_, task_);
  ASSERT_TRUE(best.ok()) << best.status();
  ASSERT_EQ(best->pipelines.size(), 2u);
  task_.layout->present = {{0}, {1}};
  EXPECT_TRUE(
      absl::IsAlreadyExists(FindLayout(base_, workload_, task_).status()));
  // With one of them only, the other adds as much again, if there is time.
  task_.layout->present = {{0}};
  EXPECT_TRUE(FindLayout(base_, workload_, task_).ok());
  task_.load_seconds = 1e9;
  const absl::Status status = FindLayout(base_, workload_, task_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("but loading takes"));
}

TEST_F(FindLayoutTest, WorkersMayHaveRanks) {
  for (MachineProfile& worker : task_.machines) {
    worker.rank_choices = {{2, 1, 1, {5e10, 1e-6}}};
  }
  const auto best = FindLayout(base_, workload_, task_);
  ASSERT_TRUE(best.ok()) << best.status();
  ASSERT_EQ(best->pipelines.size(), 2u);
  EXPECT_EQ(best->pipelines[0].plan.stages[0].policy.ranks, 2);
  task_.layout->present = {{0}, {1}};
  EXPECT_TRUE(
      absl::IsAlreadyExists(FindLayout(base_, workload_, task_).status()));
}

TEST_F(FindLayoutTest, GroupsWithoutRoomForTheModelDoNoWork) {
  task_.machines[1] = TestMachine("b", 2e8, 0);
  task_.layout->present = {{1}};
  const auto best = FindLayout(base_, workload_, task_);
  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_EQ(best->pipelines[0].machines[0], 0);
}

}  // namespace
}  // namespace sluice
