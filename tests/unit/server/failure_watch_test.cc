#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/cli/jobs/follow.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class FailureWatchTest : public testing::Test {
 protected:
  FailureWatchTest() {
    AddReason("load");
    step_ = AddReason("step");
    cluster_.set_epoch(1);
    EXPECT_TRUE(Update());
  }
  v1::PlanFailures* AddReason(const char* name) {
    v1::PlanFailures* reason = cluster_.add_plan_failures();
    reason->set_reason(name);
    reason->set_count(2);  // before the job began
    return reason;
  }
  bool Update() { return watch_.Update(job_, cluster_); }
  // A plan fails, and another one begins.
  bool Fail(const char* why) {
    step_->set_count(step_->count() + 1);
    cluster_.set_epoch(cluster_.epoch() + 1);
    job_.set_detail(why);
    const bool goes_on = Update();
    job_.set_detail("");
    return goes_on && Update();
  }

  v1::Job job_;
  v1::ClusterState cluster_;
  v1::PlanFailures* step_;
  FailureWatch watch_;
};

TEST_F(FailureWatchTest, ThreeFailuresInARowEndTheRunWithTheirReason) {
  EXPECT_TRUE(Fail("worker 'a' failed in stage 0: first"));
  EXPECT_TRUE(Fail("worker 'a' failed in stage 0: second"));
  EXPECT_TRUE(watch_.status().ok());
  // Failures of any kind count.
  cluster_.mutable_plan_failures(0)->set_count(3);
  EXPECT_FALSE(Update());
  EXPECT_TRUE(absl::IsFailedPrecondition(watch_.status()));
  EXPECT_THAT(std::string(watch_.status().message()),
              HasSubstr("3 failures in a row: worker 'a' failed in stage 0: "
                        "second"));
}

TEST_F(FailureWatchTest, AFailureOfAnotherKindIsSaidToo) {
  EXPECT_TRUE(Fail("no memory"));
  EXPECT_TRUE(Fail("no memory"));
  EXPECT_FALSE(Fail("no memory"));
  EXPECT_THAT(std::string(watch_.status().message()), HasSubstr("no memory"));
}

TEST_F(FailureWatchTest, PlansThatFollowOneAnotherAreNoFailures) {
  for (int64_t epoch = 2; epoch < 20; ++epoch) {
    cluster_.set_epoch(epoch);
    EXPECT_TRUE(Update()) << epoch;
  }
  EXPECT_TRUE(watch_.status().ok());
}

TEST_F(FailureWatchTest, FailuresAreNotInARowWhereARequestEndedBetween) {
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE(Fail("worker 'a' failed in stage 0: now and then")) << i;
    if (i % 2 == 0) continue;
    job_.mutable_counts()->set_completed(job_.counts().completed() + 1);
    ASSERT_TRUE(Update()) << i;
  }
}

TEST_F(FailureWatchTest, ATokenFromEachPlanThatFailsDoesNotKeepTheRunGoing) {
  // On a full disk, the first step after a replay may still have room.
  const char* why = "worker 'a' failed in stage 0: No space left on device";
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(Fail(why));
    job_.set_generated_so_far(job_.generated_so_far() + 4);
    EXPECT_TRUE(Update());
  }
  EXPECT_FALSE(Fail(why));
  EXPECT_THAT(std::string(watch_.status().message()), HasSubstr(why));
}

}  // namespace
}  // namespace sluice
