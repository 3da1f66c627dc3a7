// Workers that are to go: drained by an operator, or being stopped.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using Phase = Membership::Phase;

class MembershipDrainTest : public MembershipTest {
 protected:
  std::shared_ptr<RecordingStream> Come(int64_t id, const std::string& name) {
    return streams_[id] = Attach(id, name);
  }

  void Leave(int64_t id) {
    v1::WorkerMessage message;
    message.mutable_leave();
    members().OnMessage(WorkerId(id), std::move(message));
    members().Advance();
  }

  // Lets the loading plan run.
  void RunPlan() {
    ASSERT_EQ(members().plan().phase(), Phase::kLoading);
    const std::vector<WorkerId> stages = members().plan().stages();
    for (const WorkerId id : stages) Ready(id.value());
    ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  }

  bool InPlan(int64_t id) {
    return members().plan().StageOf(WorkerId(id)) >= 0;
  }

  // The last Drain that the worker got; -1: none.
  int Drained(int64_t id) {
    int drained = -1;
    for (const v1::CoordinatorMessage& message : streams_[id]->sent) {
      if (message.has_drain()) drained = message.drain().drained() ? 1 : 0;
    }
    return drained;
  }

  v1::ClusterState Describe() {
    v1::ClusterState state;
    members().Describe(&state);
    return state;
  }

  std::map<int64_t, std::shared_ptr<RecordingStream>> streams_;
};

TEST_F(MembershipDrainTest, AWorkerThatIsStoppedGoesWhenAnotherPlanBegins) {
  for (int64_t id : {1, 2, 3}) Come(id, absl::StrCat("w", id));
  Settle();
  RunPlan();
  Leave(2);
  // It works until then.
  EXPECT_TRUE(members().plan().running());
  EXPECT_EQ(State(2), "WORKER_STATE_READY");
  EXPECT_TRUE(streams_[2]->broken.ok());
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(members().plan().stages().size(), 2u);
  EXPECT_TRUE(absl::IsCancelled(streams_[2]->broken));
  const v1::ClusterState state = Describe();
  EXPECT_EQ(state.workers_size(), 2);
  ASSERT_EQ(state.absent_size(), 1);
  EXPECT_EQ(state.absent(0).name(), "w2");
  EXPECT_EQ(state.absent(0).kind(), v1::AbsentWorker::KIND_LEFT);
  EXPECT_EQ(state.plan_failures_size(), 0);
  RunPlan();
}

TEST_F(MembershipDrainTest, AWorkerIsNotKeptWhereTooFewAreLeft) {
  Come(1, "a");
  Come(2, "b");
  Settle();
  RunPlan();
  Leave(1);
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_TRUE(absl::IsCancelled(streams_[1]->broken));
  Settle();
  EXPECT_THAT(members().detail(),
              HasSubstr("waiting for workers: 1 of 2 registered; worker 'a' "
                        "was stopped"));
  Leave(2);
  EXPECT_TRUE(absl::IsCancelled(streams_[2]->broken));
}

TEST_F(MembershipDrainTest, APlanThatLoadsIsNotAwaited) {
  for (int64_t id : {1, 2, 3}) Come(id, absl::StrCat("w", id));
  Settle();
  const PlanEpoch epoch = members().plan().epoch();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  Leave(2);
  Settle();
  for (int64_t id : {1, 3}) AnswerPreparation(id, *streams_[id]);
  EXPECT_GT(members().plan().epoch(), epoch);
  EXPECT_TRUE(absl::IsCancelled(streams_[2]->broken));
  EXPECT_EQ(members().plan().stages().size(), 2u);
  RunPlan();
}

TEST_F(MembershipDrainTest, ASpareGoesAtOnce) {
  options_.num_layers = 2;
  for (int64_t id : {1, 2, 3}) Come(id, absl::StrCat("w", id));
  Settle();
  RunPlan();
  ASSERT_FALSE(InPlan(3));
  Leave(3);
  EXPECT_TRUE(members().plan().running());
  EXPECT_TRUE(absl::IsCancelled(streams_[3]->broken));
}

TEST_F(MembershipDrainTest, ASpareTakesThePlaceOfAWorkerThatIsStopped) {
  options_.num_layers = 2;
  for (int64_t id : {1, 2, 3}) Come(id, absl::StrCat("w", id));
  Settle();
  RunPlan();
  Leave(1);
  Settle();
  // It loads its stage while the others work.
  EXPECT_EQ(State(3), "WORKER_STATE_PREPARING");
  EXPECT_TRUE(members().plan().running());
  EXPECT_TRUE(streams_[1]->broken.ok());
  for (int64_t id : {1, 2, 3}) AnswerPreparation(id, *streams_[id]);
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_TRUE(absl::IsCancelled(streams_[1]->broken));
  EXPECT_TRUE(InPlan(2));
  EXPECT_TRUE(InPlan(3));
}

TEST_F(MembershipDrainTest, APreparedPlanWithAWorkerThatIsStoppedIsGivenUp) {
  Come(1, "a");
  Come(2, "b");
  Settle();
  RunPlan();
  Come(3, "c");
  Settle();
  ASSERT_EQ(State(3), "WORKER_STATE_PREPARING");
  Leave(3);
  EXPECT_TRUE(members().plan().running());
  EXPECT_TRUE(absl::IsCancelled(streams_[3]->broken));
  EXPECT_EQ(Describe().plan_failures_size(), 0);
}

TEST_F(MembershipDrainTest, ADrainedWorkerStaysWithoutAPlanUntilThatIsUndone) {
  for (int64_t id : {1, 2, 3}) Come(id, absl::StrCat("w", id));
  Settle();
  RunPlan();
  members().Drain("w2", true);
  EXPECT_EQ(Drained(2), 1);
  EXPECT_EQ(State(2), "WORKER_STATE_READY");
  Settle();
  RunPlan();
  EXPECT_EQ(members().plan().stages().size(), 2u);
  EXPECT_EQ(State(2), "WORKER_STATE_DRAINED");
  EXPECT_TRUE(streams_[2]->sent.back().has_retire());
  EXPECT_TRUE(streams_[2]->broken.ok());
  Settle();
  EXPECT_EQ(State(2), "WORKER_STATE_DRAINED");
  members().Drain("w2", false);
  EXPECT_EQ(Drained(2), 0);
  Settle();
  EXPECT_EQ(State(2), "WORKER_STATE_PREPARING");
  members().Drain("w2", true);
  EXPECT_EQ(Drained(2), 1);
  members().Advance();
  EXPECT_EQ(State(2), "WORKER_STATE_DRAINED");
  EXPECT_TRUE(members().plan().running());
}

TEST_F(MembershipDrainTest, JobsAreToldThatAWorkerWhichTheyNeedIsDrained) {
  Come(1, "a");
  Come(2, "b");
  Settle();
  RunPlan();
  members().Drain("b", true);
  members().Advance();
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  Settle();
  EXPECT_EQ(members().detail(),
            "waiting for workers: 1 of 2 registered; worker 'b' is drained");
  members().Drain("b", false);
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
}

TEST_F(MembershipDrainTest, ADrainedWorkerThatAttachesAgainIsDrained) {
  Come(1, "a");
  Come(2, "b");
  v1::WorkerMessage message = Register("c");
  message.mutable_register_()->set_drained(true);
  streams_[3] = Attach(3, message);
  Settle();
  RunPlan();
  EXPECT_EQ(members().plan().stages().size(), 2u);
  EXPECT_EQ(State(3), "WORKER_STATE_DRAINED");
}

TEST_F(MembershipDrainTest, PipelinesDoWithoutADrainedWorker) {
  options_.replicas = 2;
  for (int64_t id : {1, 2, 3, 4}) Come(id, absl::StrCat("w", id));
  Settle();
  ASSERT_EQ(members().num_pipelines(), 2u);
  for (int64_t id : {1, 2, 3, 4}) {
    Ready(id, 50, 16, members().plan(id <= 2 ? 0 : 1).epoch().value());
  }
  ASSERT_TRUE(members().plan(0).running());
  ASSERT_TRUE(members().plan(1).running());
  members().Drain("w4", true);
  Settle();
  // The other pipeline goes on undisturbed.
  EXPECT_TRUE(members().plan(0).running());
  EXPECT_THAT(members().plan(1).phase(),
              AnyOf(Phase::kLoading, Phase::kRunning));
  EXPECT_EQ(members().plan(1).stages().size(), 1u);
  EXPECT_EQ(State(4), "WORKER_STATE_DRAINED");
}

}  // namespace
}  // namespace sluice
