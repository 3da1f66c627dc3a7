#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job_manager.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

// Tests of a JobManager on state directories in all states.

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class JobStateTest : public testing::Test, public TestJobs {
 protected:
  JobStateTest() { EXPECT_TRUE(Open().ok()); }
};

TEST_F(JobStateTest, OneCoordinatorToAStateDirectory) {
  TestMetrics other_metrics;
  JobManager::Options other = options;
  other.metrics = &other_metrics;
  const absl::Status status = JobManager::Create(other).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("in use by another coordinator"));
}

TEST_F(JobStateTest, ADamagedStoreIsAClearError) {
  Close();
  std::ofstream(options.state_dir / "sluice.db", std::ios::trunc)
      << std::string(5000, '?');
  const absl::Status status = Open();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("sluice.db"));
}

TEST_F(JobStateTest, AFullDiskHoldsResultsBackAndLosesNone) {
  const std::string id = Submit(Prompts(50))->id();
  auto requests = manager->TakeRequests(50);
  ASSERT_EQ(requests->size(), 50u);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit full = before;
  full.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &full);
  for (const Request& request : *requests) {
    Generation generation = Answer(request);
    generation.text = std::string(100'000, 'x');
    manager->Complete(request, std::move(generation));
  }
  const v1::Job stuck =
      WaitFor(id, [](const v1::Job& job) { return !job.detail().empty(); });
  EXPECT_THAT(stuck.detail(), HasSubstr("results cannot be stored"));
  EXPECT_THAT(stuck.detail(), HasSubstr("no space left"));
  EXPECT_EQ(stuck.state(), v1::JOB_STATE_FINALIZING);
  EXPECT_EQ(stuck.counts().completed(), 0);
  // Uploads are refused, and leave nothing behind.
  const absl::Status upload = Submit(Prompts(20'000)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(upload)) << upload;
  setrlimit(RLIMIT_FSIZE, &before);
  const v1::Job job = WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job.counts().completed(), 50);
  EXPECT_EQ(Results(id).size(), 50u);
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 1);
  EXPECT_TRUE(Submit(Prompts(1)).ok());
}

TEST_F(JobStateTest, NoResultIsStoredBeforeWhatItsJobBeganWith) {
  const std::string id = Submit(Prompts(1))->id();
  // Nothing can be renamed to a folder that holds something.
  const fs::path in_the_way = options.state_dir / "model";
  fs::create_directories(in_the_way / "x");
  ModelContent model;
  model.files = {{"model.safetensors", 7, "0123"}};
  manager->ReportModel(model);
  AnswerAll();
  const v1::Job waits = WaitFor(id, [](const v1::Job& job) {
    return absl::StrContains(job.detail(), "which weights jobs began with");
  });
  EXPECT_EQ(waits.counts().completed(), 0);
  fs::remove_all(in_the_way);
  EXPECT_EQ(WaitForEnd(id).counts().completed(), 1);
  EXPECT_EQ(manager->ReportedModel().files.size(), 1u);
}

}  // namespace
}  // namespace sluice
