// Membership with several pipelines.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/codec/profile_json.h"
#include "coordinator/planning/plan_json.h"
#include "tests/support/sample_profile.h"
#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Phase = Membership::Phase;

class MembershipGroupsTest : public MembershipTest {
 protected:
  MembershipGroupsTest() {
    options_.replicas = 2;
    options_.min_workers = 4;
  }

  void AttachFour() {
    for (int64_t id = 1; id <= 4; ++id) {
      streams_[id] =
          Attach(id, std::string(1, static_cast<char>('a' + id - 1)));
    }
    Settle();
  }
  int64_t Epoch(size_t pipeline) {
    return members().plan(pipeline).epoch().value();
  }
  // Workers 1 and 2 are in pipeline 0, 3 and 4 in pipeline 1.
  void Run() {
    AttachFour();
    for (int64_t id = 1; id <= 4; ++id) {
      Ready(id, 50, 16, Epoch(id <= 2 ? 0 : 1));
    }
    ASSERT_TRUE(members().plan(0).running());
    ASSERT_TRUE(members().plan(1).running());
  }
  v1::ClusterState State() {
    v1::ClusterState state;
    members().Describe(&state);
    return state;
  }
  void Lose(int64_t id) {
    members().OnClosed(WorkerId(id), absl::UnavailableError("gone"));
    members().Advance();
  }

  std::map<int64_t, std::shared_ptr<RecordingStream>> streams_;
};

TEST_F(MembershipGroupsTest, EachPipelineHasItsOwnPlan) {
  Attach(9, "z");
  Settle();
  EXPECT_EQ(members().detail(), "waiting for workers: 1 of 4 registered");
  members().OnClosed(WorkerId(9), absl::CancelledError("leaves"));
  Run();
  EXPECT_EQ(members().num_pipelines(), 2u);
  EXPECT_NE(Epoch(0), Epoch(1));
  EXPECT_EQ(members().phase(), Phase::kRunning);
  EXPECT_EQ(members().detail(), "");
  // Each has all four layers.
  for (const int64_t first : {1, 3}) {
    const auto& assign = streams_[first]->sent.back().assign_stage();
    EXPECT_EQ(assign.num_stages(), 2);
    EXPECT_EQ(assign.layers().begin(), 0);
    EXPECT_EQ(assign.layers().end(), 2);
    EXPECT_EQ(assign.next_link_address(), first == 1 ? "link:b" : "link:d");
  }
  const v1::ClusterState state = State();
  ASSERT_EQ(state.pipelines_size(), 2);
  EXPECT_EQ(state.pipelines(1).epoch(), Epoch(1));
  EXPECT_EQ(state.epoch(), std::max(Epoch(0), Epoch(1)));
  EXPECT_EQ(state.workers(0).pipeline(), 0);
  EXPECT_EQ(state.workers(3).pipeline(), 1);
}

TEST_F(MembershipGroupsTest, ALossConcernsItsOwnPipelineOnly) {
  Run();
  const int64_t epoch = Epoch(1);
  const size_t sent = streams_[3]->sent.size();
  Lose(2);
  EXPECT_FALSE(members().plan(0).running());
  EXPECT_TRUE(members().plan(1).running());
  EXPECT_THAT(
      members().detail(),
      HasSubstr("pipeline 0: waiting for workers: 3 registered, 1 of 2 in "
                "the pipeline"));
  Settle();
  EXPECT_EQ(Epoch(1), epoch);
  EXPECT_EQ(streams_[3]->sent.size(), sent);
  // It comes back to its pipeline, whose layers it may still hold.
  streams_[5] = Attach(5, "b");
  Settle();
  ASSERT_EQ(members().plan(0).phase(), Phase::kLoading);
  EXPECT_EQ(streams_[5]->sent.back().assign_stage().layers().begin(), 2);
  EXPECT_EQ(streams_[3]->sent.size(), sent);
}

TEST_F(MembershipGroupsTest, WorkersLostByNumberAreNotMixedUp) {
  Run();
  Lose(2);
  Lose(3);
  Settle();
  EXPECT_EQ(members().phase(), Phase::kNoPlan);
  streams_[5] = Attach(5, "c");
  Settle();
  EXPECT_EQ(members().plan(1).phase(), Phase::kLoading);
  EXPECT_EQ(members().plan(0).phase(), Phase::kNoPlan);
}

TEST_F(MembershipGroupsTest, ALostPipelineIsAwaitedForAWhile) {
  Run();
  EXPECT_TRUE(members().Awaited(0));
  Lose(3);
  clock_.Advance(absl::Minutes(1));
  Lose(4);
  EXPECT_EQ(State().pipelines_size(), 1);
  EXPECT_TRUE(members().Awaited(1));
  EXPECT_THAT(members().detail(1),
              HasSubstr("waiting for workers: 2 registered, 0 of 2 in the "
                        "pipeline"));
  clock_.Advance(WorkerTimeouts::kLostKept - absl::Seconds(30));
  EXPECT_FALSE(members().Awaited(1));  // one would not be enough
  EXPECT_TRUE(members().Awaited(0));
  streams_[5] = Attach(5, "c");
  Settle();
  EXPECT_TRUE(members().Awaited(1));
  clock_.Advance(absl::Minutes(1));
  EXPECT_FALSE(members().Awaited(1));
}

TEST_F(MembershipGroupsTest, MessagesOfWorkersWithoutAPipelineAreHarmless) {
  Attach(1, "a");
  Beat(1);
  Ready(1, 50, 16, 7);
  Failed(1, absl::StatusCode::kInternal, "what?", 7);
  v1::WorkerMessage message;
  message.mutable_step_result()->set_epoch(7);
  EXPECT_FALSE(members().OnMessage(WorkerId(1), message).has_value());
  EXPECT_EQ(State().workers(0).pipeline(), -1);
  EXPECT_EQ(State().workers(0).stage(), -1);
}

TEST_F(MembershipGroupsTest, FailuresOfAllPipelinesAreCounted) {
  Run();
  Failed(1, absl::StatusCode::kInternal, "x", Epoch(0));
  Failed(3, absl::StatusCode::kInternal, "y", Epoch(1));
  const v1::ClusterState state = State();
  ASSERT_EQ(state.plan_failures_size(), 1);
  EXPECT_EQ(state.plan_failures(0).reason(), "step");
  EXPECT_EQ(state.plan_failures(0).count(), 2);
}

// The planner says who works together.
class MembershipLayoutTest : public MembershipGroupsTest {
 protected:
  MembershipLayoutTest() {
    options_.replicas = 0;
    options_.min_workers = 1;
    options_.plan_jobs = true;
  }

  static v1::WorkerMessage Profiled(const std::string& name) {
    v1::WorkerMessage message = MembershipTest::Register(name);
    MachineProfile profile = SampleProfile();
    profile.device_memory_bytes = 0;
    profile.device_compute = {};
    message.mutable_register_()->set_profile_json(ProfileToJson(profile));
    message.mutable_register_()->set_host_memory_bytes(uint64_t{1} << 30);
    return message;
  }
  void AttachProfiled(int64_t count) {
    for (int64_t id = 1; id <= count; ++id) {
      streams_[id] =
          Attach(id, Profiled(std::string(1, static_cast<char>('a' + id - 1))));
    }
    Settle();
  }

  PlanTask Task() {
    std::optional<PlanTask> task = members().TakeTask();
    EXPECT_TRUE(task.has_value());
    return task ? *std::move(task) : PlanTask();
  }

  void AnswerGroups(int64_t ticket,
                    const std::vector<std::vector<int>>& groups) {
    Layout layout;
    for (const std::vector<int>& group : groups) {
      PipelinePlan& pipeline = layout.pipelines.emplace_back();
      pipeline.machines = group;
      pipeline.share = 1.0 / static_cast<double>(groups.size());
    }
    PlanAnswer answer{ticket, absl::UnknownError("no plan")};
    answer.layout = layout;
    members().OnPlanned(std::move(answer));
    members().Advance();
  }

  // Answers a pipeline's search with a plan of all its workers.
  void AnswerPlan() {
    const PlanTask task = Task();
    EXPECT_FALSE(task.layout.has_value());
    Plan plan;
    plan.block = {.gbs = 4, .num_blocks = 2, .max_step_tokens = 64};
    const int n = static_cast<int>(task.machines.size());
    for (int s = 0; s < n; ++s) {
      StagePlan& stage = plan.stages.emplace_back();
      stage.machine = s;
      stage.layers = {4 * s / n, 4 * (s + 1) / n};
      stage.policy.gbs = 4;
    }
    plan.tokens_per_second = 10;
    members().OnPlanned({task.ticket, plan, {500, 500}, std::nullopt});
    members().Advance();
  }
  void ReadyAll(size_t pipeline) {
    for (const WorkerId id : members().plan(pipeline).stages()) {
      Ready(id.value(), 50, 16, Epoch(pipeline));
    }
    EXPECT_TRUE(members().plan(pipeline).running());
  }
};

TEST_F(MembershipLayoutTest, WorkersAreGroupedAsThePlannerSays) {
  AttachProfiled(3);
  EXPECT_EQ(members().detail(), "planning");
  const PlanTask task = Task();
  ASSERT_TRUE(task.layout.has_value());
  EXPECT_EQ(task.layout->replicas, 0);
  EXPECT_TRUE(task.layout->present.empty());
  EXPECT_EQ(task.machines.size(), 3u);
  AnswerGroups(task.ticket, {{0, 2}, {1}});
  const PlanTask first = Task();
  EXPECT_EQ(first.pipeline, 0u);
  EXPECT_EQ(first.machines.size(), 2u);
  EXPECT_DOUBLE_EQ(first.share, 0.5);
  const PlanTask second = Task();
  EXPECT_EQ(second.pipeline, 1u);
  ASSERT_EQ(second.machines.size(), 1u);
  EXPECT_EQ(second.machines[0].name, "b");
}

TEST_F(MembershipLayoutTest, PipelinesThatShareAMachineArePlannedForAPartOfIt) {
  const double whole =
      SampleProfile()
          .host.Products(DType::kBFloat16, WeightFormat::kFull)
          ->flops_by_rows.Best();
  const auto rate = [](const PlanTask& task) {
    return task.machines[0]
        .host.Products(DType::kBFloat16, WeightFormat::kFull)
        ->flops_by_rows.Best();
  };
  AttachProfiled(2);
  const PlanTask groups = Task();
  EXPECT_DOUBLE_EQ(rate(groups), whole);
  AnswerGroups(groups.ticket, {{0}, {1}});
  EXPECT_DOUBLE_EQ(rate(Task()), whole / 2);
  EXPECT_DOUBLE_EQ(rate(Task()), whole / 2);
}

TEST_F(MembershipLayoutTest, WorkersSideBySideOnAMachineDoNotShareIt) {
  for (int64_t id : {1, 2}) {
    v1::WorkerMessage message = Profiled(absl::StrCat("w", id));
    MachineProfile profile =
        *ProfileFromJson(message.register_().profile_json());
    profile.threads = 1;
    message.mutable_register_()->set_profile_json(ProfileToJson(profile));
    streams_[id] = Attach(id, message);
  }
  Settle();
  const PlanTask groups = Task();
  ASSERT_EQ(groups.machines.size(), 2u);
  EXPECT_NE(groups.machines[0].machine, groups.machines[1].machine);
  AnswerGroups(groups.ticket, {{0}, {1}});
  const PlanTask task = Task();
  EXPECT_EQ(task.machines[0].host, groups.machines[0].host);
}

TEST_F(MembershipLayoutTest, ANewcomerChangesOnlyWhatThePlannerSays) {
  AttachProfiled(1);
  AnswerGroups(Task().ticket, {{0}});
  AnswerPlan();
  clock_.Advance(absl::Seconds(2));
  ReadyAll(0);
  const int64_t epoch = Epoch(0);
  streams_[2] = Attach(2, Profiled("b"));
  Settle();
  const PlanTask task = Task();
  ASSERT_TRUE(task.layout.has_value());
  EXPECT_EQ(task.layout->present, (std::vector<std::vector<int>>{{0}}));
  EXPECT_GE(task.load_seconds, 2);
  AnswerGroups(task.ticket, {{0}, {1}});
  AnswerPlan();
  ReadyAll(1);
  EXPECT_TRUE(members().plan(0).running());
  EXPECT_EQ(Epoch(0), epoch);
}

TEST_F(MembershipLayoutTest, GroupsThatAreNotWorthItStay) {
  AttachProfiled(1);
  AnswerGroups(Task().ticket, {{0}});
  AnswerPlan();
  ReadyAll(0);
  streams_[2] = Attach(2, Profiled("b"));
  Settle();
  PlanAnswer answer{Task().ticket, absl::UnknownError("no plan")};
  answer.layout = absl::AlreadyExistsError("as good");
  members().OnPlanned(std::move(answer));
  members().Advance();
  EXPECT_FALSE(members().TakeTask().has_value());  // it is not asked again
  EXPECT_EQ(State().workers(1).state(), v1::WORKER_STATE_SPARE);
  EXPECT_EQ(State().workers(1).pipeline(), -1);
  EXPECT_TRUE(members().plan(0).running());
}

TEST_F(MembershipLayoutTest, WhoIsLeftOverDropsItsLayers) {
  AttachProfiled(2);
  AnswerGroups(Task().ticket, {{0, 1}});
  AnswerPlan();
  ReadyAll(0);
  members().OnNewJobsWhileIdle();
  members().Advance();
  const PlanTask task = Task();
  ASSERT_TRUE(task.layout.has_value());
  EXPECT_EQ(task.layout->present, (std::vector<std::vector<int>>{{0, 1}}));
  AnswerGroups(task.ticket, {{0}});
  EXPECT_TRUE(streams_[2]->sent.back().has_retire());
  EXPECT_EQ(State().workers(1).pipeline(), -1);
  EXPECT_EQ(State().workers(1).state(), v1::WORKER_STATE_SPARE);
  AnswerPlan();
  ReadyAll(0);
  EXPECT_EQ(members().plan(0).stages().size(), 1u);
}

TEST_F(MembershipLayoutTest, NobodyWaitsForAPipelineWhoseWorkersAreElsewhere) {
  AttachProfiled(3);
  AnswerGroups(Task().ticket, {{0}, {1, 2}});
  EXPECT_TRUE(members().Awaited(1));
  Lose(3);
  EXPECT_TRUE(members().Awaited(1));
  Settle();
  while (const auto task = members().TakeTask()) {
    if (!task->layout) continue;
    AnswerGroups(task->ticket, {{0, 1}});
    break;
  }
  EXPECT_NE(members().Awaited(0), members().Awaited(1));
}

TEST_F(MembershipLayoutTest, AnswersForWorkersThatHaveMovedAreDropped) {
  AttachProfiled(2);
  AnswerGroups(Task().ticket, {{0, 1}});
  const PlanTask late = Task();
  ASSERT_FALSE(late.layout.has_value());
  members().OnNewJobsWhileIdle();
  Settle();
  const PlanTask groups = Task();
  ASSERT_TRUE(groups.layout.has_value());
  AnswerGroups(groups.ticket, {{0}, {1}});
  Plan plan;
  plan.block = {.gbs = 4, .num_blocks = 2, .max_step_tokens = 64};
  plan.stages.resize(2);
  plan.stages[0].layers = {0, 2};
  plan.stages[1].layers = {2, 4};
  plan.stages[1].machine = 1;
  members().OnPlanned({late.ticket, plan, {500, 500}, std::nullopt});
  members().Advance();
  EXPECT_EQ(members().phase(), Phase::kNoPlan);
}

// One that has lost a worker below its least does no work, so that the planner
// must not find it good enough.
TEST_F(MembershipLayoutTest, ABrokenPipelineDoesNotKeepNewcomersOut) {
  options_.min_workers = 2;
  AttachProfiled(2);
  AnswerGroups(Task().ticket, {{0, 1}});
  AnswerPlan();
  ReadyAll(0);
  Lose(2);
  EXPECT_FALSE(members().TakeTask().has_value());
  EXPECT_THAT(members().detail(),
              HasSubstr("waiting for workers: 1 of 2 registered"));
  streams_[3] = Attach(3, Profiled("c"));
  members().Advance();
  EXPECT_EQ(members().detail(), "planning");
  Settle();
  const PlanTask task = Task();
  ASSERT_TRUE(task.layout.has_value());
  EXPECT_TRUE(task.layout->present.empty());
  AnswerGroups(task.ticket, {{0, 1}});
  AnswerPlan();
  ReadyAll(0);
}

TEST_F(MembershipLayoutTest, TheOnlyPipelineHasItsLeast) {
  options_.min_workers = 2;
  AttachProfiled(3);
  AnswerGroups(Task().ticket, {{1}});  // the others hardly help
  EXPECT_EQ(members().plan(0).num_workers(), 2);
  EXPECT_EQ(Task().machines.size(), 2u);
}

TEST_F(MembershipLayoutTest, WithoutAnAnswerAllAreOnePipeline) {
  AttachProfiled(2);
  PlanAnswer answer{Task().ticket, absl::UnknownError("no plan")};
  answer.layout = absl::ResourceExhaustedError("no room");
  members().OnPlanned(std::move(answer));
  members().Advance();
  EXPECT_EQ(members().plan(0).num_workers(), 2);
}

TEST_F(MembershipLayoutTest, WithoutProfilesThereIsOnePipeline) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  EXPECT_EQ(members().plan(0).stages().size(), 2u);
}

TEST_F(MembershipLayoutTest, WaitsForAJob) {
  AttachProfiled(2);
  PlanAnswer answer{Task().ticket, absl::UnknownError("no plan")};
  answer.layout = absl::NotFoundError("no requests wait");
  members().OnPlanned(std::move(answer));
  members().Advance();
  EXPECT_EQ(members().detail(), "a plan is made when a job comes");
  EXPECT_FALSE(members().TakeTask().has_value());
  members().OnNewJobsWhileIdle();
  members().Advance();
  EXPECT_TRUE(Task().layout.has_value());
}

}  // namespace
}  // namespace sluice
