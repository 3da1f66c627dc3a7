#include "server/cli/jobs/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::Job MakeJob(int64_t total, int64_t completed, int64_t processed,
                int64_t expected) {
  v1::Job job;
  job.set_id("job_1");
  job.mutable_counts()->set_total(total);
  job.mutable_counts()->set_completed(completed);
  job.set_processed_tokens(processed);
  job.set_expected_tokens(expected);
  return job;
}

TEST(ProgressTest, GoesByTokens) {
  EXPECT_DOUBLE_EQ(ProgressShare(MakeJob(10, 0, 250, 1000)), 0.25);
  // A job without its last token has not ended.
  EXPECT_DOUBLE_EQ(ProgressShare(MakeJob(10, 9, 1000, 1000)), 0.99);
  EXPECT_DOUBLE_EQ(ProgressShare(MakeJob(10, 10, 1000, 1000)), 1);
  // A job with unknown tokens shows its requests.
  EXPECT_DOUBLE_EQ(ProgressShare(MakeJob(10, 4, 0, 0)), 0.4);
  EXPECT_DOUBLE_EQ(ProgressShare(MakeJob(0, 0, 0, 0)), 0);
}

TEST(ProgressTest, EstimatesTheEndWhileNoRequestHasEnded) {
  EtaEstimator eta;
  EXPECT_LT(eta.Update(MakeJob(60, 0, 0, 1000), absl::Seconds(10)),
            absl::ZeroDuration());
  EXPECT_EQ(eta.Update(MakeJob(60, 0, 200, 1000), absl::Seconds(14)),
            absl::Seconds(16));
  EXPECT_EQ(eta.Update(MakeJob(60, 0, 400, 1000), absl::Seconds(18)),
            absl::Seconds(12));
}

TEST(ProgressTest, TheReasonOutlivesTheBar) {
  v1::Job job = MakeJob(3, 0, 10, 100);
  const std::string wide = FormatProgress(job, absl::Seconds(7), 200);
  EXPECT_EQ(wide,
            "job_1 [##----------------------]  10 %  0/3 requests  ETA 0:07");
  job.set_detail("waiting for workers: 1 of 2 registered");
  EXPECT_THAT(FormatProgress(job, absl::Seconds(-1), 200), HasSubstr("[##--"));
  for (const size_t width : {80, 60, 53}) {
    const std::string line = FormatProgress(job, absl::Seconds(-1), width);
    EXPECT_LE(line.size(), width);
    EXPECT_THAT(line, HasSubstr("(waiting for workers: 1 of 2 registered)"));
    EXPECT_THAT(line, Not(HasSubstr("#")));
  }
}

TEST(ProgressTest, WhatWasCancelledDidNotFail) {
  v1::Job job;
  job.set_id("job_1");
  job.mutable_counts()->set_total(10);
  job.mutable_counts()->set_failed(6);
  job.mutable_counts()->set_cancelled(6);
  const std::string line = FormatProgress(job, absl::Seconds(-1), 200);
  EXPECT_NE(line.find(", 6 cancelled"), std::string::npos) << line;
  EXPECT_EQ(line.find("failed"), std::string::npos) << line;
}

TEST(ProgressTest, SlowModelsHaveARateToo) {
  v1::Job job = MakeJob(3, 0, 10, 100);
  job.set_generation_tokens_per_second(0.375);
  EXPECT_THAT(FormatProgress(job, absl::Seconds(7), 200),
              HasSubstr("  0.38 tok/s"));
  job.set_generation_tokens_per_second(1234.5);
  EXPECT_THAT(FormatProgress(job, absl::Seconds(7), 200),
              HasSubstr("  1234 tok/s"));
}

}  // namespace
}  // namespace sluice
