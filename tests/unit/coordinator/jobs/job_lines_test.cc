// Lines of several requests: each ends by itself, and the line is answered
// once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_state.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::IsEmpty;

class JobLinesTest : public testing::Test, public TestJobs {
 protected:
  JobLinesTest() { EXPECT_TRUE(Open().ok()); }
  static std::string ErrorCode(const json& line) {
    return line["error"]["code"];
  }
};

TEST_F(JobLinesTest, ALineOfSeveralRequestsIsAnsweredOnceWhenAllHaveEnded) {
  auto job = Submit(R"({"prompt": ["a", "bc", [5]], "max_tokens": 3})"
                    "\n"
                    R"({"prompt": "d", "max_tokens": 2})");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->counts().total(), 2);
  auto lengths = manager->PendingLengths();
  EXPECT_EQ(lengths->requests(), 4);
  EXPECT_EQ(metrics.Value("sluice_num_requests_queued"), 2);
  auto taken = manager->TakeRequests(1);
  ASSERT_EQ(taken->size(), 3u);
  EXPECT_EQ(metrics.Value("sluice_num_requests_queued"), 1);
  // Some come back, to be handed out again.
  manager->GiveBack({(*taken)[0], (*taken)[2]});
  EXPECT_EQ(metrics.Value("sluice_num_requests_queued"), 2);
  auto again = manager->TakeRequests(9);
  ASSERT_EQ(again->size(), 3u);
  EXPECT_EQ((*again)[0].part, 0);
  EXPECT_EQ((*again)[1].part, 2);
  EXPECT_EQ(metrics.Value("sluice_num_requests_queued"), 0);
  manager->ReportProgress((*taken)[0].job, {.running = 4});
  EXPECT_EQ(Get(job->id()).counts().running(), 2);  // lines
  manager->Complete((*taken)[1], Answer((*taken)[1]));
  manager->Complete((*again)[1], Answer((*again)[1]));
  manager->Flush();
  EXPECT_EQ(Get(job->id()).counts().completed(), 0);
  manager->Complete((*again)[0], Answer((*again)[0]));
  manager->Flush();
  const v1::Job half = Get(job->id());
  EXPECT_EQ(half.counts().completed(), 1);
  EXPECT_EQ(half.prompt_tokens(), 2 + 3 + 1);
  manager->Complete((*again)[2], Answer((*again)[2]));
  const v1::Job end = WaitForEnd(job->id());
  EXPECT_EQ(end.counts().completed(), 2);
  EXPECT_EQ(end.processed_tokens(), end.expected_tokens());
  const json body = Results(job->id())[0]["response"]["body"];
  ASSERT_EQ(body["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(body["choices"][i]["index"], i);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
}

TEST_F(JobLinesTest, AnswersToAPromptAreRequestsThatOutliveARestart) {
  auto job = Submit(R"({"prompt": ["a", "bc"], "max_tokens": 3, "n": 2})");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(manager->PendingLengths()->requests(), 4);
  const auto before = manager->TakeRequests(1);
  Reopen();
  const auto taken = manager->TakeRequests(1);
  ASSERT_EQ(before->size(), 4u);
  ASSERT_EQ(taken->size(), 4u);
  int64_t generated = 0;
  for (size_t i = 0; i < 4; ++i) {
    const Request& request = (*taken)[i];
    EXPECT_EQ(request.prompt, (*before)[i].prompt);
    EXPECT_EQ(request.prompt, (*taken)[i / 2 * 2].prompt);
    EXPECT_EQ(request.sampling.seed, (*before)[i].sampling.seed);
    const Generation answer = Answer(request);
    generated += answer.generated;
    manager->Complete(request, answer);
  }
  const v1::Job end = WaitForEnd(job->id());
  EXPECT_EQ(end.counts().completed(), 1);
  EXPECT_EQ(end.prompt_tokens(), 2 + 3);
  EXPECT_EQ(end.generation_tokens(), generated);
}

TEST_F(JobLinesTest, ALineFailsWithTheFirstOfItsRequestsThatDoes) {
  auto job = Submit(R"({"prompt": ["a", "b", "c"], "max_tokens": 3})");
  auto taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 3u);
  manager->Complete((*taken)[2], {.status = absl::InternalError("worse")});
  manager->Complete((*taken)[0], Answer((*taken)[0]));
  manager->Complete((*taken)[1], {.status = absl::InternalError("bad")});
  EXPECT_EQ(WaitForEnd(job->id()).counts().failed(), 1);
  const json line = Results(job->id())[0];
  EXPECT_EQ(ErrorCode(line), "internal");
  EXPECT_EQ(line["error"]["param"], "prompt[1]");
  EXPECT_EQ(line["error"]["message"], "line 1: \"prompt[1]\": bad");
}

TEST_F(JobLinesTest, ACancelledLineOfSeveralRequestsHasOneResult) {
  auto job = Submit(R"({"prompt": ["a", "b"], "max_tokens": 3})");
  auto taken = manager->TakeRequests(9);
  manager->Complete((*taken)[0], Answer((*taken)[0]));
  ASSERT_TRUE(manager->CancelJob(job->id()).ok());
  EXPECT_EQ(WaitForEnd(job->id()).counts().cancelled(), 1);
  manager->Complete((*taken)[1], {.status = absl::CancelledError("")});
  manager->Flush();
  ASSERT_EQ(Results(job->id()).size(), 1u);
  EXPECT_EQ(ErrorCode(Results(job->id())[0]), "batch_cancelled");
}

// What waits for others of its line is held in memory, so no more lines are
// begun while that is a lot.
TEST_F(JobLinesTest, LinesThatAreHalfDoneHoldOthersBack) {
  std::atomic<int> called = 0;
  manager->SetListener({.on_work = [&] { ++called; }});
  auto job = Submit(R"({"prompt": ["a", "b"]})"
                    "\n"
                    R"({"prompt": "c"})");
  auto taken = manager->TakeRequests(1);
  ASSERT_EQ(taken->size(), 2u);
  Generation large = Answer((*taken)[0]);
  large.text = std::string(65 << 20, 'x');
  large.decode = false;
  manager->Complete((*taken)[0], large);
  EXPECT_THAT(*manager->TakeRequests(9), IsEmpty());
  // What was handed out before is not held back.
  manager->GiveBack({(*taken)[1]});
  ASSERT_EQ(manager->TakeRequests(9)->size(), 1u);
  const int before = called;
  manager->Complete((*taken)[1], Answer((*taken)[1]));
  EXPECT_EQ(called, before + 1);
  manager->Flush();
  taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_EQ((*taken)[0].index, 1);
}

// They end before other jobs' requests are read, even those of a paused job:
// otherwise nothing would ever be.
TEST_F(JobLinesTest, HalfDoneLinesOfOtherJobsAreHandedOutFirst) {
  auto first = Submit(R"({"prompt": ["a", "b"]})");
  auto taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 2u);
  Generation large = Answer((*taken)[0]);
  large.text = std::string(65 << 20, 'x');
  large.decode = false;
  manager->Complete((*taken)[0], large);
  ASSERT_TRUE(manager->PauseJob(first->id()).ok());
  manager->GiveBack({(*taken)[1]});
  v1::JobSpec urgent;
  urgent.set_priority(9);
  auto second = Submit(R"({"prompt": "c"})", urgent);
  auto parts = manager->TakeRequests(9);
  ASSERT_EQ(parts->size(), 1u);
  EXPECT_EQ(FormatJobId((*parts)[0].job), first->id());
  EXPECT_EQ((*parts)[0].part, 1);
  EXPECT_THAT(*manager->TakeRequests(9), IsEmpty());
  manager->Complete((*parts)[0], Answer((*parts)[0]));
  parts = manager->TakeRequests(9);
  ASSERT_EQ(parts->size(), 1u);
  EXPECT_EQ(FormatJobId((*parts)[0].job), second->id());
}

TEST_F(JobLinesTest, WhatEndsAfterItsJobHoldsNothingBack) {
  std::atomic<int> called = 0;
  auto job = Submit(R"({"prompt": ["a", "b", "c"]})");
  auto taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 3u);
  Generation large = Answer((*taken)[0]);
  large.text = std::string(65 << 20, 'x');
  large.decode = false;
  manager->Complete((*taken)[0], large);
  EXPECT_THAT(*manager->TakeRequests(9), IsEmpty());
  ASSERT_TRUE(Submit(R"({"prompt": "d"})").ok());
  EXPECT_THAT(*manager->TakeRequests(9), IsEmpty());
  manager->SetListener({.on_work = [&] { ++called; }});
  ASSERT_TRUE(manager->CancelJob(job->id()).ok());
  WaitForEnd(job->id());
  while (called == 0) absl::SleepFor(absl::Milliseconds(1));
  manager->Complete((*taken)[1], large);  // it was under way
  EXPECT_EQ(manager->TakeRequests(9)->size(), 1u);
}

TEST_F(JobLinesTest, EmbeddingsFromSubmissionToTheirResults) {
  auto job =
      Submit(R"({"custom_id":"e","method":"POST","url":"/v1/embeddings",)"
             R"("body":{"input":["ab","c"],"dimensions":2}})");
  auto taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 2u);
  EXPECT_TRUE((*taken)[1].pools());
  Generation generation;
  generation.pooled = {3, 4, 100};
  manager->Complete((*taken)[0], generation);
  generation.pooled = {0, -2, 100};
  manager->Complete((*taken)[1], generation);
  const v1::Job end = WaitForEnd(job->id());
  EXPECT_EQ(end.counts().completed(), 1);
  EXPECT_EQ(end.processed_tokens(), end.expected_tokens());
  const json body = Results(job->id())[0]["response"]["body"];
  EXPECT_EQ(body["data"][0]["embedding"], json({0.6, 0.8}));
  EXPECT_EQ(body["data"][1]["embedding"], json({0, -1}));
}

}  // namespace
}  // namespace sluice
