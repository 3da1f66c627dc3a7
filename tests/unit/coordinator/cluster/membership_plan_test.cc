// Membership with plans: the planner's, and the user's own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/codec/profile_json.h"
#include "coordinator/planning/plan_json.h"
#include "proto/convert.h"
#include "tests/support/sample_profile.h"
#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Phase = Membership::Phase;

class MembershipPlanTest : public MembershipTest {
 protected:
  MembershipPlanTest() {
    options_.plan_jobs = true;
    options_.policy.sparsity = 0.5;
  }

  static v1::WorkerMessage Register(const std::string& name,
                                    uint64_t memory = uint64_t{1} << 30) {
    v1::WorkerMessage message = MembershipTest::Register(name);
    MachineProfile profile = SampleProfile();
    profile.device_memory_bytes = 0;
    profile.device_compute = {};
    message.mutable_register_()->set_profile_json(ProfileToJson(profile));
    message.mutable_register_()->set_host_memory_bytes(memory);
    return message;
  }

  // Two stages: layers 0 to 2 on machine `first`, the last on the other.
  static Plan TwoStages(int first = 0) {
    Plan plan;
    plan.block = {.gbs = 5,
                  .num_microbatches = 2,
                  .num_blocks = 3,
                  .max_step_tokens = 77};
    for (int s = 0; s < 2; ++s) {
      StagePlan& stage = plan.stages.emplace_back();
      stage.machine = s == 0 ? first : 1 - first;
      stage.layers = s == 0 ? LayerRange{0, 3} : LayerRange{3, 4};
      Policy& policy = stage.policy;
      policy.gbs = 5;
      policy.num_microbatches = 2;
      policy.max_step_tokens = 77;
      policy.automatic_weights = false;
      policy.automatic_kv_cache = false;
      policy.automatic_activations = false;
      policy.weights = {0, 0.25 + 0.5 * s, 0.75 - 0.5 * s};
      policy.kv_cache = {0, 1, 0};
      policy.activations = {0, 1, 0};
      stage.busy[static_cast<int>(Resource::kDiskRead)] = 100;
    }
    plan.tokens_per_second = 10;
    plan.kv_positions = int64_t{3 * 5 * 2} * 96;
    return plan;
  }

  void AttachTwo() {
    a_ = Attach(1, Register("a"));
    b_ = Attach(2, Register("b", uint64_t{2} << 30));
    Settle();
  }

  PlanTask Task() {
    std::optional<PlanTask> task = members().search().TakeTask();
    EXPECT_TRUE(task.has_value());
    return task ? *std::move(task) : PlanTask();
  }

  void Answer(int64_t ticket, absl::StatusOr<Plan> plan,
              std::optional<Plan> present = std::nullopt) {
    members().OnPlanned(
        {ticket, std::move(plan), {1000, 0}, std::move(present)});
    members().Advance();
  }

  static v1::AssignStage Last(const RecordingStream& stream) {
    return stream.sent.back().assign_stage();
  }

  void Heartbeat(int64_t id, double read_seconds, double read_bytes) {
    v1::WorkerMessage message;
    v1::RuntimeTotals* runtime = message.mutable_heartbeat()->mutable_runtime();
    runtime->set_disk_read_seconds(read_seconds);
    runtime->set_disk_read_bytes(static_cast<uint64_t>(read_bytes));
    members().OnMessage(WorkerId(id), std::move(message));
  }

  void Run() {
    AttachTwo();
    Answer(Task().ticket, TwoStages());
    clock_.Advance(absl::Seconds(3));
    Ready(1);
    Ready(2);
    ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  }

  std::shared_ptr<RecordingStream> a_, b_;
};

TEST_F(MembershipPlanTest, WorkersGetWhatThePlanSays) {
  AttachTwo();
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_EQ(members().detail(), "planning");
  const PlanTask task = Task();
  ASSERT_EQ(task.machines.size(), 2u);
  EXPECT_EQ(task.machines[0].name, "a");
  EXPECT_EQ(task.machines[1].name, "b");
  // The present budget replaces the profile's.
  EXPECT_EQ(task.machines[1].host_memory_bytes, uint64_t{2} << 30);
  EXPECT_FALSE(task.present.has_value());
  EXPECT_FALSE(members().search().TakeTask().has_value());  // once
  members().Advance();
  EXPECT_FALSE(members().search().TakeTask().has_value());

  Answer(task.ticket, TwoStages(1));  // b first
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  const v1::AssignStage first = Last(*b_);
  EXPECT_EQ(first.stage(), 0);
  EXPECT_EQ(first.layers().end(), 3);
  EXPECT_EQ(first.next_link_address(), "link:a");
  EXPECT_EQ(first.num_blocks(), 3);
  EXPECT_EQ(first.max_sequences(), 3 * 5 * 2);
  EXPECT_EQ(first.max_model_len(), 100);
  EXPECT_EQ(first.kv_positions(), 96) << "what the plan counts";
  EXPECT_EQ(first.policy().gbs(), 5);
  EXPECT_EQ(first.policy().max_step_tokens(), 77);
  EXPECT_TRUE(first.policy().explicit_weights());
  EXPECT_DOUBLE_EQ(first.policy().weights().disk(), 0.75);
  // KV lies where the plan says.
  EXPECT_TRUE(first.policy().explicit_kv_cache());
  // Settings that are not in a plan stay as they were.
  EXPECT_FLOAT_EQ(first.policy().sparsity(), 0.5);
  EXPECT_DOUBLE_EQ(Last(*a_).policy().weights().disk(), 0.25);
  EXPECT_EQ(members().plan().policy().gbs, 5);
  EXPECT_EQ(members().plan().num_blocks(), 3);
  const std::optional<std::string> plan = members().plan().TakeNewPlan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(ParsePlan(*plan).ok());
  EXPECT_FALSE(members().plan().TakeNewPlan().has_value());
  Ready(1);
  Ready(2);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  v1::ClusterState state;
  members().Describe(&state);
  EXPECT_TRUE(ParsePlan(state.plan()).ok());
  EXPECT_EQ(state.gbs(), 5);
  // The plan stays as it is.
  Settle();
  EXPECT_FALSE(members().search().TakeTask().has_value());
}

TEST_F(MembershipPlanTest, WithoutWorkItWaitsForSome) {
  AttachTwo();
  Answer(Task().ticket, absl::NotFoundError("no requests wait"));
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_EQ(members().detail(), "a plan is made when a job comes");
  EXPECT_FALSE(members().search().TakeTask().has_value());
  members().OnNewJobs();
  members().Advance();
  Answer(Task().ticket, TwoStages());
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
}

TEST_F(MembershipPlanTest, AJobThatComesWhileItLooksForWorkIsNotMissed) {
  AttachTwo();
  const PlanTask task = Task();  // counts the requests, and then
  members().OnNewJobs();
  Answer(task.ticket, absl::NotFoundError("no requests wait"));
  members().Advance();
  Answer(Task().ticket, TwoStages());
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
}

TEST_F(MembershipPlanTest, JobsDoNotInterruptASearch) {
  AttachTwo();
  const PlanTask task = Task();
  members().OnNewJobs();
  members().Advance();
  EXPECT_FALSE(members().search().TakeTask().has_value());
  Answer(task.ticket, TwoStages());
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
}

TEST_F(MembershipPlanTest, NorIsOneThatComesWhileAPlanRuns) {
  Run();
  members().OnNewJobs();
  const PlanTask task = Task();
  members().OnNewJobs();
  Answer(task.ticket, absl::NotFoundError("no requests wait"));
  EXPECT_TRUE(Task().present.has_value());
}

TEST_F(MembershipPlanTest, WithoutAPlanTheWorkersChoose) {
  AttachTwo();
  Answer(Task().ticket,
         absl::ResourceExhaustedError("host memory is short by 1 GiB"));
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_FALSE(Last(*a_).policy().explicit_weights());
  EXPECT_FALSE(
      members().plan().TakeNewPlan().has_value());  // nor was there one
  EXPECT_EQ(Last(*a_).layers().end(), 2);
  EXPECT_EQ(members().plan().policy().gbs, options_.policy.gbs);
}

TEST_F(MembershipPlanTest, AWorkerWithoutProfileIsNotPlannedFor) {
  a_ = Attach(1, Register("a"));
  b_ = Attach(2, MembershipTest::Register("b"));
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_FALSE(members().search().TakeTask().has_value());
}

TEST_F(MembershipPlanTest, AProfileThatMakesNoSenseIsNone) {
  a_ = Attach(1, Register("a"));
  v1::WorkerMessage bad = Register("b");
  bad.mutable_register_()->set_profile_json("{\"version\": 1, \"threads\": 0}");
  b_ = Attach(2, std::move(bad));
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
}

TEST_F(MembershipPlanTest, APlanThatDoesNotFitIsNotTriedAgain) {
  AttachTwo();
  Answer(Task().ticket, TwoStages());
  Failed(1, absl::StatusCode::kResourceExhausted, "too large");
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_TRUE(members().plan().TakeNewPlan().has_value());
  clock_.Advance(options_.timeouts.first_back_off);
  members().Advance();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_FALSE(Last(*a_).policy().explicit_weights());
  EXPECT_EQ(members().plan().TakeNewPlan(), "");
}

TEST_F(MembershipPlanTest, AnAnswerForWorkersThatAreGoneIsNoPlan) {
  AttachTwo();
  const PlanTask task = Task();
  members().OnClosed(WorkerId(2), absl::UnavailableError("gone"));
  Answer(task.ticket, TwoStages());
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  b_ = Attach(3, Register("c"));
  Settle();
  const PlanTask again = Task();
  EXPECT_NE(again.ticket, task.ticket);
  Answer(task.ticket, TwoStages());  // late
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  Answer(again.ticket, TwoStages());
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
}

TEST_F(MembershipPlanTest, MoreWorkersAreConsideredOnce) {
  Run();
  auto c = Attach(3, Register("c"));
  Settle();
  const PlanTask task = Task();
  EXPECT_EQ(task.machines.size(), 3u);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);  // meanwhile
  Answer(task.ticket, TwoStages());  // one of them would be of no use
  for (int64_t id : {1, 2, 3}) Ready(id);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_FALSE(members().search().TakeTask().has_value());
}

TEST_F(MembershipPlanTest, ASlowDiskLeadsToAnotherPlan) {
  Run();
  members().search().OnProgress({.rows = {0, 0}, .seconds = 0});
  Heartbeat(1, 0, 0);
  // 100 s were predicted for 1000 rows.
  members().search().OnProgress({.rows = {50, 0}, .seconds = 10});
  Heartbeat(1, 10, 10 * 1e8);  // 0.1 GB/s, not 3.3
  members().Advance();
  const PlanTask task = Task();
  ASSERT_TRUE(task.present.has_value());
  EXPECT_EQ(task.load_seconds, 3);
  EXPECT_NEAR(task.machines[0].disk.read_bytes_per_second, 1e8, 1);
  EXPECT_NEAR(task.machines[1].disk.read_bytes_per_second, 3.3e9, 1);
  v1::ClusterState state;
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);  // meanwhile
  const PlanEpoch before = members().plan().epoch();
  Answer(task.ticket, TwoStages());
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_GT(members().plan().epoch(), before);
}

TEST_F(MembershipPlanTest, HowTheDiskLoadedWeightsSaysNothingOfThePlan) {
  AttachTwo();
  Answer(Task().ticket, TwoStages());
  Heartbeat(1, 0, 0);
  Heartbeat(1, 10, 10 * 1e8);  // 0.1 GB/s, while both load from one disk
  Ready(1);
  Ready(2);
  Heartbeat(1, 10, 10 * 1e8);
  members().search().OnProgress({.rows = {50, 0}, .seconds = 10});
  Heartbeat(1, 11, 13 * 1e8);
  members().Advance();
  EXPECT_FALSE(members().search().TakeTask().has_value());
}

TEST_F(MembershipPlanTest, APlanThatIsStillTheBestStays) {
  Run();
  members().search().OnProgress({.rows = {0, 0}, .seconds = 0});
  Heartbeat(1, 0, 0);
  members().search().OnProgress({.rows = {50, 0}, .seconds = 10});
  Heartbeat(1, 10, 10 * 1e8);
  members().Advance();
  const PlanEpoch before = members().plan().epoch();
  Answer(Task().ticket, absl::AlreadyExistsError("as good"), TwoStages());
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_EQ(members().plan().epoch(), before);
  // The measured rates are no reason for another search.
  Heartbeat(1, 10, 10 * 1e8);
  members().search().OnProgress({.rows = {150, 0}, .seconds = 20});
  Heartbeat(1, 20, 20 * 1e8);
  members().Advance();
  EXPECT_FALSE(members().search().TakeTask().has_value());
}

// A search for the running plan is under way when a larger one takes its place.
class MembershipLateAnswerTest : public MembershipPlanTest {
 protected:
  void SetUp() override {
    Run();
    auto c = Attach(3, Register("c"));
    Settle();
    Plan larger = TwoStages();
    larger.stages.push_back(larger.stages.back());
    larger.stages[1].layers = {2, 3};
    larger.stages[0].layers = {0, 2};
    larger.stages[2].machine = 2;
    Answer(Task().ticket, larger);
    members().OnNewJobs();
    late_ = Task();
    ASSERT_TRUE(late_.present.has_value());
    AnswerPreparation(1, *a_);
    AnswerPreparation(2, *b_);
    AnswerPreparation(3, *c);
    ASSERT_EQ(members().plan().phase(), Phase::kLoading);
    for (int64_t id : {1, 2, 3}) Ready(id);
    ASSERT_EQ(members().plan().phase(), Phase::kRunning);
    epoch_ = members().plan().epoch();
    ASSERT_TRUE(members().plan().TakeNewPlan().has_value());
  }

  void TearDown() override {
    EXPECT_EQ(members().plan().phase(), Phase::kRunning);
    EXPECT_EQ(members().plan().epoch(), epoch_);
    EXPECT_FALSE(members().plan().TakeNewPlan().has_value());
    v1::ClusterState state;
    members().Describe(&state);
    const absl::StatusOr<Plan> plan = ParsePlan(state.plan());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->stages.size(), 3u);
  }

  PlanTask late_;
  PlanEpoch epoch_;
};

TEST_F(MembershipLateAnswerTest, ThatThePlanStaysChangesNothing) {
  Answer(late_.ticket, absl::AlreadyExistsError("as good"), TwoStages());
}

TEST_F(MembershipLateAnswerTest, WithABetterPlanChangesNothing) {
  Answer(late_.ticket, TwoStages());
}

TEST_F(MembershipPlanTest, StatusShowsPredictedBesideMeasured) {
  Run();
  members().search().OnProgress({.rows = {0, 0}, .seconds = 0});
  Heartbeat(1, 5, 5e9);
  members().search().OnProgress({.rows = {30, 0}, .seconds = 3});
  Heartbeat(1, 8, 8e9);
  v1::ClusterState state;
  members().Describe(&state);
  ASSERT_EQ(state.workers(0).resources_size(), 1);
  const v1::ResourceUse& use = state.workers(0).resources(0);
  EXPECT_EQ(use.resource(), "disk read");
  EXPECT_DOUBLE_EQ(use.measured_seconds(), 3);
  EXPECT_DOUBLE_EQ(use.predicted_seconds(), 100 * 30 / 1000.0);
}

TEST_F(MembershipPlanTest, PagesTakenByNeedAreNotBounded) {
  AttachTwo();
  Plan plan = TwoStages();
  plan.stages[1].policy.automatic_kv_cache = true;
  plan.kv_positions = int64_t{3 * 5 * 2} * 1000;
  Answer(Task().ticket, plan);
  EXPECT_EQ(Last(*a_).kv_positions(), 100) << "no sequence has more";
  EXPECT_EQ(Last(*b_).kv_positions(), 0);
}

TEST_F(MembershipPlanTest, TheUsersOwnPlanGoesToTheWorkersThatItNames) {
  options_.plan_jobs = false;
  options_.fixed_plans = {TwoStages()};
  options_.fixed_plans[0].stages[0].worker = "b";
  options_.fixed_plans[0].stages[1].worker = "nobody";
  options_.fixed_plans[0].stages[1].policy.kv_cache = {0, 0.5, 0.5};
  AttachTwo();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(Last(*b_).stage(), 0);
  EXPECT_EQ(Last(*b_).layers().end(), 3);
  EXPECT_EQ(Last(*a_).stage(), 1);
  EXPECT_DOUBLE_EQ(Last(*a_).policy().kv_cache().disk(), 0.5);
  EXPECT_TRUE(Last(*a_).policy().explicit_kv_cache());
  EXPECT_EQ(members().plan().num_blocks(), 3);
}

class MembershipLinksTest : public MembershipPlanTest {
 protected:
  MembershipLinksTest() { options_.timeouts.max_link_time = absl::Seconds(20); }

  static std::vector<std::string> Asked(const RecordingStream& stream) {
    std::vector<std::string> names;
    if (!stream.sent.back().has_measure_links()) return names;
    for (const auto& peer : stream.sent.back().measure_links().peers()) {
      names.push_back(absl::StrCat(peer.name(), " ", peer.link_address()));
    }
    return names;
  }
  void Measured(int64_t id, const std::string& peer, double rate) {
    v1::WorkerMessage message;
    auto* link = message.mutable_links_measured()->add_links();
    link->set_peer(peer);
    link->set_bytes_per_second(rate);
    link->set_latency_seconds(0.01);
    members().OnMessage(WorkerId(id), std::move(message));
    members().Advance();
  }
};

TEST_F(MembershipLinksTest, AreMeasuredBeforeTheFirstSearch) {
  AttachTwo();
  EXPECT_THAT(Asked(*a_), testing::ElementsAre("b link:b"));
  EXPECT_THAT(Asked(*b_), testing::ElementsAre("a link:a"));
  EXPECT_EQ(members().detail(), "measuring links");
  EXPECT_FALSE(members().search().TakeTask().has_value());
  const size_t sent = a_->sent.size();
  Measured(1, "b", 5e6);
  EXPECT_FALSE(members().search().TakeTask().has_value());
  EXPECT_EQ(a_->sent.size(), sent) << "asked once";
  Measured(2, "a", 6e6);
  const PlanTask task = Task();
  EXPECT_EQ(task.machines[0].Link("b")->bytes_per_second, 5e6);
  EXPECT_EQ(task.machines[0].Link("")->bytes_per_second, 5e6);
  EXPECT_EQ(task.machines[1].Link("a")->bytes_per_second, 6e6);
  // `sluice plan --running` gets the same plan.
  v1::ClusterState state;
  members().Describe(&state);
  const auto shown = ProfileFromJson(state.workers(0).profile());
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_EQ(shown->Link("b")->bytes_per_second, 5e6);
  // With another worker only new links are measured.
  Answer(task.ticket, TwoStages());
  Ready(1);
  Ready(2);
  const auto c = Attach(3, Register("c"));
  Settle();
  EXPECT_THAT(Asked(*a_), testing::ElementsAre("c link:c"));
  EXPECT_THAT(Asked(*c), testing::SizeIs(2));
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
}

TEST_F(MembershipLinksTest, EachAnswerCountsIfThereWereTwoQuestions) {
  AttachTwo();
  const auto c = Attach(3, Register("c"));
  Settle();
  EXPECT_THAT(Asked(*a_), testing::ElementsAre("c link:c"));
  Measured(1, "b", 5e6);
  Measured(2, "a", 6e6);
  Measured(2, "c", 7e6);
  v1::WorkerMessage both;
  for (const char* peer : {"a", "b"}) {
    auto* link = both.mutable_links_measured()->add_links();
    link->set_peer(peer);
    link->set_bytes_per_second(8e6);
  }
  members().OnMessage(WorkerId(3), std::move(both));
  members().Advance();
  EXPECT_FALSE(
      members().search().TakeTask().has_value());  // a has not said all
  Measured(1, "c", 9e6);
  const PlanTask task = Task();
  ASSERT_EQ(task.machines.size(), 3u);
  EXPECT_EQ(task.machines[0].Link("b")->bytes_per_second, 5e6);
  EXPECT_EQ(task.machines[0].Link("c")->bytes_per_second, 9e6);
  EXPECT_EQ(task.machines[1].Link("c")->bytes_per_second, 7e6);
}

TEST_F(MembershipLinksTest, AreNotWaitedForForEver) {
  AttachTwo();
  Measured(1, "b", 5e6);
  clock_.Advance(absl::Seconds(19));
  members().Advance();
  EXPECT_FALSE(members().search().TakeTask().has_value());
  // Both send heartbeats meanwhile.
  Heartbeat(1, 0, 0);
  Heartbeat(2, 0, 0);
  clock_.Advance(absl::Seconds(1));
  members().Advance();
  const PlanTask task = Task();
  EXPECT_EQ(task.machines[0].Link("b")->bytes_per_second, 5e6);
  // Late answers are for the next search.
  Measured(2, "a", 6e6);
  EXPECT_FALSE(members().search().TakeTask().has_value());
}

TEST_F(MembershipLinksTest, WhatAProfileSaysOfAPeerStands) {
  v1::WorkerMessage a = Register("a");
  auto profile = ProfileFromJson(a.register_().profile_json());
  ASSERT_TRUE(profile.ok()) << profile.status();
  profile->links.push_back(
      {.peer = "b", .bytes_per_second = 7e6, .latency_seconds = 0.5});
  a.mutable_register_()->set_profile_json(ProfileToJson(*profile));
  a_ = Attach(1, std::move(a));
  b_ = Attach(2, Register("b"));
  Settle();
  EXPECT_THAT(Asked(*a_), testing::IsEmpty());
  EXPECT_THAT(Asked(*b_), testing::ElementsAre("a link:a"));
  Measured(1, "b", 1);  // not asked for
  Measured(2, "a", 6e6);
  EXPECT_EQ(Task().machines[0].Link("b")->bytes_per_second, 7e6);
}

}  // namespace
}  // namespace sluice
