#include "coordinator/jobs/requests/request_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/request.h"

namespace sluice {
namespace {

using testing::ElementsAre;

TEST(RequestCodecTest, RoundTrips) {
  Request request;
  request.endpoint = Endpoint::kChatCompletions;
  request.max_tokens = 77;
  request.sampling.temperature = 0.1f;
  request.sampling.top_p = 0.9f;
  request.sampling.min_p = 1e-7f;
  request.sampling.top_k = 3;
  request.sampling.repetition_penalty = 1.1f;
  request.sampling.presence_penalty = -0.3f;
  request.sampling.frequency_penalty = 1.7f;
  request.sampling.logit_bias = {{5, -100.0f}, {7, 0.1f}};
  request.sampling.seed = ~uint64_t{0} - 1;
  request.sampling.logprobs = 0;
  request.stop = {"a\n", "\xC3\xA9"};
  request.stop_tokens = {7, 70000};
  request.ignore_eos = true;
  request.echo = true;
  request.prompt_text = "";
  Request back;
  ASSERT_TRUE(DecodeRequestParams(EncodeRequestParams(request), &back).ok());
  EXPECT_EQ(back.endpoint, request.endpoint);
  EXPECT_EQ(back.max_tokens, 77);
  EXPECT_EQ(back.sampling.temperature, 0.1f);
  EXPECT_EQ(back.sampling.top_p, 0.9f);
  EXPECT_EQ(back.sampling.min_p, 1e-7f);
  EXPECT_EQ(back.sampling.top_k, 3);
  EXPECT_EQ(back.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(back.sampling.presence_penalty, -0.3f);
  EXPECT_EQ(back.sampling.frequency_penalty, 1.7f);
  EXPECT_EQ(back.sampling.logit_bias, request.sampling.logit_bias);
  EXPECT_EQ(back.sampling.seed, request.sampling.seed);
  EXPECT_EQ(back.sampling.logprobs, 0);
  EXPECT_EQ(back.stop, request.stop);
  EXPECT_EQ(back.stop_tokens, request.stop_tokens);
  EXPECT_TRUE(back.ignore_eos);
  EXPECT_TRUE(back.echo);
  EXPECT_FALSE(back.pools());
  EXPECT_TRUE(back.parts.empty());
}

TEST(RequestCodecTest, EmbeddingsAndPartsRoundTrip) {
  Request request;
  request.endpoint = Endpoint::kEmbeddings;
  request.pooling = Pooling::kWeightedMean;
  request.embedding = {false, 77, true};
  request.echo = true;
  request.parts = {{3, 0, 5, "a"}, {4, 9, ~uint64_t{0}, ""}};
  Request back;
  ASSERT_TRUE(DecodeRequestParams(EncodeRequestParams(request), &back).ok());
  EXPECT_EQ(back.endpoint, Endpoint::kEmbeddings);
  EXPECT_EQ(back.pooling, Pooling::kWeightedMean);
  EXPECT_FALSE(back.embedding.normalize);
  EXPECT_EQ(back.embedding.dimensions, 77);
  EXPECT_TRUE(back.embedding.base64);
  ASSERT_EQ(back.parts.size(), 2u);
  EXPECT_EQ(back.parts[0].prompt_tokens, 3);
  EXPECT_EQ(back.parts[0].prompt_text, "a");
  EXPECT_EQ(back.parts[1].max_tokens, 9);
  EXPECT_EQ(back.parts[1].seed, ~uint64_t{0});
}

TEST(RequestCodecTest, ChoicesRoundTrip) {
  Request request;
  request.choices = 2;
  request.candidates = 3;
  request.sampling.logprobs = 0;
  request.hides_logprobs = true;
  request.parts = {{4, 1, 5}, {0, 1, 6}, {0, 1, 7}};
  Request back;
  ASSERT_TRUE(DecodeRequestParams(EncodeRequestParams(request), &back).ok());
  EXPECT_EQ(back.choices, 2);
  EXPECT_EQ(back.candidates, 3);
  EXPECT_FALSE(back.shows_logprobs());
  ASSERT_EQ(back.parts.size(), 3u);
  EXPECT_EQ(back.parts[2].prompt_tokens, 0);
  EXPECT_EQ(back.parts[2].seed, 7u);
  request.parts.pop_back();
  EXPECT_TRUE(absl::IsDataLoss(
      DecodeRequestParams(EncodeRequestParams(request), &back)));
}

TEST(RequestCodecTest, BeamsRoundTrip) {
  Request request;
  request.choices = request.candidates = 2;
  request.beams = {-0.3, EarlyStopping::kNever};
  request.parts = {{4, 1, 5}, {0, 1, 6}};
  const std::string text = EncodeRequestParams(request);
  Request back;
  ASSERT_TRUE(DecodeRequestParams(text, &back).ok());
  ASSERT_TRUE(back.beams.has_value());
  EXPECT_EQ(back.beams->length_penalty, -0.3);
  EXPECT_EQ(back.beams->early_stopping, EarlyStopping::kNever);
  request.beams->early_stopping = static_cast<EarlyStopping>(3);
  EXPECT_TRUE(absl::IsDataLoss(
      DecodeRequestParams(EncodeRequestParams(request), &back)));
}

TEST(SplitLineTest, PartsMustHaveTheTokensOfThePrompt) {
  Request line;
  line.prompt = {1, 2, 3};
  for (const std::vector<RequestPart>& parts :
       {std::vector<RequestPart>{{2}, {2}},
        {{1}, {1}},
        {{0}, {3}},
        {{-1}, {4}}}) {
    line.parts = parts;
    EXPECT_TRUE(absl::IsDataLoss(SplitLine(line).status()));
  }
  line.parts = {{2}, {1}};
  const auto requests = SplitLine(line);
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_THAT((*requests)[1].prompt, ElementsAre(3));
  // A part without tokens has the prompt of the one before.
  line.parts = {{2}, {0}, {1}, {0}};
  const auto pairs = SplitLine(line);
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_THAT((*pairs)[1].prompt, ElementsAre(1, 2));
  EXPECT_THAT((*pairs)[3].prompt, ElementsAre(3));
}

TEST(RequestCodecTest, DamagedParamsAreAnError) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"endpoint":"x","max_tokens":1,"seed":1})",
        R"({"endpoint":"chat","max_tokens":"1","seed":1})",
        R"({"endpoint":"embeddings","max_tokens":0,"seed":1,"pooling":7})",
        R"({"endpoint":"embeddings","max_tokens":0,"seed":1,"pooling":1})",
        R"({"endpoint":"chat","max_tokens":1,"seed":1,"parts":[[1]]})",
        R"({"endpoint":"chat","max_tokens":1,"seed":1,"candidates":0})",
        R"({"endpoint":"chat","max_tokens":1,"seed":1,"candidates":0,)"
        R"("choices":-1,"parts":[[1,2,3]]})"}) {
    Request request;
    EXPECT_TRUE(absl::IsDataLoss(DecodeRequestParams(text, &request))) << text;
    EXPECT_EQ(request.candidates, 1) << text;  // divided by
  }
}

}  // namespace
}  // namespace sluice
