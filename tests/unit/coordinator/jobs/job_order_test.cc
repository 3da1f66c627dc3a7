// Which request is handed out next: priorities, pauses, and what is given back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_state.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using testing::ElementsAre;

class JobOrderTest : public testing::Test, public TestJobs {
 protected:
  JobOrderTest() { EXPECT_TRUE(Open().ok()); }
};

TEST_F(JobOrderTest, PriorityThenAgeThenOrder) {
  v1::JobSpec low, high;
  low.set_priority(-5);
  high.set_priority(7);
  const std::string c = Submit(Prompts(2), low)->id();
  const std::string a1 = Submit(Prompts(2))->id();
  const std::string a2 = Submit(Prompts(2))->id();
  const std::string h = Submit(Prompts(2), high)->id();
  std::vector<std::string> order;
  while (true) {
    auto requests = manager->TakeRequests(3);
    if (requests->empty()) break;
    for (const Request& request : *requests) {
      order.push_back(
          absl::StrCat("job_", request.job.value(), "/", request.index));
    }
  }
  EXPECT_THAT(order, ElementsAre(h + "/0", h + "/1", a1 + "/0", a1 + "/1",
                                 a2 + "/0", a2 + "/1", c + "/0", c + "/1"));
}

TEST_F(JobOrderTest, APausedJobGivesNothingOutUntilItIsResumed) {
  const std::string paused = Submit(Prompts(3))->id();
  const std::string other = Submit(Prompts(1))->id();
  int reordered = 0;
  manager->SetListener({.on_order = [&] { ++reordered; }});
  auto taken = manager->TakeRequests(2);
  ASSERT_EQ(taken->size(), 2u);
  auto job = manager->PauseJob(paused);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->paused());
  EXPECT_EQ(job->detail(), "paused");
  EXPECT_EQ(reordered, 1);
  manager->GiveBack(*std::move(taken));
  taken = manager->TakeRequests(10);
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_EQ(FormatJobId((*taken)[0].job), other);
  EXPECT_EQ(manager->PendingLengths()->requests(), 1);
  Reopen();
  EXPECT_TRUE(manager->GetJob(paused)->paused());
  EXPECT_EQ(manager->TakeRequests(10)->size(), 1u);  // the other's
  ASSERT_TRUE(manager->ResumeJob(paused).ok());
  taken = manager->TakeRequests(10);
  ASSERT_EQ(taken->size(), 3u);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ((*taken)[i].index, i);
}

TEST_F(JobOrderTest, WhatIsGivenBackIsHandedOutOnceInOrder) {
  const std::string id = Submit(Prompts(6))->id();
  auto taken = manager->TakeRequests(4);
  ASSERT_EQ(taken->size(), 4u);
  manager->Complete((*taken)[1], Answer((*taken)[1]));
  std::vector<Request> back;
  for (const int i : {3, 0}) back.push_back((*taken)[i]);
  manager->GiveBack(std::move(back));
  std::vector<int64_t> order;
  while (true) {
    auto next = manager->TakeRequests(1);
    if (next->empty()) break;
    order.push_back((*next)[0].index);
  }
  EXPECT_THAT(order, ElementsAre(0, 3, 4, 5));
  // Those of a job that ends meanwhile are forgotten.
  ASSERT_TRUE(manager->CancelJob(id).ok());
  manager->GiveBack({(*taken)[2]});
  EXPECT_TRUE(manager->TakeRequests(10)->empty());
}

TEST_F(JobOrderTest, AJobMovesInPriority) {
  const std::string first = Submit(Prompts(2))->id();
  const std::string second = Submit(Prompts(2))->id();
  auto taken = manager->TakeRequests(1);
  ASSERT_EQ(manager->SetJobPriority(second, 3)->priority(), 3);
  manager->GiveBack(*std::move(taken));
  taken = manager->TakeRequests(10);
  std::vector<std::string> order;
  for (const Request& request : *taken) {
    order.push_back(FormatJobId(request.job) + "/" +
                    absl::StrCat(request.index));
  }
  EXPECT_THAT(order, ElementsAre(second + "/0", second + "/1", first + "/0",
                                 first + "/1"));
  EXPECT_EQ((*taken)[0].priority, 3);
  EXPECT_EQ((*taken)[2].priority, 0);  // it was handed out before
  manager->GiveBack(*std::move(taken));
  Reopen();
  EXPECT_EQ(manager->GetJob(second)->priority(), 3);
  EXPECT_EQ(FormatJobId((*manager->TakeRequests(1))[0].job), second);
  v1::JobSpec urgent;
  urgent.set_priority(9);
  int reordered = 0;
  manager->SetListener({.on_order = [&] { ++reordered; }});
  ASSERT_TRUE(Submit(Prompts(1), urgent).ok());
  EXPECT_EQ(reordered, 1);  // it goes before what was taken
  ASSERT_TRUE(Submit(Prompts(1)).ok());
  EXPECT_EQ(reordered, 1);
}

TEST_F(JobOrderTest, AJobThatEndedIsNotPaused) {
  const std::string id = Submit(Prompts(1))->id();
  ASSERT_TRUE(manager->CancelJob(id).ok());
  for (const auto& status :
       {manager->PauseJob(id).status(), manager->ResumeJob(id).status(),
        manager->SetJobPriority(id, 1).status()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  }
  EXPECT_TRUE(absl::IsNotFound(manager->PauseJob("job_99").status()));
}

}  // namespace
}  // namespace sluice
