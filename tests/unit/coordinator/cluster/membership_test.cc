#include "coordinator/cluster/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/text/utf8.h"
#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Phase = Membership::Phase;

TEST_F(MembershipTest, SaysHowFastItLoadsAndWhatIsLeft) {
  auto a = Attach(1, "a");
  auto b = Attach(2, "b");
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  constexpr uint64_t kGigabyte = 1'000'000'000;
  const auto loaded = [&](int64_t worker, uint64_t done) {
    v1::WorkerMessage progress;
    progress.mutable_load_progress()->set_epoch(1);
    progress.mutable_load_progress()->set_bytes_done(done * kGigabyte);
    progress.mutable_load_progress()->set_bytes_total(100 * kGigabyte);
    members().OnMessage(WorkerId(worker), progress);
  };
  loaded(1, 0);
  loaded(2, 0);
  clock_.Advance(absl::Seconds(5));
  loaded(1, 20);
  loaded(2, 10);
  // The rate is of both workers, the time of the slower one.
  EXPECT_EQ(members().detail(), "loading layers: 15 %, 6.0 GB/s, 0:45 left");
}

TEST_F(MembershipTest, OneMoreBlockThanStagesWhereWeightsStayInMemory) {
  options_.layer_bytes = 100e6;
  const auto blocks = [&](uint64_t memory, const char* device) {
    members_.reset();
    for (int64_t id : {1, 2}) {
      v1::WorkerMessage message = Register(id == 1 ? "a" : "b");
      message.mutable_register_()->set_device(device);
      message.mutable_register_()->set_host_memory_bytes(memory);
      Attach(id, message);
    }
    Settle();
    return members().plan().num_blocks();
  };
  EXPECT_EQ(blocks(300e6, "cpu: some"), 3);
  EXPECT_EQ(blocks(220e6, "cpu: some"), 2);  // two layers, and hardly more
  EXPECT_EQ(blocks(300e6, "cuda: some"), 2);
  options_.num_blocks = 2;
  EXPECT_EQ(blocks(300e6, "cpu: some"), 2);
  options_.num_blocks = 5;
  EXPECT_EQ(blocks(220e6, "cpu: some"), 5);
}

TEST_F(MembershipTest, PlansLoadsAndRuns) {
  auto a = Attach(1, "a");
  EXPECT_TRUE(a->accepted);
  ASSERT_EQ(a->sent.size(), 1);
  EXPECT_EQ(a->sent[0].registered().worker_id(), 1);
  EXPECT_EQ(a->sent[0].registered().heartbeat_interval_ms(), 1000);
  Settle();
  EXPECT_EQ(members().detail(), "waiting for workers: 1 of 2 registered");
  auto b = Attach(2, "b");
  members().Advance();
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);  // not settled
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(members().detail(), "loading layers: 0 %");
  EXPECT_EQ(members().plan().num_blocks(), 2);
  ASSERT_EQ(a->sent.size(), 2);
  const v1::AssignStage& first = a->sent[1].assign_stage();
  EXPECT_EQ(first.epoch(), 1);
  EXPECT_EQ(first.stage(), 0);
  EXPECT_EQ(first.num_stages(), 2);
  EXPECT_EQ(first.layers().begin(), 0);
  EXPECT_EQ(first.layers().end(), 2);
  EXPECT_EQ(first.next_link_address(), "link:b");
  EXPECT_EQ(first.max_model_len(), 100);
  EXPECT_EQ(first.num_blocks(), 2);
  EXPECT_EQ(first.max_sequences(), 2 * options_.policy.gbs);
  ASSERT_EQ(b->sent.size(), 2);
  EXPECT_EQ(b->sent[1].assign_stage().next_link_address(), "");

  v1::WorkerMessage progress;
  progress.mutable_load_progress()->set_epoch(1);
  progress.mutable_load_progress()->set_bytes_done(80);
  progress.mutable_load_progress()->set_bytes_total(100);
  members().OnMessage(WorkerId(1), progress);
  EXPECT_EQ(members().detail(), "loading layers: 40 %");
  EXPECT_EQ(State(1), "WORKER_STATE_LOADING");

  Ready(1, 70);
  EXPECT_EQ(State(1), "WORKER_STATE_READY");
  Ready(2, 50);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_EQ(members().detail(), "");
  EXPECT_EQ(members().plan().kv_pages(), 50);
  EXPECT_TRUE(members().plan().kv_by_need());
  EXPECT_EQ(members().plan().page_tokens(), 16);

  v1::StepPlan plan;
  plan.set_step(7);
  members().SendPlan(plan);
  EXPECT_EQ(a->sent.back().step_plan().step(), 7);
}

TEST_F(MembershipTest, AProfileIsBounded) {
  v1::WorkerMessage message = Register("a");
  message.mutable_register_()->set_profile_json(
      std::string(kMaxProfileBytes + 1, 'x'));
  const auto a = Attach(1, message);
  EXPECT_FALSE(a->accepted);
  EXPECT_THAT(std::string(a->broken.message()),
              HasSubstr("has a profile of 262145 bytes; the most is 262144"));
  // A worker with an unreadable profile takes part without one.
  message.mutable_register_()->set_profile_json(
      std::string(kMaxProfileBytes, 'x'));
  EXPECT_TRUE(Attach(2, message)->accepted);
}

TEST_F(MembershipTest, TakesResultsOfTheLastStageOnly) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  v1::WorkerMessage result;
  result.mutable_step_result()->set_epoch(1);
  EXPECT_FALSE(members().OnMessage(WorkerId(2), result));  // loading
  Ready(1);
  Ready(2);
  EXPECT_FALSE(members().OnMessage(WorkerId(1), result));
  EXPECT_TRUE(members().OnMessage(WorkerId(2), result));
  result.mutable_step_result()->set_epoch(0);
  EXPECT_FALSE(members().OnMessage(WorkerId(2), result));
  EXPECT_FALSE(members().OnMessage(WorkerId(9), result));
}

TEST_F(MembershipTest, OneThatAttachesAgainTakesItsFormerPlace) {
  auto a = Attach(1, "a");
  auto b = Attach(2, "b");
  Settle();
  Ready(1);
  Ready(2);
  ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  // Nobody noticed yet that its machine went down.
  auto again = Attach(3, "b");
  EXPECT_TRUE(again->accepted);
  EXPECT_EQ(b->broken.code(), absl::StatusCode::kUnavailable);
  members().OnClosed(WorkerId(2), absl::UnavailableError("late"));
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(again->sent.back().assign_stage().layers().begin(), 2);
  // At another address it may be another one with the same name.
  v1::WorkerMessage other = Register("b");
  other.mutable_register_()->set_link_address("link:b2");
  EXPECT_FALSE(Attach(4, std::move(other))->accepted);
  EXPECT_TRUE(again->broken.ok());
}

TEST_F(MembershipTest, RefusesRegistrations) {
  options_.model_fingerprint = "f00d";
  Attach(1, "a");
  struct Case {
    std::function<void(v1::Register*)> change;
    absl::StatusCode code;
    std::string part;
  };
  const std::string huge(5000, 'x');
  const Case cases[] = {
      {[](auto* r) { r->set_name("a"); }, absl::StatusCode::kAlreadyExists,
       "a name of its own"},
      {[](auto* r) { r->set_name(""); }, absl::StatusCode::kInvalidArgument,
       "1 to 256"},
      {[&](auto* r) { r->set_name(huge); }, absl::StatusCode::kInvalidArgument,
       "5000"},
      {[&](auto* r) { r->set_device(huge); },
       absl::StatusCode::kInvalidArgument, "5000"},
      {[](auto* r) { r->set_link_address(""); },
       absl::StatusCode::kInvalidArgument, "link address"},
      {[](auto* r) { r->set_model_fingerprint("beef"); },
       absl::StatusCode::kFailedPrecondition, "another model"},
      {[](auto* r) { r->set_model_fingerprint(""); },
       absl::StatusCode::kFailedPrecondition, "another model"},
      {[](auto* r) { r->set_version("2"); },
       absl::StatusCode::kFailedPrecondition, "version 2"},
  };
  int64_t id = 2;
  for (const Case& c : cases) {
    v1::WorkerMessage message = Register("b");
    c.change(message.mutable_register_());
    auto stream = Attach(id++, std::move(message));
    EXPECT_FALSE(stream->accepted);
    EXPECT_EQ(stream->broken.code(), c.code) << stream->broken;
    EXPECT_THAT(std::string(stream->broken.message()), HasSubstr(c.part));
  }
  Settle();
  EXPECT_THAT(members().detail(),
              HasSubstr("waiting for workers: 1 of 2 registered; worker 'b' "
                        "was refused: worker 'b' has version 2"));
  // The name is free again once its owner left.
  members().OnClosed(WorkerId(1), absl::UnavailableError("gone"));
  EXPECT_TRUE(Attach(id, "a")->accepted);
}

TEST_F(MembershipTest, WithoutAFingerprintTheFirstWorkersCounts) {
  Attach(1, "a");
  v1::WorkerMessage other = Register("b");
  other.mutable_register_()->set_model_fingerprint("beef");
  EXPECT_THAT(std::string(Attach(2, other)->broken.message()),
              HasSubstr("worker 'a'"));
}

TEST_F(MembershipTest, BreaksWorkersThatRegisterTwiceOrNotAtFirst) {
  auto a = Attach(1, "a");
  members().OnMessage(WorkerId(1), Register("a"));
  EXPECT_EQ(a->broken.code(), absl::StatusCode::kInvalidArgument);
  v1::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_EQ(Attach(2, heartbeat)->broken.code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MembershipTest, DropsWorkersThatFallSilent) {
  auto a = Attach(1, "a");
  auto b = Attach(2, "b");
  auto mute = std::make_shared<RecordingStream>();
  members().OnOpened(WorkerId(3), mute);  // never registers
  Settle();
  Ready(1);
  Ready(2);
  v1::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_busy_seconds(3);
  for (int i = 0; i < 12; ++i) {
    clock_.Advance(absl::Seconds(1));
    members().OnMessage(WorkerId(1), heartbeat);
    members().Advance();
  }
  EXPECT_TRUE(a->broken.ok());
  EXPECT_EQ(b->broken.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(mute->broken.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_EQ(members().detail(),
            "waiting for workers: 1 of 2 registered; worker 'b' was lost: no "
            "heartbeat for 10s");
}

TEST_F(MembershipTest, AStopOfThisProcessIsNotTheWorkersSilence) {
  auto a = Attach(1, "a");
  clock_.Advance(absl::Hours(3));
  members().Advance();
  EXPECT_TRUE(a->broken.ok());
}

TEST_F(MembershipTest, ComesBackWithTheSameStages) {
  Attach(1, "x");
  Attach(2, "b");
  Settle();
  // Stages go by name: b has stage 0, x stage 1.
  Ready(1);
  Ready(2);
  members().OnClosed(WorkerId(2), absl::UnavailableError("killed"));
  members().Advance();
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  auto c = Attach(3, "z");
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(2));
  EXPECT_EQ(c->sent[1].assign_stage().stage(), 0);
  // The old b comes back with a new stream; its layers are remembered.
  auto b = Attach(4, "b");
  members().OnClosed(WorkerId(3), absl::UnavailableError("killed"));
  Settle();
  EXPECT_EQ(b->sent[1].assign_stage().stage(), 0);
}

TEST_F(MembershipTest, GrowsWhenAWorkerJoinsAndRetiresSpares) {
  options_.min_workers = 1;
  options_.num_layers = 2;
  auto a = Attach(1, "a");
  Settle();
  Ready(1);
  auto b = Attach(2, "b");
  Settle();
  AnswerPreparation(1, *a);
  AnswerPreparation(2, *b);
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  Ready(1);
  Ready(2);
  ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  auto c = Attach(3, "c");
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_EQ(members().plan().epoch(), PlanEpoch(2));
  EXPECT_EQ(State(3), "WORKER_STATE_SPARE");
  // The spare takes over; a keeps its layer.
  members().OnClosed(WorkerId(2), absl::UnavailableError("killed"));
  Settle();
  EXPECT_EQ(c->sent.back().assign_stage().stage(), 1);
  EXPECT_EQ(a->sent.back().assign_stage().stage(), 0);
}

TEST_F(MembershipTest, RetiresAWorkerThatFailedToLoad) {
  options_.min_workers = 1;
  auto a = Attach(1, "a");
  auto b = Attach(2, "b");
  Settle();
  Failed(2, absl::StatusCode::kResourceExhausted, "needs 3 GB");
  EXPECT_EQ(State(2), "WORKER_STATE_FAILED");
  EXPECT_THAT(members().detail(), HasSubstr("needs 3 GB"));
  clock_.Advance(options_.timeouts.first_back_off);
  members().Advance();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(a->sent.back().assign_stage().num_stages(), 1);
  EXPECT_EQ(b->sent.back().retire().epoch(), 2);
}

TEST_F(MembershipTest, FailureTextsAreCutBetweenCharacters) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  absl::Duration wait = options_.timeouts.first_back_off;
  for (const std::string& text :
       {std::string(4095, 'x') + "\u00E9", std::string(4094, 'x') + "\u20AC",
        std::string(4093, 'x') + "\U0001F600",
        std::string("caf\xE9 is full")}) {
    ASSERT_EQ(members().plan().phase(), Phase::kLoading);
    Failed(1, absl::StatusCode::kResourceExhausted, text);
    EXPECT_THAT(members().detail(), HasSubstr(text.substr(0, 3)));
    EXPECT_FALSE(FindInvalidUtf8(members().detail())) << text.size();
    v1::ClusterState state;
    members().Describe(&state);
    for (const v1::WorkerInfo& info : state.workers()) {
      EXPECT_FALSE(FindInvalidUtf8(info.detail())) << text.size();
    }
    if (text.size() < 4000) break;
    clock_.Advance(wait);
    wait *= 2;
    members().Advance();
  }
  EXPECT_THAT(members().detail(), HasSubstr("caf\\xe9 is full"));
}

TEST_F(MembershipTest, BacksOffWhenAStageCannotLoad) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  for (const double seconds :
       {0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0}) {
    const absl::Duration wait = absl::Seconds(seconds);
    Failed(2, absl::StatusCode::kResourceExhausted, "needs 3 GB");
    EXPECT_EQ(members().detail(),
              "worker 'b' failed in stage 1 (layers 2 to 3): "
              "RESOURCE_EXHAUSTED: needs 3 GB");
    clock_.Advance(wait - absl::Milliseconds(1));
    v1::WorkerMessage heartbeat;
    heartbeat.mutable_heartbeat();
    members().OnMessage(WorkerId(1), heartbeat);
    members().OnMessage(WorkerId(2), heartbeat);
    members().Advance();
    EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
    EXPECT_THAT(members().detail(), HasSubstr("needs 3 GB"));
    clock_.Advance(absl::Milliseconds(1));
    members().Advance();
    EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  }
  // A new worker changes everything.
  Failed(2, absl::StatusCode::kResourceExhausted, "needs 3 GB");
  Attach(3, "c");
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
}

TEST_F(MembershipTest, ABrokenNeighbourIsNobodysFault) {
  options_.min_workers = 1;
  auto a = Attach(1, "a");
  Attach(2, "b");
  Settle();
  Ready(1);
  Ready(2);
  members().plan().OnProgress();
  Failed(1, absl::StatusCode::kUnavailable, "link broke");
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_EQ(State(1), "WORKER_STATE_SPARE");
  members().OnClosed(WorkerId(2), absl::UnavailableError("killed"));
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(a->sent.back().assign_stage().num_stages(), 1);
}

TEST_F(MembershipTest, IgnoresNewsOfOlderPlans) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  Failed(1, absl::StatusCode::kInternal, "x");
  clock_.Advance(absl::Seconds(1));
  members().Advance();
  ASSERT_EQ(members().plan().epoch(), PlanEpoch(2));
  Ready(1, 50, 16, /*epoch=*/1);
  Ready(2, 50, 16, /*epoch=*/1);
  Failed(1, absl::StatusCode::kInternal, "late", /*epoch=*/1);
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(State(1), "WORKER_STATE_LOADING");
}

TEST_F(MembershipTest, OneStageThatReservesPagesDecidesForAll) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  Ready(1, 50, 16, /*epoch=*/0, /*kv_by_need=*/false);
  Ready(2);
  ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_FALSE(members().plan().kv_by_need());
}

// What a sequence claims of a window's pages must be enough on each stage.
TEST_F(MembershipTest, TheTightestWindowDecidesForAll) {
  for (const int64_t id : {1, 2, 3}) Attach(id, std::string(1, 'a' + id));
  Settle();
  Ready(1, 50, 16, /*epoch=*/0, /*kv_by_need=*/true, {40, 4});
  Ready(2, 50, 16, /*epoch=*/0, /*kv_by_need=*/true, {30, 3});
  Ready(3);
  ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_EQ(members().plan().kv_window(), (WindowRoom{30, 4}));
}

TEST_F(MembershipTest, AWindowWithoutRoomForASequenceIsNoRoom) {
  Attach(1, "a");
  Settle();
  Ready(1, 50, 16, /*epoch=*/0, /*kv_by_need=*/true, {3, 4});
  EXPECT_NE(members().plan().phase(), Phase::kRunning);
}

TEST_F(MembershipTest, RefusesStagesThatDoNotGoTogether) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  Ready(1, 50, 16);
  Ready(2, 50, 32);
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_THAT(members().detail(), HasSubstr("KV pages of 32 tokens"));
  clock_.Advance(absl::Seconds(1));
  members().Advance();
  Ready(1, 0, 16);
  EXPECT_THAT(members().detail(), HasSubstr("no memory left for the KV cache"));
}

TEST_F(MembershipTest, DropsAWorkerThatDoesNotTakeMessages) {
  auto a = Attach(1, "a");
  Attach(2, "b");
  a->full = true;
  Settle();
  EXPECT_EQ(a->broken.code(), absl::StatusCode::kUnavailable);
  members().Advance();
  EXPECT_EQ(members().detail(),
            "waiting for workers: 1 of 2 registered; worker 'a' was lost: the "
            "worker does not take messages");
}

TEST_F(MembershipTest, CutsALastStageThatBreaksTheProtocol) {
  Attach(1, "a");
  auto b = Attach(2, "b");
  Settle();
  Ready(1);
  Ready(2);
  members().BreakLastStage(absl::InternalError("nonsense"));
  EXPECT_EQ(b->broken, absl::InternalError("nonsense"));
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  members().BreakLastStage(absl::InternalError("again"));  // no plan, no effect
}

}  // namespace
}  // namespace sluice
