// What metrics tell of jobs that have not ended.

#include "coordinator/jobs/live_jobs.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/manual_clock.h"
#include "tests/support/test_metrics.h"

namespace sluice {
namespace {

class LiveJobsTest : public testing::Test {
 protected:
  static JobRecord Running(int id) {
    JobRecord job;
    job.id = JobId(id);
    job.model = "m";
    job.state = v1::JOB_STATE_IN_PROGRESS;
    job.total = 10;
    job.wanted_prompt_tokens = 1000;
    job.wanted_max_tokens = 500;
    return job;
  }

  double Value(const std::string& what, int id) const {
    return metrics_.Value(
        absl::StrCat("sluice_job_", what, "{id=job_", id, "}"));
  }

  ManualClock clock_;
  TestMetrics metrics_;
  JobMetrics job_metrics_{&metrics_};
  LiveJobs live_{"m", 16, &clock_, &job_metrics_};
};

TEST_F(LiveJobsTest, MetricsTellHowFarAJobIsUntilItEnds) {
  JobRecord job = Running(7);
  live_.Add(job);
  live_.Sample();
  EXPECT_EQ(Value("processed_tokens", 7), 0);
  EXPECT_EQ(Value("expected_tokens", 7), 1500);
  EXPECT_EQ(Value("remaining_seconds", 7), -1);  // no pace is known yet

  // 100 tokens a second.
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(2));
    live_.AddProgress(job.id, {1, 0, 200});
    live_.Sample();
  }
  EXPECT_EQ(Value("processed_tokens", 7), 600);
  EXPECT_EQ(Value("expected_tokens", 7), 1500);
  EXPECT_NEAR(Value("remaining_seconds", 7), 9, 0.01);

  job.paused = true;  // nobody knows when it will go on
  live_.Update(job);
  live_.Sample();
  EXPECT_EQ(Value("processed_tokens", 7), 600);
  EXPECT_EQ(Value("remaining_seconds", 7), -1);

  job.state = v1::JOB_STATE_COMPLETED;
  live_.Update(job);
  for (const char* what :
       {"processed_tokens", "expected_tokens", "remaining_seconds"}) {
    EXPECT_EQ(Value(what, 7), -1) << what;
  }
  live_.Sample();
  EXPECT_EQ(Value("processed_tokens", 7), -1);
}

TEST_F(LiveJobsTest, AJobThatIsBeingCancelledIsNotInProgress) {
  JobRecord job = Running(1);
  live_.Add(job);
  live_.Sample();
  EXPECT_EQ(Value("processed_tokens", 1), 0);
  job.state = v1::JOB_STATE_CANCELLING;
  live_.Update(job);
  EXPECT_EQ(Value("processed_tokens", 1), -1);
  live_.Sample();
  EXPECT_EQ(Value("processed_tokens", 1), -1);
}

TEST_F(LiveJobsTest, MetricsTellOfTheJobsThatGoFirst) {
  const int count = static_cast<int>(LiveJobs::kMaxJobsInMetrics);
  for (int id = 1; id <= count + 50; ++id) live_.Add(Running(id));
  JobRecord urgent = Running(count + 51);
  urgent.priority = 5;
  live_.Add(urgent);
  live_.Sample();
  EXPECT_EQ(Value("processed_tokens", count + 51), 0);
  EXPECT_EQ(Value("processed_tokens", 1), 0);
  EXPECT_EQ(Value("processed_tokens", count - 1), 0);
  EXPECT_EQ(Value("processed_tokens", count), -1);

  urgent.state = v1::JOB_STATE_COMPLETED;
  live_.Update(urgent);
  live_.Sample();
  EXPECT_EQ(Value("processed_tokens", count), 0);
}

}  // namespace
}  // namespace sluice
