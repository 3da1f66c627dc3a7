// Tests of workers whose heartbeats come, but that make no progress.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Phase = Membership::Phase;

constexpr auto kLoading = v1::Activity::KIND_LOADING;
constexpr auto kConnecting = v1::Activity::KIND_CONNECTING;
constexpr auto kComputing = v1::Activity::KIND_COMPUTING;
constexpr auto kWaiting = v1::Activity::KIND_WAITING;
constexpr auto kBlocked = v1::Activity::KIND_BLOCKED;

struct Report {
  v1::Activity::Kind kind = kWaiting;
  uint64_t marks = 0;
  int64_t step_out = 0;
};

class MembershipStallTest : public MembershipTest {
 protected:
  void SetUp() override {
    options_.timeouts.stall_timeout = absl::Seconds(30);
    for (int64_t id : {1, 2, 3}) {
      streams_[id] =
          Attach(id, std::string(1, static_cast<char>('a' + id - 1)));
    }
    Settle();
  }

  // Lets seconds pass with the same heartbeats of each worker; `steps` is the
  // step in flight.
  void Pass(int seconds, std::map<int64_t, Report> reports,
            std::optional<int64_t> step = std::nullopt) {
    for (int i = 0; i < seconds; ++i) {
      clock_.Advance(absl::Seconds(1));
      for (const auto& [id, report] : reports) {
        Beat(id, report.kind, report.marks, report.step_out);
      }
      members().plan().OnSteps(step);
      members().Advance();
    }
  }

  void Run() {
    for (int64_t id : {1, 2, 3}) Ready(id);
    ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  }

  std::string Broken(int64_t id) {
    return std::string(streams_[id]->broken.message());
  }

  std::map<int64_t, std::shared_ptr<RecordingStream>> streams_;
};

TEST_F(MembershipStallTest, AFrozenStageIsNamedAndReplaced) {
  Run();
  const std::map<int64_t, Report> frozen = {{1, {kBlocked, 100, 9}},
                                            {2, {kComputing, 70, 6}},
                                            {3, {kWaiting, 60, 6}}};
  Pass(30, frozen, 7);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  Pass(2, frozen, 7);
  EXPECT_THAT(
      Broken(2),
      HasSubstr("worker 'b' stands still with layers 2 to 2: computing, "
                "and nothing got done for 31s while step 7 waits"));
  EXPECT_TRUE(streams_[1]->broken.ok());
  EXPECT_TRUE(streams_[3]->broken.ok());
  Settle();
  // The others get a new plan.
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(streams_[1]->sent.back().assign_stage().num_stages(), 2);
  Ready(1);
  Ready(3);
  // It attaches again, as the rest of its process works.
  streams_[2] = Attach(4, "b");
  Settle();
  EXPECT_EQ(State(4), "WORKER_STATE_LEFT_OUT");
  EXPECT_THAT(members().detail(), HasSubstr("stands still"));
  v1::ClusterState state;
  members().Describe(&state);
  ASSERT_EQ(state.plan_failures_size(), 1);
  EXPECT_EQ(state.plan_failures(0).reason(), "stall");
  // It is tried again and still makes no progress; the plan is undisturbed.
  for (int i = 0; i < 50; ++i) {
    Pass(1, {{1, {}}, {3, {}}, {4, {kLoading, 0, 0}}});
    EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  }
  EXPECT_EQ(State(4), "WORKER_STATE_LEFT_OUT");
}

TEST_F(MembershipStallTest, AStepOfHoursIsNoStandstill) {
  Run();
  for (uint64_t i = 0; i < 3 * 3600 / 20; ++i) {
    Pass(20, {{1, {}}, {2, {kComputing, i, 0}}, {3, {}}}, 7);
    ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  }
}

TEST_F(MembershipStallTest, WhatTookLongBeforeMayTakeLonger) {
  Run();
  Pass(20, {{1, {kWaiting, 9, 9}}, {2, {kComputing, 1, 0}}, {3, {}}}, 7);
  Pass(150, {{1, {kWaiting, 9, 9}}, {2, {kComputing, 2, 0}}, {3, {}}}, 7);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  Pass(60, {{1, {kWaiting, 9, 9}}, {2, {kComputing, 2, 0}}, {3, {}}}, 7);
  EXPECT_THAT(Broken(2), HasSubstr("stands still"));
}

TEST_F(MembershipStallTest, WithoutAStepNobodyIsLate) {
  Run();
  Pass(3600, {{1, {}}, {2, {}}, {3, {}}});
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  // The idle time is not counted when a step comes, either.
  Pass(30, {{1, {}}, {2, {}}, {3, {}}}, 1);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
}

TEST_F(MembershipStallTest, OneThatOnlySendsHeartbeatsIsFoundByElimination) {
  Run();
  // b takes nothing, and does not report its activity.
  Pass(32,
       {{1, {kBlocked, 5, 0}}, {2, {v1::Activity::KIND_NONE, 0, 0}}, {3, {}}},
       1);
  EXPECT_THAT(Broken(2), HasSubstr("stands still"));
}

TEST_F(MembershipStallTest, ResultsAreProgress) {
  Run();
  v1::WorkerMessage result;
  result.mutable_step_result()->set_epoch(members().plan().epoch().value());
  result.mutable_step_result()->set_more(true);
  for (int i = 0; i < 10; ++i) {
    Pass(20, {{1, {}}, {2, {}}, {3, {}}}, 1);
    members().OnMessage(WorkerId(3), result);
  }
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
}

TEST_F(MembershipStallTest, AStopOfThisProcessIsNoStandstill) {
  Run();
  Pass(20, {{1, {}}, {2, {kComputing, 1, 0}}, {3, {}}}, 7);
  clock_.Advance(absl::Hours(8));
  members().plan().OnSteps(7);
  members().Advance();
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  Pass(2, {{1, {}}, {2, {kComputing, 2, 0}}, {3, {}}}, 7);
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
}

TEST_F(MembershipStallTest, AStalledLoaderIsReplaced) {
  Ready(1);
  Ready(3);
  // As long as bytes are loaded, it is not stalled.
  v1::WorkerMessage progress;
  progress.mutable_load_progress()->set_epoch(1);
  progress.mutable_load_progress()->set_bytes_total(1000);
  for (int i = 0; i < 10; ++i) {
    progress.mutable_load_progress()->set_bytes_done(i);
    members().OnMessage(WorkerId(2), progress);
    Pass(20, {{1, {}}, {2, {kLoading, 0, 0}}, {3, {}}});
    ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  }
  Pass(180, {{1, {}}, {2, {kLoading, 0, 0}}, {3, {}}});
  EXPECT_THAT(Broken(2), HasSubstr("'b' stands still with layers 2 to 2: "
                                   "loading, and nothing got done for"));
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(streams_[3]->sent.back().assign_stage().num_stages(), 2);
}

TEST_F(MembershipStallTest, MemoryTakesItsTime) {
  // 100 GiB must be filled before it reports anything.
  options_.min_workers = 1;
  members_.emplace(options_);
  v1::WorkerMessage large = Register("d");
  large.mutable_register_()->set_host_memory_bytes(uint64_t{100} << 30);
  streams_[4] = Attach(4, std::move(large));
  Settle();
  const std::map<int64_t, Report> reports = {{4, {kLoading, 1, 0}}};
  Pass(100, reports);
  EXPECT_TRUE(streams_[4]->broken.ok());
  Pass(3, reports);
  EXPECT_THAT(Broken(4), HasSubstr("stands still"));
}

TEST_F(MembershipStallTest, OpeningALinkHasItsOwnTime) {
  options_.timeouts.stall_timeout = absl::Seconds(5);
  members_.emplace(options_);
  for (int64_t id : {1, 2}) {
    streams_[id] = Attach(id, std::string(1, static_cast<char>('a' + id - 1)));
  }
  Settle();
  Ready(2);
  Pass(25, {{1, {kConnecting, 1, 0}}, {2, {}}});
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  Pass(7, {{1, {kConnecting, 1, 0}}, {2, {}}});
  EXPECT_THAT(Broken(1), HasSubstr("opening its link"));
}

}  // namespace
}  // namespace sluice
