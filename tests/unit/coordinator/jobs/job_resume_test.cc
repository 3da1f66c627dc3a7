// Requests that go on from the tokens that an earlier process knew.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_state.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class JobResumeTest : public testing::Test, public TestJobs {
 protected:
  JobResumeTest() {
    options.answer_key = "key";
    EXPECT_TRUE(Open().ok());
  }

  // Submits requests with these max_tokens.
  std::string SubmitLengths(const std::vector<int>& max_tokens) {
    std::string input;
    for (const int n : max_tokens) {
      absl::StrAppend(&input, "{\"prompt\": \"abc\", \"max_tokens\": ", n,
                      "}\n");
    }
    return Submit(input)->id();
  }

  static NewTokens Tokens(const Request& request, int32_t begin, int count) {
    NewTokens tokens = {request.job, request.index, begin, {}};
    tokens.answer.tokens.assign(count, 'x');
    return tokens;
  }

  void Keep(std::vector<NewTokens> tokens) {
    manager->KeepTokens(std::move(tokens));
    manager->Flush();
    EXPECT_FALSE(manager->keeping_tokens());
  }
};

TEST_F(JobResumeTest, TheOneWithTheLeastLeftComesFirstThenThoseNotBegun) {
  const std::string id = SubmitLengths({10, 20, 30, 40, 50, 10});
  auto taken = manager->TakeRequests(5);
  ASSERT_EQ(taken->size(), 5u);
  // 8, 2, 25 and 39 tokens are left.
  Keep({Tokens((*taken)[0], 0, 2), Tokens((*taken)[1], 0, 18),
        Tokens((*taken)[2], 0, 5)});
  Keep({Tokens((*taken)[3], 0, 1), Tokens((*taken)[2], 5, 1)});
  const int64_t processed = manager->GetJob(id)->processed_tokens();
  EXPECT_EQ(processed, 0);  // the dispatcher reports them
  Reopen();
  EXPECT_TRUE(manager->HasBegunJobs());
  auto job = manager->GetJob(id);
  EXPECT_EQ(job->processed_tokens(), 2 + 18 + 6 + 1);
  EXPECT_EQ(job->generated_so_far(), 0);
  EXPECT_EQ(manager->KeptTokens(id)->requests, 4);
  EXPECT_EQ(manager->KeptTokens(id)->tokens, 27);
  std::vector<std::pair<int64_t, size_t>> order;
  while (true) {
    auto next = manager->TakeRequests(2);
    if (next->empty()) break;
    for (const Request& request : *next) {
      order.emplace_back(request.index, request.known.tokens.size());
    }
  }
  EXPECT_THAT(order,
              ElementsAre(std::pair(1, 18), std::pair(0, 2), std::pair(2, 6),
                          std::pair(3, 1), std::pair(4, 0), std::pair(5, 0)));
}

TEST_F(JobResumeTest, WhatIsGivenBackKeepsItsTokens) {
  SubmitLengths({10, 10});
  auto taken = manager->TakeRequests(1);
  Keep({Tokens((*taken)[0], 0, 4)});
  Reopen();
  taken = manager->TakeRequests(2);
  ASSERT_EQ(taken->size(), 2u);
  manager->GiveBack(*std::move(taken));
  taken = manager->TakeRequests(2);
  ASSERT_EQ(taken->size(), 2u);
  EXPECT_EQ((*taken)[0].known.tokens.size(), 4u);
  EXPECT_THAT((*taken)[1].known.tokens, IsEmpty());
}

TEST_F(JobResumeTest, EachRequestOfALineGoesOnFromItsOwnTokens) {
  const std::string id =
      Submit(R"({"prompt": ["a", "bc", "d"], "max_tokens": 10})"
             "\n"
             R"({"prompt": "e", "max_tokens": 10})")
          ->id();
  auto taken = manager->TakeRequests(2);
  ASSERT_EQ(taken->size(), 3u);  // the line as a whole
  NewTokens second = Tokens((*taken)[1], 0, 4);
  second.part = 1;
  Keep({second});
  // That the third one ended is not kept.
  manager->Complete((*taken)[2], Answer((*taken)[2]));
  Reopen();
  EXPECT_EQ(manager->KeptTokens(id)->tokens, 4);
  taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 4u);
  EXPECT_EQ((*taken)[0].part, 1);
  EXPECT_EQ((*taken)[0].known.tokens.size(), 4u);
  EXPECT_EQ(tokenizer.Decode((*taken)[0].prompt, true), "bc");
  EXPECT_EQ((*taken)[1].part, 0);
  EXPECT_THAT((*taken)[1].known.tokens, IsEmpty());
  EXPECT_EQ((*taken)[2].part, 2);
  EXPECT_EQ((*taken)[3].index, 1);
  for (const Request& request : *taken) {
    manager->Complete(request, Answer(request));
  }
  EXPECT_EQ(WaitForEnd(id).counts().completed(), 2);
  EXPECT_EQ(Results(id)[0]["response"]["body"]["choices"].size(), 3u);
}

TEST_F(JobResumeTest, TokensOfAPartThatALineDoesNotHaveAreDropped) {
  SubmitLengths({10});
  auto taken = manager->TakeRequests(1);
  NewTokens other = Tokens((*taken)[0], 0, 4);
  other.part = 1;
  Keep({other});
  Reopen();
  taken = manager->TakeRequests(1);
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_THAT((*taken)[0].known.tokens, IsEmpty());
}

TEST_F(JobResumeTest, TokensComeWithTheClosingOfAManagerThatStoredNothing) {
  const std::string id = SubmitLengths({10});
  auto taken = manager->TakeRequests(1);
  manager->KeepTokens({Tokens((*taken)[0], 0, 4)});
  Reopen();
  EXPECT_EQ(manager->KeptTokens(id)->tokens, 4);
}

TEST_F(JobResumeTest, ARequestWithItsResultHasNone) {
  const std::string id = SubmitLengths({10, 10});
  auto taken = manager->TakeRequests(2);
  Keep({Tokens((*taken)[0], 0, 4), Tokens((*taken)[1], 0, 3)});
  manager->Complete((*taken)[0], Answer((*taken)[0]));
  manager->Flush();
  Reopen();
  EXPECT_EQ(manager->KeptTokens(id)->tokens, 3);
  taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_EQ((*taken)[0].index, 1);
}

TEST_F(JobResumeTest, ACancelledJobHasNone) {
  const std::string id = SubmitLengths({10, 10});
  auto taken = manager->TakeRequests(2);
  Keep({Tokens((*taken)[0], 0, 4)});
  ASSERT_TRUE(manager->CancelJob(id).ok());
  WaitForEnd(id);
  EXPECT_EQ(manager->KeptTokens(id)->requests, 0);
  manager->KeepTokens({Tokens((*taken)[1], 0, 4)});
  manager->Flush();
  EXPECT_EQ(manager->KeptTokens(id)->requests, 0);
}

TEST_F(JobResumeTest, OnesThatCannotBeTheRequestsAreDropped) {
  const std::string id = SubmitLengths({4, 4, 4, 4});
  auto taken = manager->TakeRequests(4);
  NewTokens unknown = Tokens((*taken)[0], 0, 2);
  unknown.answer.tokens[1] = 1 << 20;
  NewTokens logprobs = Tokens((*taken)[1], 0, 1);
  logprobs.answer.logprobs.resize(1);
  Keep({unknown, logprobs, Tokens((*taken)[2], 0, 4),
        Tokens((*taken)[3], 0, 3)});
  Reopen();
  taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 4u);
  EXPECT_EQ((*taken)[0].index, 3);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_THAT((*taken)[i].known.tokens, IsEmpty());
  }
  EXPECT_EQ(AnswerAll(), 0);
}

TEST_F(JobResumeTest, AnotherModelBeginsAnew) {
  const std::string id = SubmitLengths({10});
  auto taken = manager->TakeRequests(1);
  Keep({Tokens((*taken)[0], 0, 4)});
  options.answer_key = "another";
  Reopen();
  EXPECT_EQ(manager->KeptTokens(id)->requests, 0);
  taken = manager->TakeRequests(9);
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_THAT((*taken)[0].known.tokens, IsEmpty());
  EXPECT_EQ(manager->GetJob(id)->processed_tokens(), 0);
}

}  // namespace
}  // namespace sluice
