// A running plan goes on until the next one can begin.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Phase = Membership::Phase;

class MembershipPreparingTest : public MembershipTest {
 protected:
  // a and b run, and c joins.
  void Join() {
    a_ = Attach(1, "a");
    b_ = Attach(2, "b");
    Settle();
    Ready(1);
    Ready(2);
    ASSERT_EQ(members().plan().phase(), Phase::kRunning);
    c_ = Attach(3, "c");
    Settle();
  }

  void StillRuns() {
    EXPECT_EQ(members().plan().phase(), Phase::kRunning);
    EXPECT_EQ(members().plan().epoch(), PlanEpoch(1));
    EXPECT_TRUE(a_->broken.ok());
    EXPECT_TRUE(b_->broken.ok());
    for (const auto* stream : {a_.get(), b_.get()}) {
      for (const v1::CoordinatorMessage& message : stream->sent) {
        if (message.has_assign_stage()) {
          EXPECT_EQ(message.assign_stage().epoch(), 1);
        }
      }
    }
  }

  std::shared_ptr<RecordingStream> a_, b_, c_;
};

TEST_F(MembershipPreparingTest, AJoinerLoadsAheadAndIsReachedFirst) {
  Join();
  StillRuns();
  EXPECT_EQ(members().detail(), "");
  EXPECT_EQ(State(3), "WORKER_STATE_PREPARING");
  ASSERT_TRUE(c_->sent.back().has_assign_stage());
  const v1::AssignStage prepare = c_->sent.back().assign_stage();
  EXPECT_TRUE(prepare.prepare());
  EXPECT_EQ(prepare.epoch(), 2);
  EXPECT_EQ(prepare.stage(), 2);
  EXPECT_EQ(prepare.layers().begin(), 3);
  EXPECT_EQ(prepare.layers().end(), 4);
  // The link from a to b is known to work.
  EXPECT_FALSE(a_->sent.back().has_reach_links());
  ASSERT_TRUE(b_->sent.back().has_reach_links());
  EXPECT_EQ(b_->sent.back().reach_links().epoch(), 2);
  EXPECT_EQ(b_->sent.back().reach_links().peers(0).link_address(), "link:c");

  Ready(3, 50, 16, 2);
  StillRuns();
  AnswerPreparation(2, *b_);
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(2));
  // The prepared stage is the assigned one.
  v1::AssignStage assigned = c_->sent.back().assign_stage();
  EXPECT_FALSE(assigned.prepare());
  assigned.set_prepare(true);
  EXPECT_EQ(assigned.SerializeAsString(), prepare.SerializeAsString());
  EXPECT_EQ(a_->sent.back().assign_stage().num_stages(), 3);
  for (int64_t id : {1, 2, 3}) Ready(id);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
}

TEST_F(MembershipPreparingTest, APlanThatLoadsIsNotEndedForAJoiner) {
  a_ = Attach(1, "a");
  b_ = Attach(2, "b");
  Settle();
  c_ = Attach(3, "c");
  Settle();
  EXPECT_EQ(State(3), "WORKER_STATE_PREPARING");
  Ready(3, 50, 16, 2);
  AnswerPreparation(2, *b_);
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(1));
  // It follows once the first one runs.
  Ready(1);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(1));
  Ready(2);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(2));
}

// With ClusterOptions::test_links.
class MembershipTestedTest : public MembershipTest {
 protected:
  MembershipTestedTest() { options_.test_links = true; }

  // Answers all tests that a worker was asked for since the last call.
  void AnswerTests(int64_t id, const RecordingStream& stream,
                   const std::set<std::string>& unreached) {
    for (; seen_[id] < stream.sent.size(); ++seen_[id]) {
      const v1::CoordinatorMessage message = stream.sent[seen_[id]];
      if (!message.has_reach_links()) continue;
      v1::WorkerMessage answer;
      answer.mutable_links_reached()->set_epoch(message.reach_links().epoch());
      for (const auto& peer : message.reach_links().peers()) {
        auto* link = answer.mutable_links_reached()->add_links();
        link->set_peer(peer.name());
        if (unreached.contains(peer.name())) link->set_error("refused");
      }
      members().OnMessage(WorkerId(id), std::move(answer));
    }
    members().Advance();
  }

  std::map<int64_t, size_t> seen_;
};

TEST_F(MembershipTestedTest, WhoeverCannotBeReachedIsLeftOutBeforeAnyPlan) {
  std::map<int64_t, std::shared_ptr<RecordingStream>> streams;
  for (int64_t id = 1; id <= 6; ++id) {
    streams[id] = Attach(id, absl::StrCat("w", id));
  }
  Settle();
  EXPECT_EQ(members().detail(), "testing links between workers");
  const std::set<std::string> unreached = {"w1", "w3", "w4", "w6"};
  for (const auto& [id, stream] : streams) {
    AnswerTests(id, *stream, unreached);
  }
  for (const int64_t id : {1, 3, 4, 6}) {
    EXPECT_EQ(State(id), "WORKER_STATE_LEFT_OUT");
  }
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(streams[2]->sent.back().assign_stage().num_stages(), 2);
  EXPECT_EQ(streams[2]->sent.back().assign_stage().next_link_address(),
            "link:w5");
  Ready(2);
  Ready(5);
  EXPECT_THAT(members().detail(), HasSubstr("it can't be reached at link:w1"));
  // One is back, and joins behind the running plan.
  clock_.Advance(absl::Seconds(5));
  members().Advance();
  for (const auto& [id, stream] : streams) {
    AnswerTests(id, *stream, {"w3", "w4", "w6"});
  }
  Settle();
  EXPECT_EQ(State(1), "WORKER_STATE_PREPARING");
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
}

TEST_F(MembershipTestedTest, WhoeverMeasuresOrIsDrainedIsNotTested) {
  auto a = Attach(1, "a");
  auto b = Attach(2, "b");
  v1::WorkerMessage measures = Register("c");
  measures.mutable_register_()->set_measuring(true);
  auto c = Attach(3, measures);
  Settle();
  EXPECT_FALSE(c->sent.back().has_reach_links());
  EXPECT_EQ(a->sent.back().reach_links().peers_size(), 1);
  AnswerTests(1, *a, {});
  AnswerTests(2, *b, {});
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  v1::WorkerMessage measured;
  measured.mutable_measured();
  members().OnMessage(WorkerId(3), measured);
  members().Advance();
  EXPECT_EQ(c->sent.back().reach_links().peers_size(), 2);
  // It may be drained to be taken off the network.
  members().Drain("c", true);
  members().Advance();
  AnswerTests(1, *a, {"c"});
  AnswerTests(2, *b, {"c"});
  AnswerTests(3, *c, {"a", "b"});
  EXPECT_EQ(State(3), "WORKER_STATE_DRAINED");
  v1::ClusterState state;
  members().Describe(&state);
  EXPECT_EQ(state.absent_size(), 0);
}

TEST_F(MembershipTestedTest, SaysWhoCannotReachWhomWhereTooFewAreLeft) {
  auto a = Attach(1, "a");
  auto b = Attach(2, "b");
  Settle();
  AnswerTests(1, *a, {"b"});
  AnswerTests(2, *b, {"a"});
  Settle();
  EXPECT_EQ(members().detail(),
            "waiting for workers: of 2 no 2 can be linked to each other: "
            "worker 'a' can't open a link to 'b' at link:b: refused");
  // One direction is enough.
  clock_.Advance(absl::Seconds(5));
  members().Advance();
  AnswerTests(1, *a, {"b"});
  AnswerTests(2, *b, {});
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(b->sent.back().assign_stage().next_link_address(), "link:a");
}

TEST_F(MembershipPreparingTest, TheOrderOfTheAnswersDoesNotMatter) {
  Join();
  AnswerPreparation(2, *b_);
  StillRuns();
  Ready(3, 50, 16, 2);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(2));
}

TEST_F(MembershipPreparingTest, AJoinerThatCannotBeReachedIsLeftOut) {
  Join();
  Ready(3, 50, 16, 2);
  AnswerPreparation(2, *b_, "connection refused");
  StillRuns();
  EXPECT_EQ(State(3), "WORKER_STATE_LEFT_OUT");
  EXPECT_EQ(c_->sent.back().retire().epoch(), 2);
  EXPECT_THAT(members().detail(),
              HasSubstr("goes on without worker 'c': worker 'b' can't open a "
                        "link to 'c' at link:c: connection refused"));
  // It is left out for longer each time.
  for (const int seconds : {10, 20, 40}) {
    const size_t sent = c_->sent.size();
    for (int i = 0; i < seconds; ++i) {
      EXPECT_EQ(c_->sent.size(), sent);
      clock_.Advance(absl::Seconds(1));
      for (int64_t id : {1, 2, 3}) Beat(id);
      members().Advance();
    }
    ASSERT_EQ(c_->sent.size(), sent + 1);
    EXPECT_TRUE(c_->sent.back().assign_stage().prepare());
    AnswerPreparation(2, *b_, "connection refused");
    StillRuns();
  }
}

TEST_F(MembershipPreparingTest, AJoinerThatReachesNobodyIsLeftOut) {
  options_.num_layers = 3;
  a_ = Attach(1, "b");
  b_ = Attach(2, "c");
  Settle();
  Ready(1);
  Ready(2);
  // The others keep the first and the last layer: it is in between.
  c_ = Attach(3, "a");
  Settle();
  StillRuns();
  ASSERT_TRUE(c_->sent.back().has_reach_links());
  AnswerPreparation(3, *c_, "no route");
  StillRuns();
  EXPECT_EQ(State(3), "WORKER_STATE_LEFT_OUT");
}

TEST_F(MembershipPreparingTest, AJoinerThatCannotLoadIsLeftOut) {
  Join();
  Failed(3, absl::StatusCode::kResourceExhausted, "needs 3 GB", 2);
  StillRuns();
  EXPECT_EQ(State(3), "WORKER_STATE_FAILED");
  EXPECT_TRUE(c_->sent.back().has_retire());
  Settle();
  StillRuns();
}

TEST_F(MembershipPreparingTest, AJoinerWithoutRoomForTheCacheIsLeftOut) {
  Join();
  Ready(3, 0, 16, 2);
  StillRuns();
  EXPECT_EQ(State(3), "WORKER_STATE_FAILED");
}

TEST_F(MembershipPreparingTest, AJoinerThatGoesAgainIsNoMatter) {
  Join();
  members().OnClosed(WorkerId(3), absl::UnavailableError("killed"));
  Settle();
  StillRuns();
  AnswerPreparation(2, *b_);  // late
  StillRuns();
}

TEST_F(MembershipPreparingTest, AJoinerWhoseLoadingStandsStillIsLeftOut) {
  Join();
  AnswerPreparation(2, *b_);
  // Loading continues for a long time.
  for (int i = 0; i < 200; ++i) {
    clock_.Advance(absl::Seconds(1));
    for (int64_t id : {1, 2}) Beat(id);
    Beat(3, v1::Activity::KIND_LOADING, 10 + i);
    members().Advance();
    EXPECT_EQ(State(3), "WORKER_STATE_PREPARING");
  }
  // Then the wait ends.
  for (int i = 0; i < 61; ++i) {
    clock_.Advance(absl::Seconds(1));
    for (int64_t id : {1, 2}) Beat(id);
    Beat(3, v1::Activity::KIND_LOADING, 209);
    members().Advance();
  }
  StillRuns();
  EXPECT_EQ(State(3), "WORKER_STATE_LEFT_OUT");
  EXPECT_THAT(members().detail(), HasSubstr("loading, and nothing got done"));
  EXPECT_TRUE(c_->broken.ok());
}

TEST_F(MembershipPreparingTest, TheEndOfTheRunningPlanIsTheEndOfIt) {
  Join();
  members().OnClosed(WorkerId(2), absl::UnavailableError("killed"));
  Settle();
  // c steps in, with a plan of its own number.
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(3));
  EXPECT_FALSE(c_->sent.back().assign_stage().prepare());
  Ready(3, 50, 16, 2);  // of the preparation: late
  EXPECT_EQ(State(3), "WORKER_STATE_LOADING");
}

TEST_F(MembershipPreparingTest, AnotherJoinerIsPreparedWithIt) {
  Join();
  auto d = Attach(4, "d");
  Settle();
  StillRuns();
  EXPECT_EQ(c_->sent.back().assign_stage().num_stages(), 4);
  // c comes between a and b.
  ASSERT_EQ(d->sent.size(), 3u);
  EXPECT_EQ(d->sent[1].assign_stage().epoch(), 3);
  EXPECT_EQ(d->sent[2].reach_links().peers(0).name(), "b");
  EXPECT_EQ(a_->sent.back().reach_links().peers(0).name(), "d");
  Ready(3, 50, 16, 2);  // of the one before
  AnswerPreparation(2, *b_);
  StillRuns();
  AnswerPreparation(3, *c_);
  StillRuns();
  AnswerPreparation(1, *a_);
  StillRuns();
  AnswerPreparation(4, *d);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(3));
}

TEST_F(MembershipPreparingTest, AJoinerMayBeFoundGoneWhenAnotherComes) {
  Join();
  c_->full = true;  // its stream has ended, which is not known yet
  auto d = Attach(4, "d");
  Settle();
  StillRuns();
  EXPECT_FALSE(c_->broken.ok());
  Settle();
  StillRuns();
  ASSERT_EQ(State(4), "WORKER_STATE_PREPARING");
  EXPECT_EQ(d->sent[1].assign_stage().num_stages(), 3);
}

TEST_F(MembershipPreparingTest, WhoSaysNothingOfItsLinksIsNotWaitedFor) {
  options_.timeouts.max_reach_time = absl::Seconds(5);
  Join();
  Ready(3, 50, 16, 2);
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(absl::Seconds(1));
    for (int64_t id : {1, 2, 3}) Beat(id);
    members().Advance();
    StillRuns();
  }
  clock_.Advance(absl::Seconds(2));
  members().Advance();
  // b is in the present plan, which ends if b is lost.
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(2));
}

}  // namespace
}  // namespace sluice
