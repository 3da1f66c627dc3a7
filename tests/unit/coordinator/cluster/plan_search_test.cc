#include "coordinator/cluster/plan_search.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/profile_json.h"
#include "tests/support/sample_profile.h"
#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

// A registry of workers with profiles, and no plan that runs.
class PlanSearchTest : public testing::Test {
 protected:
  PlanSearchTest() {
    for (int64_t id : {1, 2}) {
      v1::Register info;
      info.set_name(absl::StrCat("w", id));
      info.set_link_address("link");
      info.set_model_fingerprint("f00d");
      auto* file = info.mutable_model_content()->add_files();
      file->set_name("config.json");
      file->set_bytes(1);
      file->set_hash("c");
      info.set_profile_json(ProfileToJson(SampleProfile()));
      info.set_host_memory_bytes(uint64_t{1} << 30);
      registry_.Open(WorkerId(id), std::make_shared<RecordingStream>(), {});
      registry_.Register(WorkerId(id), info);
      ids_.emplace_back(id);
      stages_.push_back({WorkerId(id), {}});
    }
  }

  static Plan TwoStages() {
    Plan plan;
    plan.stages.resize(2);
    plan.stages[0].machine = 1;
    plan.stages[0].layers = {0, 3};
    plan.stages[1].layers = {3, 4};
    for (StagePlan& stage : plan.stages) {
      stage.busy[static_cast<int>(Resource::kDiskRead)] = 100;
    }
    return plan;
  }

  int64_t Ticket() {
    const std::optional<PlanTask> task = search_.TakeTask();
    return task ? task->ticket : 0;
  }

  PlanSearch::Outcome Answer(int64_t ticket, absl::StatusOr<Plan> plan) {
    PlanAnswer answer;
    answer.ticket = ticket;
    answer.plan = std::move(plan);
    answer.rows = {3, 4};
    return search_.OnAnswer(std::move(answer));
  }

  ManualClock clock_;
  const ClusterOptions options_ = {.plan_jobs = true, .clock = &clock_};
  WorkerRegistry registry_{options_};
  PlanNumbers numbers_;
  PlanSearch search_{options_, &registry_, &numbers_};
  std::vector<WorkerId> ids_;
  std::vector<StageAssignment> stages_;
};

TEST_F(PlanSearchTest, AnAnswerIsAPlanToFollow) {
  ASSERT_TRUE(search_.Wanted(stages_));
  EXPECT_TRUE(search_.Begin(ids_, std::nullopt));
  EXPECT_FALSE(search_.Begin(ids_, std::nullopt));  // under way
  const PlanSearch::Outcome outcome = Answer(Ticket(), TwoStages());
  ASSERT_TRUE(outcome.next.has_value());
  ASSERT_EQ(outcome.next->stages.size(), 2u);
  EXPECT_EQ(outcome.next->stages[0].worker, ids_[1]);
  EXPECT_EQ(outcome.next->stages[0].layers, (LayerRange{0, 3}));
  EXPECT_EQ(outcome.next->workers, 2);
  EXPECT_EQ(outcome.next->rows, (PhaseRows{3, 4}));
  EXPECT_FALSE(outcome.refreshed || outcome.look_again || outcome.no_work);
  EXPECT_EQ(Ticket(), 0);
}

TEST_F(PlanSearchTest, LateAnswersCountForNothing) {
  search_.Begin(ids_, std::nullopt);
  const int64_t ticket = Ticket();
  search_.Begin({ids_[0]}, std::nullopt);
  EXPECT_FALSE(Answer(ticket, TwoStages()).next.has_value());
  EXPECT_GT(Ticket(), ticket);
}

TEST_F(PlanSearchTest, NorDoesOneForWorkersThatAreGone) {
  search_.Begin(ids_, std::nullopt);
  const int64_t ticket = Ticket();
  registry_.Remove(ids_[1], absl::UnavailableError("gone"));
  EXPECT_FALSE(Answer(ticket, TwoStages()).next.has_value());
  search_.Begin(ids_, std::nullopt);
  EXPECT_EQ(Ticket(), 0);
}

TEST_F(PlanSearchTest, WithoutWorkItIsRepeatedWhenThereIsSome) {
  const absl::Status none = absl::NotFoundError("no requests wait");
  search_.Begin(ids_, std::nullopt);
  EXPECT_TRUE(Answer(Ticket(), none).no_work);
  EXPECT_FALSE(search_.Begin(ids_, std::nullopt));  // there is still none
  EXPECT_TRUE(search_.OnNewJobs());
  EXPECT_TRUE(search_.Begin(ids_, std::nullopt));
  // Jobs that come meanwhile may not have been counted.
  const int64_t ticket = Ticket();
  EXPECT_TRUE(search_.OnNewJobs());
  EXPECT_TRUE(Answer(ticket, none).look_again);
  // Without a search, they may ask for another plan than the one that runs.
  EXPECT_FALSE(search_.OnNewJobs());
}

TEST_F(PlanSearchTest, WorkersChooseWherePlanningFailedUntilAnotherOneComes) {
  search_.Begin(ids_, std::nullopt);
  Answer(Ticket(), absl::ResourceExhaustedError("host memory"));
  EXPECT_FALSE(search_.Wanted(stages_));
  search_.OnRegistered();
  EXPECT_TRUE(search_.Wanted(stages_));
  search_.GiveUp();
  EXPECT_FALSE(search_.Wanted(stages_));
}

TEST_F(PlanSearchTest, WhatRunsSlowerThanPredictedIsSearchedForAnew) {
  const Plan plan = TwoStages();
  search_.OnBegun(plan, ids_, {500, 500});
  search_.OnLoaded(absl::Seconds(3));
  const auto beat = [&](double seconds, double bytes) {
    v1::Heartbeat heartbeat;
    heartbeat.mutable_runtime()->set_disk_read_seconds(seconds);
    heartbeat.mutable_runtime()->set_disk_read_bytes(
        static_cast<uint64_t>(bytes));
    search_.OnHeartbeat(0, heartbeat);
  };
  beat(0, 0);
  search_.FollowMeasured(plan, ids_);
  EXPECT_EQ(Ticket(), 0);
  search_.OnProgress({.rows = {25, 25}, .seconds = 10, .output_share = 0.5});
  beat(10, 10 * 1e8);
  v1::WorkerInfo info;
  search_.Describe(0, &info);
  ASSERT_EQ(info.resources_size(), 1);
  EXPECT_EQ(info.resources(0).measured_seconds(), 10);
  EXPECT_EQ(info.plan_seconds(), 10);
  EXPECT_EQ(info.resources(0).predicted_seconds(), 5);
  search_.FollowMeasured(plan, ids_);
  const std::optional<PlanTask> task = search_.TakeTask();
  ASSERT_TRUE(task && task->present);
  EXPECT_EQ(task->load_seconds, 3);
  EXPECT_EQ(task->output_share, 0.5);
  EXPECT_NEAR(task->machines[0].disk.read_bytes_per_second, 1e8, 1);
  // A search for a better plan than this one is no answer for the next.
  search_.OnEnded();
  EXPECT_FALSE(Answer(task->ticket, TwoStages()).next.has_value());
}

TEST_F(PlanSearchTest, APlanThatFollowedForMeasuredRatesRunsForALongTime) {
  const Plan plan = TwoStages();
  double seconds = 0;
  double rate = 1e9;
  v1::Heartbeat heartbeat;
  search_.OnLoaded(absl::Seconds(3));
  const auto begin = [&] {
    search_.OnBegun(plan, ids_, {500, 500});
    search_.OnHeartbeat(0, heartbeat);
  };
  // Reads at `rate` for some time; returns the ticket of a search.
  const auto run = [&](double time) {
    seconds += time;
    auto* runtime = heartbeat.mutable_runtime();
    runtime->set_disk_read_seconds(runtime->disk_read_seconds() + time);
    runtime->set_disk_read_bytes(runtime->disk_read_bytes() +
                                 static_cast<uint64_t>(time * rate));
    search_.OnProgress(
        {.rows = {seconds / 2, seconds / 2}, .seconds = seconds});
    search_.OnHeartbeat(0, heartbeat);
    search_.FollowMeasured(plan, ids_);
    return Ticket();
  };
  begin();
  rate = 1e8;
  const int64_t first = run(10);
  ASSERT_NE(first, 0);
  ASSERT_TRUE(Answer(first, TwoStages()).next.has_value());
  // The second may follow after ten times the load time.
  begin();
  rate = 1e9;
  EXPECT_EQ(run(20), 0);
  const int64_t second = run(10);
  ASSERT_NE(second, 0);
  ASSERT_TRUE(Answer(second, TwoStages()).next.has_value());
  // The third one after twenty.
  begin();
  rate = 1e8;
  EXPECT_EQ(run(50), 0);
  const int64_t third = run(10);
  ASSERT_NE(third, 0);
  ASSERT_TRUE(Answer(third, TwoStages()).next.has_value());
  // A plan that replaces none makes all of it new, and so does another worker.
  begin();
  ASSERT_TRUE(search_.Begin(ids_, std::nullopt));
  const int64_t fresh = Ticket();
  ASSERT_TRUE(Answer(fresh, TwoStages()).next.has_value());
  begin();
  rate = 1e9;
  const int64_t after = run(10);
  ASSERT_NE(after, 0);
  ASSERT_TRUE(Answer(after, TwoStages()).next.has_value());
  begin();
  rate = 1e8;
  search_.OnRegistered();
  EXPECT_NE(run(10), 0);
}

}  // namespace
}  // namespace sluice
