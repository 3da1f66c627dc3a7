// The course of a job and of the queue, kept in memory of a fixed size.

#include "coordinator/jobs/job_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job_manager.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000;

TEST(JobHistoryTest, ALongJobIsKeptInAsMuchMemoryAsAShortOne) {
  JobHistory history;
  const int64_t days = 7;
  for (int64_t s = 0; s < days * 86400; s += 2) {
    history.Add({.time_us = s * kSecond, .generation_tokens = s * 10});
  }
  const auto& samples = history.samples();
  EXPECT_LE(samples.size(), JobHistory::kMaxSamples);
  EXPECT_GE(samples.size(), JobHistory::kMaxSamples / 4);
  EXPECT_EQ(samples.front().time_us, 0);
  EXPECT_GE(samples.back().time_us, (days * 86400 - 7200) * kSecond);
  for (size_t i = 1; i < samples.size(); ++i) {
    EXPECT_GT(samples[i].time_us, samples[i - 1].time_us);
  }
}

TEST(JobHistoryTest, ALevelStretchTakesTwoSamples) {
  JobHistory history;
  for (int64_t s = 0; s < 100; ++s) history.Add({.time_us = s * kSecond});
  ASSERT_EQ(history.samples().size(), 2u);
  EXPECT_EQ(history.samples()[1].time_us, 99 * kSecond);
}

TEST(JobHistoryTest, SamplesTooNearAreLeftOutUnlessTheyAreDue) {
  JobHistory history;
  history.Add({.time_us = 0});
  history.Add({.time_us = 1000, .running = 1});
  EXPECT_EQ(history.samples().size(), 1u);
  history.Add({.time_us = 2000, .running = 1}, /*due=*/true);
  EXPECT_EQ(history.samples().size(), 2u);
  // The wall clock was set back.
  history.Add({.time_us = -5000, .running = 2}, /*due=*/true);
  EXPECT_EQ(history.samples().back().time_us, 2000);
}

TEST(JobHistoryTest, TheFirstEventAndTheLastOnesAreKept) {
  JobHistory history;
  for (int i = 0; i < 1000; ++i) {
    history.AddEvent(i, "priority", absl::StrCat(i));
  }
  EXPECT_EQ(history.events().size(), JobHistory::kMaxEvents);
  EXPECT_EQ(history.events().front().text, "0");
  EXPECT_EQ(history.events().back().text, "999");
}

TEST(JobHistoryTest, ReplaysOfAFewSecondsAreOneEvent) {
  JobHistory history;
  history.AddReplays(0, 1);
  history.AddReplays(kSecond, 4);
  history.AddReplays(60 * kSecond, 1);
  ASSERT_EQ(history.events().size(), 2u);
  EXPECT_EQ(history.events()[0].text, "5 requests are computed again");
  EXPECT_EQ(history.events()[1].text, "1 request is computed again");
}

TEST(JobHistoryTest, ThePaceIsOfTheLastHalfMinute) {
  JobHistory history;
  EXPECT_EQ(history.PaceAt(0).tokens_per_second, 0);
  for (int64_t s = 0; s <= 200; ++s) {
    history.Add({.time_us = s * kSecond,
                 .prompt_tokens = s,
                 .generation_tokens = s < 100 ? s * 100 : 10000 + s * 2});
  }
  const auto pace = history.PaceAt(200 * kSecond);
  EXPECT_NEAR(pace.generation_tokens_per_second, 2, 0.1);
  EXPECT_NEAR(pace.tokens_per_second, 3, 0.1);
  // Nothing comes any more.
  EXPECT_LT(history.PaceAt(2000 * kSecond).tokens_per_second, 0.1);
}

TEST(QueueHistoryTest, WhatGoesOnTakesThePlaceOfWhatItGoesOnFrom) {
  QueueHistory history;
  history.AddDetail(1, "loading layers: 0 %");
  history.AddDetail(2, "loading layers: 50 %");
  history.AddDetail(3, "");
  ASSERT_EQ(history.events().size(), 2u);
  EXPECT_EQ(history.events()[0].text, "loading layers: 50 %");
  EXPECT_EQ(history.events()[1].kind, "ready");
}

TEST(QueueHistoryTest, TheOldestSamplesGo) {
  QueueHistory history;
  for (int64_t i = 1; i <= 1000; ++i) history.Add({.time_us = i});
  EXPECT_EQ(history.samples(0).size(), QueueHistory::kMaxSamples);
  ASSERT_EQ(history.samples(998).size(), 2u);
  EXPECT_EQ(history.samples(998)[0].time_us, 999);
}

class JobCourseTest : public testing::Test, public TestJobs {
 protected:
  JobCourseTest() { EXPECT_TRUE(Open().ok()); }

  std::vector<std::string> Kinds(const std::string& id) {
    std::vector<std::string> kinds;
    const auto history = manager->History(id);
    EXPECT_TRUE(history.ok()) << history.status();
    for (const JobEvent& event : history->events()) {
      kinds.push_back(event.kind);
    }
    return kinds;
  }
};

TEST_F(JobCourseTest, WhatHappensToAJobIsToldAlsoAfterItsEnd) {
  const std::string id = Submit(Prompts(2))->id();
  ASSERT_TRUE(manager->PauseJob(id).ok());
  ASSERT_TRUE(manager->ResumeJob(id).ok());
  ASSERT_TRUE(manager->SetJobPriority(id, 3).ok());
  EXPECT_EQ(AnswerAll(), 2);
  WaitForEnd(id);
  EXPECT_THAT(Kinds(id), ElementsAre("accepted", "paused", "resumed",
                                     "priority", "ended"));
  const auto history = manager->History(id);
  EXPECT_THAT(history->events().back().text, HasSubstr("2 answers, 0 failed"));
  EXPECT_EQ(history->samples().back().ended, 2);
  Reopen();
  EXPECT_THAT(Kinds(id), IsEmpty());
}

TEST_F(JobCourseTest, ARestartIsAnEvent) {
  const std::string id = Submit(Prompts(2))->id();
  Reopen();
  EXPECT_THAT(Kinds(id), ElementsAre("accepted", "restart"));
}

TEST_F(JobCourseTest, TheTimeThatIsLeftComesFromThePace) {
  v1::JobSpec spec;
  spec.mutable_defaults()->set_max_tokens(100);
  const std::string id = Submit("{\"prompt\": \"ab\"}\n", spec)->id();
  EXPECT_FALSE(manager->PaceOf(id).seconds_left.has_value());
  auto taken = manager->TakeRequests(1);
  ASSERT_EQ(taken->size(), 1u);
  const JobId job = (*taken)[0].job;
  manager->ReportProgress(job, {.running = 1, .prompt_tokens = 2});
  for (int i = 0; i < 10; ++i) {
    clock.Advance(absl::Seconds(1));
    manager->ReportProgress(job, {.running = 1, .new_tokens = 5});
  }
  const LiveJobs::Pace pace = manager->PaceOf(id);
  EXPECT_NEAR(pace.generation_tokens_per_second, 5, 0.5);
  ASSERT_TRUE(pace.seconds_left.has_value());
  EXPECT_NEAR(*pace.seconds_left, 10, 2);  // 50 of 100 tokens are there
  ASSERT_TRUE(manager->PauseJob(id).ok());
  EXPECT_FALSE(manager->PaceOf(id).seconds_left.has_value());
}

TEST_F(JobCourseTest, FailedRequestsAreReadAPageAtATime) {
  const std::string id =
      Submit(
          "{\"prompt\": \"a\"}\nnonsense\n{\"prompt\": \"a\"}\n"
          "{\"custom_id\": \"x\", \"prompt\": \"a\", \"max_tokens\": -1}\n")
          ->id();
  auto failed = manager->ReadErrors(id, 0, 10);
  ASSERT_TRUE(failed.ok()) << failed.status();
  ASSERT_EQ(failed->size(), 2u);
  EXPECT_EQ((*failed)[0].index, 1);
  EXPECT_EQ((*failed)[0].code, "invalid_json");
  EXPECT_THAT((*failed)[0].message, HasSubstr("line 2"));
  EXPECT_EQ((*failed)[1].custom_id, "x");
  failed = manager->ReadErrors(id, 2, 10);
  ASSERT_EQ(failed->size(), 1u);
  EXPECT_EQ((*failed)[0].index, 3);
  EXPECT_EQ(manager->ReadErrors(id, 0, 1)->size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(manager->ReadErrors("job_77", 0, 1).status()));
}

}  // namespace
}  // namespace sluice
