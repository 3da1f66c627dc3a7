#include "runtime/sample/distribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "runtime/sample/penalties.h"
#include "runtime/sample/philox.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Does `logits` of golden/sampling/make_sampling_golden.py.
std::vector<float> GoldenLogits(int vocab, uint64_t salt, double scale,
                                uint64_t steps) {
  std::vector<float> logits(vocab);
  for (int i = 0; i < vocab; ++i) {
    const uint64_t hashed = (i + salt) * 2654435761u % (uint64_t{1} << 32);
    const uint64_t step = hashed * steps >> 32;
    logits[i] = static_cast<float>(static_cast<double>(step) / steps * scale -
                                   scale / 2);
  }
  return logits;
}

std::vector<int32_t> Support(const SamplingParams& params,
                             std::vector<float> logits) {
  SamplerScratch scratch;
  std::vector<int32_t> tokens;
  for (const auto& [token, p] : FilteredDistribution(params, logits, scratch))
    tokens.push_back(token);
  return tokens;
}

TEST(DistributionTest, EqualsHuggingFace) {
  std::ifstream file(TestsDir() + "/golden/sampling/sampling_golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 50u);
  SamplerScratch scratch;
  for (const nlohmann::json& c : cases) {
    const auto tokens = c["tokens"].get<std::vector<int32_t>>();
    const auto probabilities = c["probabilities"].get<std::vector<double>>();
    nlohmann::json shown = c;
    shown.erase("tokens");
    shown.erase("probabilities");
    SCOPED_TRACE(shown.dump());
    std::vector<float> logits =
        GoldenLogits(c["vocab"], c["salt"], c["scale"], c["steps"]);
    SamplingParams params;
    params.temperature = c.value("temperature", 1.0f);
    params.top_k = c.value("top_k", 0);
    params.top_p = c.value("top_p", 1.0f);
    params.min_p = c.value("min_p", 0.0f);
    params.repetition_penalty = c.value("repetition_penalty", 1.0f);
    for (const auto& bias : c.value("logit_bias", nlohmann::json::array()))
      params.logit_bias.emplace_back(bias[0], bias[1]);
    TokenCounts counts;
    for (int32_t token : c.value("context", std::vector<int32_t>()))
      ++counts[token].prompt;
    std::vector<std::pair<int32_t, float>> changed;
    ApplyPenalties(params, counts, logits, changed);

    const std::vector<TokenProbability> got =
        FilteredDistribution(params, logits, scratch);
    ASSERT_EQ(got.size(), tokens.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].token, tokens[i]);
      EXPECT_NEAR(got[i].probability, probabilities[i],
                  1e-5 * probabilities[i]);
    }
  }
}

// Follows the definitions directly, in double, with a full sort.
std::map<int32_t, double> Reference(const SamplingParams& params,
                                    const std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  size_t kept = order.size();
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < kept) {
    const float min = logits[order[params.top_k - 1]];
    kept = params.top_k;
    while (kept < order.size() && logits[order[kept]] == min) ++kept;
  }
  std::vector<double> weights;
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    weights.push_back(
        std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) /
                 params.temperature));
    total += weights.back();
  }
  if (params.top_p < 1) {
    double sum = weights[0];
    size_t n = 1;
    while (n < kept && sum < params.top_p * total) sum += weights[n++];
    kept = n;
  }
  const double min = std::max<double>(params.min_p, std::exp(-86.0));
  while (kept > 1 && weights[kept - 1] < min) --kept;
  total = 0;
  for (size_t i = 0; i < kept; ++i) total += weights[i];
  std::map<int32_t, double> result;
  for (size_t i = 0; i < kept; ++i) result[order[i]] = weights[i] / total;
  return result;
}

TEST(DistributionTest, EqualsTheDefinitionsOnRandomLogits) {
  std::mt19937 random(5);
  SamplerScratch scratch;
  const auto uniform = [&] { return random() / 4294967296.0; };
  for (int round = 0; round < 400; ++round) {
    const int vocab = 1 + random() % (round % 4 == 0 ? 9000 : 300);
    const double scale = std::exp(uniform() * 5 - 1);
    std::vector<float> logits(vocab);
    for (float& l : logits) l = static_cast<float>((uniform() - 0.5) * scale);
    SamplingParams params;
    params.temperature = static_cast<float>(std::exp(uniform() * 3 - 1.5));
    if (random() % 2) params.top_k = 1 + random() % (2 * vocab);
    if (random() % 2) params.top_p = static_cast<float>(uniform());
    if (random() % 3 == 0)
      params.min_p = static_cast<float>(std::pow(uniform(), 4));
    const std::map<int32_t, double> expected = Reference(params, logits);
    const std::vector<TokenProbability> got =
        FilteredDistribution(params, logits, scratch);
    // Where float and double round to different sides of a border, one token
    // may differ.
    double difference = 0;
    std::map<int32_t, double> left = expected;
    double largest = 0;
    for (const auto& [token, p] : got) {
      difference += std::abs(p - left[token]);
      left.erase(token);
      largest = std::max(largest, p);
    }
    for (const auto& [token, p] : left) difference += p;
    SCOPED_TRACE(absl::StrCat("round ", round, " vocab ", vocab, " scale ",
                              scale, " top_k ", params.top_k, " top_p ",
                              params.top_p, " min_p ", params.min_p,
                              " temperature ", params.temperature));
    ASSERT_NEAR(static_cast<double>(got.size()), expected.size(),
                1 + expected.size() * 1e-3);
    ASSERT_LT(difference, 2e-3);
  }
}

TEST(DistributionTest, TopKKeepsWhatEqualsTheKth) {
  EXPECT_THAT(Support({.temperature = 1, .top_k = 2}, {1, 3, 2, 2, 0}),
              ElementsAre(1, 2, 3));
}

TEST(DistributionTest, TopPTakesEqualTokensByIdAndOneAtLeast) {
  EXPECT_THAT(Support({.temperature = 1, .top_p = 0.5}, {0, 0, 0, 0}),
              ElementsAre(0, 1));
  EXPECT_THAT(Support({.temperature = 1, .top_p = 0.51f}, {0, 0, 0, 0}),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(Support({.temperature = 1, .top_p = 1e-9f}, {0, 1, 1, 0}),
              ElementsAre(1));
  EXPECT_THAT(Support({.temperature = 1, .top_p = 0.25f},
                      std::vector<float>(1000, 0.0f)),
              ::testing::SizeIs(250));
}

TEST(DistributionTest, ParametersOutOfRangeLeaveSomething) {
  for (float top_p : {-1.0f, 0.0f, kNan, 2.0f})
    for (float min_p : {-1.0f, 0.0f, 1.0f, 7.0f, kNan})
      for (int32_t top_k : {-5, 0, 1, 1000})
        for (float temperature : {1e-45f, 1.0f, 1e38f, kInf}) {
          const SamplingParams params = {.temperature = temperature,
                                         .top_k = top_k,
                                         .top_p = top_p,
                                         .min_p = min_p};
          const std::vector<int32_t> kept = Support(params, {1, -kInf, 2, -3});
          EXPECT_THAT(kept, ::testing::Not(IsEmpty()));
          EXPECT_THAT(kept, ::testing::Not(::testing::Contains(1)));
        }
}

TEST(DistributionTest, ImpossibleTokensStayImpossible) {
  EXPECT_THAT(Support({.temperature = 1}, {-kInf, 0, -kInf, 1}),
              ElementsAre(1, 3));
  EXPECT_THAT(Support({.temperature = 1, .top_k = 3}, {-kInf, 0, -kInf, 1}),
              ElementsAre(1, 3));
  EXPECT_THAT(Support({.temperature = 1}, {-kInf, -kInf}), IsEmpty());
}

TEST(DistributionTest, FindPeak) {
  SamplerScratch scratch;
  const auto token = [&](std::vector<float> logits) {
    return FindPeak(logits, scratch).token;
  };
  EXPECT_EQ(token({1, 3, 3, 2}), 1);
  EXPECT_EQ(token({-0.0f, 0.0f}), 0);
  EXPECT_EQ(token({}), -1);
  EXPECT_EQ(token({-kInf}), -1);
  EXPECT_EQ(token({-kInf, -1e38f}), 1);
  EXPECT_EQ(token({1, kNan, 2}), -1);
  EXPECT_EQ(token({1, kInf, 2}), -1);
  std::vector<float> logits(5000, 1.0f);
  EXPECT_EQ(token(logits), 0);
  logits[4999] = 2;
  EXPECT_EQ(token(logits), 4999);
  logits[777] = 2;
  EXPECT_EQ(token(logits), 777);
}

TEST(DistributionTest, LogSumExpIsStable) {
  SamplerScratch scratch;
  for (float shift : {0.0f, 1e4f, -1e4f}) {
    const std::vector<float> logits = {shift, shift + 1, shift - 2, -kInf};
    const Peak peak = FindPeak(logits, scratch);
    EXPECT_NEAR(LogSumExp(logits, peak, scratch) - shift,
                std::log(1 + std::exp(1.0) + std::exp(-2.0)), 1e-6);
  }
}

TEST(DistributionTest, TopLogprobsInOrder) {
  SamplerScratch scratch;
  const std::vector<float> logits = {1, 3, -kInf, 3, 2};
  FindPeak(logits, scratch);
  const auto tokens = [&](int32_t n) {
    std::vector<int32_t> result;
    for (const TokenLogprob& top : TopLogprobs(logits, n, 0.5, scratch)) {
      EXPECT_FLOAT_EQ(top.logprob, logits[top.token] - 0.5f);
      result.push_back(top.token);
    }
    return result;
  };
  EXPECT_THAT(tokens(0), IsEmpty());
  EXPECT_THAT(tokens(1), ElementsAre(1));
  EXPECT_THAT(tokens(3), ElementsAre(1, 3, 4));
  EXPECT_THAT(tokens(99), ElementsAre(1, 3, 4, 0));
  EXPECT_THAT(tokens(-1), IsEmpty());
}

// Samples with fixed seeds, so that the outcome is the same in every run.
void ExpectFrequencies(const SamplingParams& params,
                       const std::vector<float>& logits) {
  SamplerScratch scratch;
  const std::vector<TokenProbability> expected =
      FilteredDistribution(params, logits, scratch);
  std::map<int32_t, int> seen;
  const int n = 40000;
  for (int i = 0; i < n; ++i) {
    const Peak peak = FindPeak(logits, scratch);
    ++seen[SampleAt(params, logits, peak, UniformAt(params.seed, i), scratch)];
  }
  double chi_square = 0;
  double other_expected = 0;  // tokens too rare for a class of their own
  int other_seen = n;
  int classes = 0;
  for (const auto& [token, p] : expected) {
    if (p * n < 10) {
      other_expected += p * n;
      continue;
    }
    chi_square += std::pow(seen[token] - p * n, 2) / (p * n);
    other_seen -= seen[token];
    ++classes;
  }
  if (other_expected >= 10) {
    chi_square += std::pow(other_seen - other_expected, 2) / other_expected;
    ++classes;
  } else {
    EXPECT_LE(other_seen, 40);
  }
  for (const auto& [token, count] : seen) {
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(),
                            [token = token](const auto& e) {
                              return e.token == token;
                            }) ||
                count == 0)
        << token;
  }
  ASSERT_GT(classes, 2);
  // About four standard deviations of a chi-square of classes - 1 degrees.
  const double degrees = classes - 1;
  EXPECT_LT(chi_square, degrees + 4 * std::sqrt(2 * degrees) + 6);
}

TEST(DistributionTest, DrawsFollowTheProbabilities) {
  ExpectFrequencies({.temperature = 1, .seed = 1}, GoldenLogits(20, 1, 6, 999));
  ExpectFrequencies({.temperature = 0.8f, .seed = 2},
                    GoldenLogits(3000, 2, 20, 1 << 24));
  ExpectFrequencies({.temperature = 1.3f, .top_k = 40, .seed = 3},
                    GoldenLogits(3000, 3, 20, 1 << 24));
  ExpectFrequencies({.temperature = 1, .top_p = 0.8f, .seed = 4},
                    GoldenLogits(3000, 4, 20, 1 << 24));
  ExpectFrequencies({.temperature = 1, .min_p = 0.3f, .seed = 5},
                    GoldenLogits(3000, 5, 20, 1 << 24));
}

TEST(DistributionTest, DrawInvertsTheCumulativeDistribution) {
  SamplerScratch scratch;
  // The weights are spread over several blocks of the sum, most of them empty.
  std::vector<float> logits(2000, -kInf);
  logits[5] = logits[700] = logits[1300] = logits[1999] = 1;
  for (int32_t top_k : {0, 4}) {
    const SamplingParams params = {.temperature = 1, .top_k = top_k};
    const auto draw = [&](double uniform) {
      const Peak peak = FindPeak(logits, scratch);
      return SampleAt(params, logits, peak, uniform, scratch);
    };
    EXPECT_EQ(draw(0), 5);
    EXPECT_EQ(draw(0.2499), 5);
    EXPECT_EQ(draw(0.25), 700);
    EXPECT_EQ(draw(0.5), 1300);
    EXPECT_EQ(draw(0.7499), 1300);
    EXPECT_EQ(draw(0.75), 1999);
    EXPECT_EQ(draw(1 - 0x1p-53), 1999);
    EXPECT_EQ(draw(1.0), 1999);  // what rounding may make of the product
  }
}

TEST(ScoreTokenTest, IsTheLogSoftmax) {
  SamplerScratch scratch;
  std::vector<float> logits = {1, -kInf, 3, 3, 0.5f};
  const double sum = std::exp(1.0) + 2 * std::exp(3.0) + std::exp(0.5);
  std::vector<TokenLogprob> top(6);
  EXPECT_NEAR(ScoreToken(logits, 0, top, scratch), 1 - std::log(sum), 1e-6);
  // Likeliest first, equal ones by id; then nothing.
  const int32_t expected[] = {2, 3, 0, 4, -1, -1};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(top[i].token, expected[i]) << i;
  EXPECT_NEAR(top[1].logprob, 3 - std::log(sum), 1e-6);
  EXPECT_NEAR(top[3].logprob, 0.5 - std::log(sum), 1e-6);
  EXPECT_EQ(ScoreToken(logits, 1, {}, scratch), -kInf);
  EXPECT_NEAR(ScoreToken(logits, 2, std::span(top).first(1), scratch),
              3 - std::log(sum), 1e-6);
  EXPECT_EQ(top[0].token, 2);
  // Far from zero no sum overflows.
  for (float& x : logits) x += 1e4f;
  EXPECT_NEAR(ScoreToken(logits, 2, {}, scratch), 3 - std::log(sum), 1e-3);
}

TEST(ScoreTokenTest, NaNIfTheLogitsAreNoNumbers) {
  SamplerScratch scratch;
  std::vector<TokenLogprob> top = {{5, 5}, {6, 6}};
  for (const std::vector<float>& logits :
       {std::vector<float>{1, kNan, 2}, std::vector<float>{1, kInf, 2},
        std::vector<float>{-kInf, -kInf, -kInf}}) {
    EXPECT_TRUE(std::isnan(ScoreToken(logits, 0, top, scratch)));
    EXPECT_EQ(top[0].token, -1);
    EXPECT_EQ(top[1].token, -1);
  }
}

}  // namespace
}  // namespace sluice
