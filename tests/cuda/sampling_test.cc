#include "runtime/kernels/cuda/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "runtime/sample/distribution.h"
#include "runtime/sample/sampler.h"
#include "tests/cuda/support/device_array.h"
#include "tests/cuda/support/parity.h"
#include "tests/cuda/support/sample_judge.h"

// Tokens that are sampled on the device, against the host's Sampler.

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMost = std::numeric_limits<float>::max();

// Samples from rows of logits [rows, vocab], with the threads running in each
// order.
std::vector<TokenSample> SampleAll(const std::vector<float>& logits, int vocab,
                                   const std::vector<RowSample>& samples) {
  const DeviceArray<float> rows(logits);
  const DeviceArray<RowSample> requests(samples);
  return InAnyOrder([&] {
    const DeviceArray<TokenSample> out(samples.size());
    EXPECT_TRUE(SampleTokens(rows.data(), vocab, requests.data(),
                             static_cast<int32_t>(samples.size()), out.data(),
                             nullptr)
                    .ok());
    return out.Read();
  });
}

// Logits of some kind: as models give them, with many equal ones, far apart,
// masked, and what is no number.
std::vector<float> RandomRow(Random& random, int vocab) {
  const float deviations[] = {0.01f, 1, 3, 3, 3, 12, 300};
  std::vector<float> row =
      random.Normal(vocab, static_cast<float>(random.Int(-20, 20)),
                    deviations[random.Int(0, 6)]);
  const auto anywhere = [&] { return random.Int(0, vocab - 1); };
  switch (random.Int(0, 15)) {
    case 0:
      for (float& x : row) x = std::round(x);
      break;
    case 1:
      for (float& x : row) x = std::round(2 * x) / 2;
      break;
    case 2:
      std::fill(row.begin(), row.end(), static_cast<float>(random.Int(-1, 1)));
      break;
    case 3:
      for (float& x : row) x = random.Int(0, 9) == 0 ? x : -kInf;
      break;
    case 4:
      row[anywhere()] += 40;
      break;
    case 5:
      for (float& x : row) x = random.Coin() ? 0.0f : -0.0f;
      break;
    case 6:
      for (float& x : row) x *= 1e-40f;
      break;
    case 7:
      for (float& x : row) x = random.Coin() ? kMost : -kMost;
      break;
    case 8:
      row[anywhere()] = kNan;
      if (random.Coin()) row[anywhere()] = -kNan;
      break;
    case 9:
      row[anywhere()] = kInf;
      break;
    case 10:
      std::fill(row.begin(), row.end(), -kInf);
      if (random.Coin()) row[anywhere()] = -7;
      break;
    default:
      break;
  }
  return row;
}

// Rows of one vocabulary, each asked several times, in no order.
void CheckRandomRows(Random& random, int vocab, int rows, int count,
                     SampleJudge& judge) {
  std::vector<float> logits;
  for (int row = 0; row < rows; ++row) {
    const std::vector<float> one = RandomRow(random, vocab);
    logits.insert(logits.end(), one.begin(), one.end());
  }
  std::vector<RowSample> samples(count);
  for (RowSample& sample : samples) {
    sample = {RandomRequest(random, vocab), random.Int(0, rows - 1)};
  }
  const std::vector<TokenSample> got = SampleAll(logits, vocab, samples);
  for (int i = 0; i < count; ++i) {
    judge.Expect(
        samples[i].request,
        std::span(logits).subspan(size_t{1} * samples[i].row * vocab, vocab),
        got[i]);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SampleTokensTest, SmallVocabularies) {
  Random random(1);
  SampleJudge judge;
  for (int i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
    const int vocab = i < 140 ? i + 1 : random.Int(1, 700);
    CheckRandomRows(random, vocab, random.Int(1, 5), 8, judge);
  }
  EXPECT_GT(judge.drawn(), 1000);
  EXPECT_LT(judge.others(), judge.drawn() / 50);
}

TEST(SampleTokensTest, LargeVocabularies) {
  Random random(2);
  SampleJudge judge;
  for (const int vocab : {1021, 2048, 4093, 4096, 4097, 8190, 32000, 32001,
                          50257, 128256, 130003}) {
    CheckRandomRows(random, vocab, 3, vocab < 40000 ? 12 : 6, judge);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(judge.drawn(), 60);
  EXPECT_LE(judge.others(), 2);
}

// Many weights are small beside the largest: their sum has all of its bits only
// where each of them keeps its own.
TEST(SampleTokensTest, LongTails) {
  Random random(6);
  SampleJudge judge;
  constexpr int kVocab = 130003;
  std::vector<float> logits = random.Normal(kVocab, 3, 0.5f);
  logits[4711] = 10;
  std::vector<RowSample> samples;
  for (int i = 0; i < 8; ++i) {
    SampleRequest request;
    request.temperature = 1;
    request.uniform = (i + 0.5) / 8;
    request.logprob = 1;
    if (i >= 2) request.top_p = i % 2 == 0 ? 0.9f : 0.4f;
    if (i >= 6) request.top_k = 90000;
    samples.push_back({request, 0});
  }
  const std::vector<TokenSample> got = SampleAll(logits, kVocab, samples);
  for (size_t i = 0; i < samples.size(); ++i) {
    judge.Expect(samples[i].request, logits, got[i]);
  }
  EXPECT_LE(judge.others(), 3);
}

// The device's samples for the Sampler's requests are what the Sampler draws
// itself, from logits that are spread as a model's.
TEST(SampleTokensTest, AreTheSamplers) {
  Random random(3);
  SamplerScratch scratch;
  constexpr int kVocab = 5003;
  for (const SamplingParams& params : std::vector<SamplingParams>{
           {},
           {.logprobs = 0},
           {.temperature = 1, .seed = 5},
           {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f, .seed = 6},
           {.temperature = 1.3f, .min_p = 0.02f, .seed = 7, .logprobs = 0}}) {
    const Sampler sampler(params, 0);
    const std::vector<float> logits = random.Normal(3 * kVocab, 0, 3);
    std::vector<RowSample> samples;
    for (int row = 0; row < 3; ++row) {
      samples.push_back({*sampler.Request(10 + row), row});
    }
    const std::vector<TokenSample> got = SampleAll(logits, kVocab, samples);
    for (int row = 0; row < 3; ++row) {
      std::vector<float> copy(logits.begin() + row * kVocab,
                              logits.begin() + (row + 1) * kVocab);
      const SampledToken want = sampler.Sample(copy, 10 + row, scratch);
      const SampledToken token = sampler.Accept(got[row]);
      EXPECT_EQ(token.token, want.token);
      EXPECT_NEAR(token.logprob, want.logprob, 2e-6);
    }
  }
}

// Where sums are exact, borders are the host's.
TEST(SampleTokensTest, BordersBetweenTokens) {
  for (const int vocab : {4, 64, 256, 4096}) {
    std::vector<RowSample> samples;
    SamplerScratch scratch;
    for (int i = 0; i < 20; ++i) {
      SampleRequest request;
      request.temperature = 1;
      request.uniform = static_cast<double>(i % vocab) / vocab;
      if (i % 2 == 1) request.uniform = std::nextafter(request.uniform, 0.0);
      if (i % 3 == 1) request.top_p = 0.5f;
      samples.push_back({request, 0});
    }
    const std::vector<float> logits(vocab, 1.5f);
    const std::vector<TokenSample> got = SampleAll(logits, vocab, samples);
    for (size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(got[i].token,
                SampleToken(samples[i].request, logits, scratch).token)
          << i << " of " << vocab;
    }
  }
}

// Truncation is exact where no sum decides: each token that is kept, and no
// other, is drawn by some number.
TEST(SampleTokensTest, WhatIsKept) {
  Random random(4);
  SamplerScratch scratch;
  for (int round = 0; round < 12; ++round) {
    const int vocab = random.Int(20, 300);
    std::vector<float> logits = random.Normal(vocab, 0, 2);
    if (round % 2 == 0) {
      for (float& x : logits) x = std::round(x);
    }
    SamplingParams params;
    params.temperature = round % 3 == 0 ? 50.0f : 1.0f;
    if (round % 3 != 1) params.top_k = random.Int(1, 30);
    if (round % 3 != 2) params.min_p = 0.2f;
    if (round % 4 == 3) params.top_p = 0.7f;
    const auto kept = FilteredDistribution(params, logits, scratch);
    std::vector<RowSample> samples;
    double before = 0;
    for (const TokenProbability& token : kept) {
      SampleRequest request;
      request.temperature = params.temperature;
      request.top_k = params.top_k;
      request.top_p = params.top_p;
      request.min_p = params.min_p;
      request.uniform = before + token.probability / 2;
      before += token.probability;
      samples.push_back({request, 0});
    }
    const std::vector<TokenSample> got = SampleAll(logits, vocab, samples);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(got[i].token, kept[i].token) << "round " << round;
    }
  }
}

// All of many logits that equal the k-th are kept.
TEST(SampleTokensTest, TiesAtTheEdgeOfTopK) {
  SamplerScratch scratch;
  for (const int vocab : {100, 1500, 6000}) {
    std::vector<float> logits(vocab, 1.0f);
    for (int i = 0; i < vocab; i += 7) logits[i] = 2;
    for (int i = 3; i < vocab; i += 50) logits[i] = 3;
    for (const int top_k : {1, 3, vocab / 50, vocab / 8, vocab / 4}) {
      std::vector<RowSample> samples;
      for (int i = 0; i < 8; ++i) {
        SampleRequest request;
        request.temperature = 1;
        request.top_k = top_k;
        request.uniform = (i + 0.37) / 8;
        if (i >= 4) request.top_p = 0.6f;
        samples.push_back({request, 0});
      }
      const std::vector<TokenSample> got = SampleAll(logits, vocab, samples);
      for (size_t i = 0; i < samples.size(); ++i) {
        EXPECT_EQ(got[i].token,
                  SampleToken(samples[i].request, logits, scratch).token)
            << "top-k " << top_k << " of " << vocab;
      }
    }
  }
}

TEST(SampleTokensTest, NothingToDo) {
  EXPECT_TRUE(SampleTokens(nullptr, 10, nullptr, 0, nullptr, nullptr).ok());
  for (const int vocab : {0, -1, INT32_MAX}) {
    EXPECT_EQ(SampleTokens(nullptr, vocab, nullptr, 1, nullptr, nullptr).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice
