#include "tests/cuda/support/sample_judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <random>

#include "common/sampling_params.h"
#include "runtime/sample/distribution.h"

namespace sluice {
namespace {

constexpr double kBorder = 1e-5;  // of probability
constexpr float kTopPEdge = 4e-6f;

// Whether inversion at `uniform` comes to `token`, or within kBorder of it.
bool ComesTo(std::span<const TokenProbability> distribution, double uniform,
             int32_t token) {
  double before = 0;
  for (const TokenProbability& p : distribution) {
    if (p.token == token) {
      return uniform >= before - kBorder &&
             uniform <= before + p.probability + kBorder;
    }
    before += p.probability;
  }
  return false;
}

}  // namespace

SampleRequest RandomRequest(Random& random, int vocab) {
  const auto one_of = [&](std::initializer_list<double> values) {
    return static_cast<float>(
        values.begin()[random.Int(0, static_cast<int>(values.size()) - 1)]);
  };
  SampleRequest request;
  request.logprob = random.Int(0, 1);
  if (random.Int(0, 9) == 0) {
    request.target = random.Int(0, vocab - 1);
    request.logprob = 1;
    return request;
  }
  if (random.Int(0, 9) == 0) return request;
  request.uniform =
      std::uniform_real_distribution<double>(0, 1)(random.engine());
  if (random.Int(0, 9) == 0) request.uniform = random.Coin() ? 0 : 1 - 0x1p-53;
  request.temperature =
      one_of({0.7, 0.7, 1, 1, 1, 1.5, 4, 0.05, 1e-3, 1e-30, 1e6, HUGE_VALF});
  if (random.Coin()) {
    const int most[] = {1,     2,         40,     std::max(1, vocab - 1),
                        vocab, vocab + 1, INT_MAX};
    request.top_k = random.Int(1, most[random.Int(0, 6)]);
    if (random.Int(0, 3) == 0) request.top_k = most[random.Int(0, 6)];
  }
  if (random.Coin()) {
    request.top_p = one_of({0.95, 0.9, 0.5, 0.1, 1e-9, 0, 0.99999994});
  }
  if (random.Int(0, 2) == 0) {
    request.min_p = one_of({0.05, 0.01, 0.3, 1, 1e-6, 1e-30});
  }
  return request;
}

bool SampleJudge::MayDraw(const SampleRequest& request,
                          std::span<const float> logits, int32_t token) {
  SamplingParams params;
  params.temperature = request.temperature;
  params.top_k = request.top_k;
  params.min_p = request.min_p;
  for (const float change : {0.0f, -kTopPEdge, kTopPEdge}) {
    params.top_p = request.top_p;
    if (params.top_p < 1) {
      params.top_p = std::clamp(request.top_p + change, 0.0f, 1.0f);
    }
    if (ComesTo(FilteredDistribution(params, logits, scratch_), request.uniform,
                token)) {
      return true;
    }
  }
  return false;
}

void SampleJudge::Expect(const SampleRequest& request,
                         std::span<const float> logits,
                         const TokenSample& got) {
  SCOPED_TRACE(testing::Message()
               << "of " << logits.size() << " tokens: target " << request.target
               << ", temperature " << request.temperature << ", top-k "
               << request.top_k << ", top-p " << request.top_p << ", min-p "
               << request.min_p << ", at " << request.uniform);
  const TokenSample want = SampleToken(request, logits, scratch_);
  if (want.token < 0) {
    EXPECT_EQ(got.token, -1);
    EXPECT_TRUE(std::isnan(got.logprob)) << got.logprob;
    return;
  }
  if (request.target < 0 && request.temperature > 0) {
    ++drawn_;
    if (got.token != want.token) {
      ++others_;
      ASSERT_GE(got.token, 0);
      ASSERT_LT(got.token, static_cast<int32_t>(logits.size()));
      EXPECT_TRUE(MayDraw(request, logits, got.token))
          << got.token << ", not " << want.token;
    }
  } else {
    ASSERT_EQ(got.token, want.token);
  }
  if (request.logprob == 0) {
    EXPECT_EQ(got.logprob, 0);
    return;
  }
  const float logprob = ScoreToken(logits, got.token, {}, scratch_);
  if (std::isfinite(logprob)) {
    EXPECT_NEAR(
        got.logprob, logprob,
        2e-6 + 2 * std::numeric_limits<float>::epsilon() * std::abs(logprob));
  } else {
    EXPECT_EQ(got.logprob, logprob);
  }
}

}  // namespace sluice
