#include "coordinator/jobs/results/scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "coordinator/jobs/requests/request_codec.h"

namespace sluice {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

FinishedRequest Pair(std::vector<TokenLogprob> top) {
  FinishedRequest pair;
  pair.request.endpoint = Endpoint::kScore;
  pair.request.score.tokens = {7, 9};
  SampledToken& first = pair.generation.logprobs.emplace_back();
  first.token = top.front().token;
  first.logprob = top.front().logprob;
  first.top = std::move(top);
  return pair;
}

TEST(ScoresOfTest, IsTheProbabilityOfYesAgainstNo) {
  EXPECT_THAT(
      ScoresOf({Pair({{7, -0.25f}, {9, -1.5f}}),
                Pair({{9, -0.25f}, {7, -1.5f}}),
                // One that is not told is infinitely unlikely.
                Pair({{7, -0.1f}, {3, -4}}), Pair({{9, -0.1f}, {3, -4}}),
                Pair({{2, -0.1f}, {3, -4}})}),
      ElementsAre(DoubleNear(1 / (1 + std::exp(-1.25)), 1e-12),
                  DoubleNear(1 / (1 + std::exp(1.25)), 1e-12), 1, 0, 0.5));
}

TEST(ScoresOfTest, IsTheCosineOfEmbeddings) {
  const auto text = [](std::vector<float> pooled, int32_t queries) {
    FinishedRequest part;
    part.request.pooling = Pooling::kMean;
    part.request.score.queries = queries;
    part.generation.pooled = std::move(pooled);
    return part;
  };
  EXPECT_THAT(ScoresOf({text({2, 0}, 1), text({5, 0}, 1), text({-1, 0}, 1),
                        text({3, 4}, 1)}),
              ElementsAre(1, -1, DoubleNear(0.6, 1e-7)));
  EXPECT_THAT(ScoresOf({text({2, 0}, 2), text({0, 3}, 2), text({1, 0}, 2),
                        text({3, 4}, 2)}),
              ElementsAre(1, DoubleNear(0.8, 1e-7)));
}

TEST(ScoresOfTest, ItsParametersAreStored) {
  Request request;
  request.endpoint = Endpoint::kRerank;
  request.score = {{3, 4}, 0, 5, true};
  request.prompt_text = "a document";
  Request back;
  ASSERT_TRUE(DecodeRequestParams(EncodeRequestParams(request), &back).ok());
  EXPECT_EQ(back.endpoint, Endpoint::kRerank);
  EXPECT_EQ(back.score.tokens.yes, 3);
  EXPECT_EQ(back.score.tokens.no, 4);
  EXPECT_EQ(back.score.queries, 0);
  EXPECT_EQ(back.score.top_n, 5);
  EXPECT_TRUE(back.score.documents);
  EXPECT_EQ(back.prompt_text, "a document");
  request.parts = {{1, 1, 0, "b"}, {2, 1, 0, "c"}};
  Request line;
  ASSERT_TRUE(DecodeRequestParams(EncodeRequestParams(request), &line).ok());
  EXPECT_EQ(line.parts[1].prompt_text, "c");
  EXPECT_TRUE(absl::IsDataLoss(DecodeRequestParams(
      R"({"endpoint":"score","max_tokens":1,"seed":1})", &back)));
  EXPECT_TRUE(absl::IsDataLoss(DecodeRequestParams(
      R"({"endpoint":"score","max_tokens":1,"seed":1,"score":[1]})", &back)));
}

}  // namespace
}  // namespace sluice
