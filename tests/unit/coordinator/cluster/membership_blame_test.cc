// Tests of workers that Membership refuses or, for links, leaves out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Phase = Membership::Phase;

class MembershipBlameTest : public MembershipTest {
 protected:
  // Reports that this worker's stage could not open its link to the next one.
  void Unreached(int64_t id, const std::string& text = "refused") {
    v1::WorkerMessage message;
    v1::StageFailed* failed = message.mutable_stage_failed();
    failed->set_epoch(members().plan().epoch().value());
    failed->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    failed->set_message(text);
    failed->set_next_unreached(true);
    members().OnMessage(WorkerId(id), std::move(message));
    members().Advance();
  }

  void Wait(absl::Duration time) {
    while (time > absl::ZeroDuration()) {
      const absl::Duration step =
          std::min(time, absl::Duration(absl::Seconds(2)));
      clock_.Advance(step);
      time -= step;
      for (int64_t id = 1; id <= 5; ++id) Beat(id);
      members().Advance();
    }
  }

  std::shared_ptr<RecordingStream> AttachFrom(const PeerPlace& place,
                                              int64_t id,
                                              const std::string& name,
                                              const std::string& link) {
    auto stream = std::make_shared<RecordingStream>();
    members().OnOpened(WorkerId(id), stream, place);
    v1::WorkerMessage message = Register(name);
    message.mutable_register_()->set_link_address(link);
    members().OnMessage(WorkerId(id), std::move(message));
    return stream;
  }

  v1::ClusterState Describe() {
    v1::ClusterState state;
    members().Describe(&state);
    return state;
  }

  const PeerPlace here_ = {PeerPlace::kThisMachine, "127.0.0.1"};
  const PeerPlace there_ = {PeerPlace::kElsewhere, "10.77.0.2"};
};

TEST_F(MembershipBlameTest, TheFarEndOfALinkThatCannotBeOpenedIsLeftOut) {
  auto a = Attach(1, "a");
  auto b = Attach(2, "b");
  auto c = Attach(3, "c");
  Settle();
  ASSERT_EQ(a->sent.back().assign_stage().num_stages(), 3);
  Unreached(1, "link to link:b: no route");
  EXPECT_EQ(State(2), "WORKER_STATE_LEFT_OUT");
  EXPECT_THAT(members().detail(), HasSubstr("no route"));
  clock_.Advance(options_.timeouts.first_back_off);
  members().Advance();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(a->sent.back().assign_stage().next_link_address(), "link:c");
  EXPECT_EQ(c->sent.back().assign_stage().num_stages(), 2);
  EXPECT_THAT(members().detail(), HasSubstr("(after: worker 'a' failed"));
  Ready(1);
  Ready(3);
  ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  // The state tells why there are only two.
  EXPECT_THAT(members().detail(),
              HasSubstr("goes on without worker 'b': it can't be reached at "
                        "link:b: worker 'a' failed in stage 0"));
  const v1::ClusterState state = Describe();
  ASSERT_EQ(state.absent_size(), 1);
  EXPECT_EQ(state.absent(0).name(), "b");
  EXPECT_EQ(state.absent(0).kind(), v1::AbsentWorker::KIND_LEFT_OUT);
  EXPECT_THAT(state.absent(0).reason(), HasSubstr("no route"));
  EXPECT_GT(state.absent(0).seconds_left(), 9);
  ASSERT_EQ(state.plan_failures_size(), 1);
  EXPECT_EQ(state.plan_failures(0).reason(), "link");
  EXPECT_EQ(state.plan_failures(0).count(), 1);
  // It attaches again, but stays left out.
  members().OnClosed(WorkerId(2), absl::UnavailableError("gone"));
  b = Attach(4, "b");
  Wait(absl::Seconds(4));
  EXPECT_EQ(State(4), "WORKER_STATE_LEFT_OUT");
  EXPECT_EQ(b->sent.size(), 1u);
  // When its time is up it is tried again, while the plan runs.
  Wait(absl::Seconds(8));
  EXPECT_EQ(State(4), "WORKER_STATE_PREPARING");
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_EQ(members().detail(), "");
}

TEST_F(MembershipBlameTest, OneThatWasStartedAnewGetsItsChance) {
  Attach(1, "a");
  Attach(2, "b");
  Attach(3, "c");
  Settle();
  Unreached(1);
  members().OnClosed(WorkerId(2), absl::UnavailableError("killed"));
  v1::WorkerMessage again = Register("b");
  again.mutable_register_()->set_link_address("link:b2");
  auto b = Attach(4, std::move(again));
  Settle();
  EXPECT_TRUE(b->sent.back().has_assign_stage());
}

TEST_F(MembershipBlameTest, TheNearEndThatReachesNobodyIsToBlame) {
  Attach(1, "a");
  auto b = Attach(2, "b");
  auto c = Attach(3, "c");
  Settle();
  Unreached(1);  // b, and the next plan begins at once
  Unreached(1);  // c
  EXPECT_EQ(State(1), "WORKER_STATE_LEFT_OUT");
  EXPECT_EQ(State(2), "WORKER_STATE_LOADING");
  EXPECT_EQ(State(3), "WORKER_STATE_LOADING");
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(b->sent.back().assign_stage().num_stages(), 2);
  EXPECT_EQ(c->sent.back().assign_stage().num_stages(), 2);
}

TEST_F(MembershipBlameTest, WithNobodyElseItIsTriedAgainWithTheReasonShown) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  for (const int half_seconds : {1, 2, 4, 8}) {
    ASSERT_EQ(members().plan().phase(), Phase::kLoading);
    Unreached(1, "no route");
    EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
    EXPECT_THAT(members().detail(), HasSubstr("no route"));
    Wait(absl::Milliseconds(500) * half_seconds - absl::Milliseconds(1));
    EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
    Wait(absl::Milliseconds(1));
    EXPECT_THAT(members().detail(), HasSubstr("no route"));
  }
  // In the end it works.
  Ready(1);
  Ready(2);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_EQ(members().detail(), "");
}

TEST_F(MembershipBlameTest, OnlyAsManyOfThoseLeftOutAsItTakes) {
  Attach(1, "a");
  auto b = Attach(2, "b");
  auto c = Attach(3, "c");
  Settle();
  Unreached(1);  // b
  clock_.Advance(options_.timeouts.first_back_off);
  members().Advance();
  Ready(1);
  Ready(3);
  members().OnClosed(WorkerId(3), absl::UnavailableError("killed"));
  Settle();
  // Only b is left.
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(b->sent.back().assign_stage().num_stages(), 2);
}

TEST_F(MembershipBlameTest, ProgressIsAPardon) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  Unreached(1);
  clock_.Advance(options_.timeouts.first_back_off);
  members().Advance();
  Ready(1);
  Ready(2);
  members().plan().OnProgress();
  // It is not left out when it comes back.
  members().OnClosed(WorkerId(2), absl::UnavailableError("gone"));
  Attach(3, "b");
  EXPECT_EQ(State(3), "WORKER_STATE_SPARE");
}

TEST_F(MembershipBlameTest, AStageThatFailsAgainAndAgainIsLeftOut) {
  options_.min_workers = 1;
  auto a = Attach(1, "a");
  Attach(2, "b");
  Settle();
  Ready(1);
  Ready(2);
  Failed(2, absl::StatusCode::kDataLoss, "a damaged page");
  EXPECT_EQ(State(2), "WORKER_STATE_SPARE");  // that may happen
  Wait(absl::Seconds(1));
  Ready(1);
  Ready(2);
  ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  Failed(2, absl::StatusCode::kDataLoss, "a damaged page");
  EXPECT_EQ(State(2), "WORKER_STATE_LEFT_OUT");
  Wait(absl::Seconds(2));
  EXPECT_EQ(a->sent.back().assign_stage().num_stages(), 1);
}

// One of three, where two are enough, is lost again and again.
class MembershipLossTest : public MembershipBlameTest {
 protected:
  void SetUp() override {
    a_ = Attach(1, "a");
    Attach(2, "b");
    Return();
    ExpectPlanOf(3);
  }

  // The third comes back with a new number, which is also in its name.
  void Return() {
    ++third_;
    Attach(third_, absl::StrCat("c-", third_));
    Settle();
  }
  void Lose() {
    members().OnClosed(WorkerId(third_), absl::UnavailableError("killed"));
  }
  void ExpectPlanOf(int stages) {
    EXPECT_EQ(members().plan().phase(), Phase::kLoading);
    EXPECT_EQ(a_->sent.back().assign_stage().num_stages(), stages);
  }
  // Two losses in a row, and the third comes back once more.
  void LoseTwice() {
    Lose();
    Return();
    ExpectPlanOf(3);  // that may happen
    Lose();
    Settle();
    ExpectPlanOf(2);
    Return();
  }

  std::shared_ptr<RecordingStream> a_;
  int64_t third_ = 2;
};

TEST_F(MembershipLossTest, TheOthersComputeBeforeItMayTryAgain) {
  LoseTwice();
  Wait(absl::Seconds(60));  // while they load
  ExpectPlanOf(2);
  Ready(1);
  Ready(2);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_EQ(State(third_), "WORKER_STATE_SPARE");
  EXPECT_EQ(members().detail(),
            "goes on without worker 'c-5': the last 2 plans ended as a worker "
            "was lost, so who has come since waits for a while");
  const PlanEpoch epoch = members().plan().epoch();
  Wait(absl::Seconds(9));
  EXPECT_EQ(State(third_), "WORKER_STATE_SPARE");
  Wait(absl::Seconds(1));
  EXPECT_EQ(State(third_), "WORKER_STATE_PREPARING");
  EXPECT_EQ(members().detail(), "");
  EXPECT_EQ(members().plan().epoch(), epoch);
}

TEST_F(MembershipLossTest, HoweverSoonItIsBack) {
  Lose();
  Return();  // before anything is planned without it
  ExpectPlanOf(3);
  Lose();
  Return();
  ExpectPlanOf(2);
  EXPECT_EQ(State(third_), "WORKER_STATE_SPARE");
}

TEST_F(MembershipLossTest, OthersMaySayFirstThatItIsGone) {
  for (int i = 0; i < 2; ++i) {
    Failed(2, absl::StatusCode::kUnavailable, "link broke");
    Lose();
    Return();
  }
  ExpectPlanOf(2);
}

TEST_F(MembershipLossTest, WithoutItTheOthersMustBeEnough) {
  LoseTwice();
  members().OnClosed(WorkerId(2), absl::UnavailableError("killed"));
  Settle();
  ExpectPlanOf(2);
  Ready(1);
  Ready(third_);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
}

TEST_F(MembershipLossTest, WhatTheyCannotDoAloneTheyNeedItFor) {
  LoseTwice();
  ExpectPlanOf(2);
  Failed(1, absl::StatusCode::kResourceExhausted, "needs 3 GB");
  clock_.Advance(options_.timeouts.first_back_off);
  members().Advance();
  EXPECT_EQ(State(third_), "WORKER_STATE_LOADING");
}

TEST_F(MembershipLossTest, LossesWithWorkDoneInBetweenAreNoRow) {
  for (int i = 0; i < 5; ++i) {
    for (int64_t id : {int64_t{1}, int64_t{2}, third_}) Ready(id);
    ASSERT_EQ(members().plan().phase(), Phase::kRunning);
    members().plan().OnProgress();
    Lose();
    Return();
    ExpectPlanOf(3);
  }
}

TEST_F(MembershipLossTest, WhoLeavesOnPurposeIsNotLost) {
  for (int i = 0; i < 5; ++i) {
    members().OnClosed(WorkerId(third_), absl::CancelledError("left"));
    Return();
    ExpectPlanOf(3);
  }
}

TEST_F(MembershipBlameTest, WhoAnswersNonsenseIsLeftOut) {
  Attach(1, "a");
  Attach(2, "b");
  auto c = Attach(3, "c");
  Settle();
  for (int64_t id : {1, 2, 3}) Ready(id);
  members().BreakLastStage(absl::InternalError("no such step"));
  EXPECT_EQ(c->broken, absl::InternalError("no such step"));
  Attach(4, "c");
  Settle();
  EXPECT_EQ(State(4), "WORKER_STATE_LEFT_OUT");
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
}

TEST_F(MembershipBlameTest, ALoopbackLinkFromElsewhereIsRefused) {
  auto w = AttachFrom(there_, 1, "w", "127.0.0.1:7072");
  EXPECT_FALSE(w->accepted);
  EXPECT_THAT(std::string(w->broken.message()),
              HasSubstr("start it with --host 0.0.0.0 --advertise 10.77.0.2"));
  const v1::ClusterState state = Describe();
  EXPECT_EQ(state.workers_size(), 0);
  ASSERT_EQ(state.absent_size(), 1);
  EXPECT_EQ(state.absent(0).kind(), v1::AbsentWorker::KIND_REFUSED);
  Settle();
  EXPECT_THAT(
      members().detail(),
      HasSubstr("waiting for workers: 0 of 2 registered; worker 'w' was "
                "refused: worker 'w' says that others reach it at "
                "127.0.0.1:7072, which is its own loopback"));
  w = AttachFrom(there_, 2, "w", "10.77.0.2:7072");
  EXPECT_TRUE(w->accepted);
  EXPECT_EQ(Describe().absent_size(), 0);
}

TEST_F(MembershipBlameTest, LoopbackLinksDoOnlyWhereAllAreOnOneMachine) {
  auto a = AttachFrom(here_, 1, "a", "127.0.0.1:1");
  auto b = AttachFrom(here_, 2, "b", "127.0.0.1:2");
  EXPECT_TRUE(b->accepted);
  auto c = AttachFrom(there_, 3, "c", "10.77.0.2:1");
  EXPECT_THAT(
      std::string(c->broken.message()),
      HasSubstr("'c' can't reach 'a' at 127.0.0.1:1; as for 'a', start it "
                "with --host 0.0.0.0 --advertise ADDRESS"));
  members().OnClosed(WorkerId(1), absl::CancelledError("left"));
  members().OnClosed(WorkerId(2), absl::CancelledError("left"));
  EXPECT_TRUE(AttachFrom(there_, 4, "c", "10.77.0.2:1")->accepted);
  // The workers come the other way round.
  a = AttachFrom(here_, 5, "a", "127.0.0.1:1");
  EXPECT_THAT(std::string(a->broken.message()),
              HasSubstr("'c' can't reach 'a' at 127.0.0.1:1"));
  EXPECT_TRUE(AttachFrom(here_, 6, "a", "10.77.0.1:1")->accepted);
}

TEST_F(MembershipBlameTest, ANameIsLookedUpFirst) {
  options_.look_up_names = true;
  auto a = AttachFrom(there_, 1, "a", "node-a:1");
  EXPECT_FALSE(a->accepted);
  EXPECT_TRUE(a->broken.ok());
  const std::vector<WorkerRegistry::Lookup> lookups =
      members().workers().TakeLookups();
  ASSERT_EQ(lookups.size(), 1u);
  EXPECT_EQ(lookups[0].host, "node-a");
  EXPECT_TRUE(members().workers().TakeLookups().empty());
  // The wait may be long.
  for (int i = 0; i < 30; ++i) {
    clock_.Advance(absl::Seconds(1));
    members().Advance();
  }
  EXPECT_TRUE(a->broken.ok());
  members().OnResolved(WorkerId(1), std::vector<std::string>{"10.77.0.2"});
  EXPECT_TRUE(a->accepted);
  members().OnResolved(WorkerId(1), absl::UnavailableError("late"));
  EXPECT_TRUE(a->broken.ok());

  auto b = AttachFrom(there_, 2, "b", "node-b:1");
  members().OnResolved(
      WorkerId(2), absl::UnavailableError("\"node-b\" can't be resolved: no"));
  EXPECT_THAT(std::string(b->broken.message()),
              HasSubstr("\"node-b\" can't be resolved: no"));
  EXPECT_THAT(std::string(b->broken.message()),
              HasSubstr("--advertise 10.77.0.2"));
  EXPECT_EQ(Describe().absent_size(), 1);
  // The name is the loopback's on this machine.
  auto c = AttachFrom(there_, 3, "c", "vm:1");
  members().OnResolved(WorkerId(3), std::vector<std::string>{"127.0.1.1"});
  EXPECT_THAT(std::string(c->broken.message()), HasSubstr("127.0.1.1"));
  // This worker is gone before the answer.
  AttachFrom(there_, 4, "d", "node-d:1");
  members().OnClosed(WorkerId(4), absl::UnavailableError("gone"));
  members().OnResolved(WorkerId(4), std::vector<std::string>{"10.77.0.2"});
  // Numeric addresses, and calls from no machine, need no lookup.
  members().workers().TakeLookups();
  EXPECT_TRUE(AttachFrom(there_, 5, "e", "10.77.0.3:1")->accepted);
  EXPECT_TRUE(AttachFrom({}, 6, "f", "node-f:1")->accepted);
  EXPECT_TRUE(members().workers().TakeLookups().empty());
}

TEST_F(MembershipBlameTest, OneThatSpeaksBeforeItIsRegisteredIsBroken) {
  options_.look_up_names = true;
  auto a = AttachFrom(there_, 1, "a", "node-a:1");
  Beat(1);
  EXPECT_EQ(a->broken.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
