#include "runtime/sample/vector_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace sluice::vector_ops {
namespace {

constexpr float kEndless = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(n);
  for (float& v : x)
    v = static_cast<float>(static_cast<int32_t>(random())) / (1 << 27);
  return x;
}

TEST(VectorOpsTest, BlockMaximaOfEverySize) {
  for (const Variant& variant : Variants()) {
    for (size_t n : {0, 1, 15, 63, 64, 65, 127, 128, 200, 512}) {
      const std::vector<float> x = RandomLogits(n, 1 + n);
      std::vector<float> maxima((n + kMaxBlock - 1) / kMaxBlock);
      EXPECT_FALSE(variant.block_maxima(x, maxima.data()));
      for (size_t b = 0; b < maxima.size(); ++b) {
        float expected = -kEndless;
        for (size_t i = b * kMaxBlock; i < std::min(n, (b + 1) * kMaxBlock);
             ++i)
          expected = std::max(expected, x[i]);
        EXPECT_EQ(maxima[b], expected) << variant.name << " " << n << " " << b;
      }
    }
  }
}

TEST(VectorOpsTest, BlockMaximaFindsNanAnywhere) {
  for (const Variant& variant : Variants()) {
    for (size_t at = 0; at < 150; ++at) {
      std::vector<float> x(150, -kEndless);
      float maxima[3];
      EXPECT_FALSE(variant.block_maxima(x, maxima));
      EXPECT_EQ(maxima[at / kMaxBlock], -kEndless);
      x[at] = kEndless;
      EXPECT_FALSE(variant.block_maxima(x, maxima));
      EXPECT_EQ(maxima[at / kMaxBlock], kEndless);
      x[at] = kNotANumber;
      EXPECT_TRUE(variant.block_maxima(x, maxima)) << variant.name << " " << at;
    }
  }
}

TEST(VectorOpsTest, ExpIsAccurate) {
  for (const Variant& variant : Variants()) {
    std::vector<float> x(kSumBlock);
    double worst = 0;
    for (int part = 0; part < 200; ++part) {
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = -static_cast<float>(part * x.size() + i) * (86.0f / 102401);
      std::vector<float> weights(x.size());
      variant.exp_sum(x, 0, 1, weights.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = std::exp(static_cast<double>(x[i]));
        worst = std::max(worst, std::abs(weights[i] / expected - 1));
      }
    }
    EXPECT_LT(worst, 3e-7) << variant.name;
  }
}

TEST(VectorOpsTest, ExpAtTheEdges) {
  for (const Variant& variant : Variants()) {
    const std::vector<float> x = {5, 5 - 85.9f, 5 - 86.1f, -1e30f, -kEndless};
    std::vector<float> weights(x.size());
    EXPECT_EQ(variant.exp_sum(x, 5, 1, weights.data()), 1.0f);
    EXPECT_EQ(weights[0], 1);
    EXPECT_GT(weights[1], 0);
    EXPECT_EQ(weights[2], 0);
    EXPECT_EQ(weights[3], 0);
    EXPECT_EQ(weights[4], 0);
    // With an infinite temperature all possible tokens are equal.
    EXPECT_EQ(variant.exp_sum(x, 5, kEndless, weights.data()), 4.0f);
    EXPECT_EQ(weights[4], 0);
    // With a temperature near 0 only the largest counts.
    EXPECT_EQ(variant.exp_sum(x, 5, 1e-45f, weights.data()), 1.0f);
  }
}

TEST(VectorOpsTest, ExpSumWorksInPlaceAndForEverySize) {
  for (const Variant& variant : Variants()) {
    for (size_t n = 0; n <= 40; ++n) {
      std::vector<float> x = RandomLogits(n, n);
      double expected = 0;
      for (float v : x) expected += std::exp((v - 20.0) / 3);
      EXPECT_NEAR(variant.exp_sum(x, 20, 3, x.data()), expected,
                  1e-5 * expected);
    }
  }
}

TEST(VectorOpsTest, VariantsAgreeToTheBit) {
  const std::vector<float> x = RandomLogits(500, 9);
  std::vector<float> expected(x.size());
  const float sum = Variants()[0].exp_sum(x, 16, 0.7f, expected.data());
  for (const Variant& variant : Variants()) {
    std::vector<float> weights(x.size());
    EXPECT_EQ(variant.exp_sum(x, 16, 0.7f, weights.data()), sum)
        << variant.name;
    EXPECT_EQ(
        std::memcmp(weights.data(), expected.data(), x.size() * sizeof(float)),
        0)
        << variant.name;
  }
}

}  // namespace
}  // namespace sluice::vector_ops
