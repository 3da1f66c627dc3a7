#include "runtime/kernels/expert_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "runtime/kernels/cpu/router.h"
#include "runtime/quant/convert_floats.h"

namespace sluice {
namespace {

std::vector<int32_t> Experts(const std::vector<ExpertChoice>& choices) {
  std::vector<int32_t> experts;
  for (const ExpertChoice& choice : choices) experts.push_back(choice.index);
  return experts;
}

std::vector<ExpertChoice> Choose(const MixtureSpec& mixture,
                                 std::vector<float> logits,
                                 const std::vector<float>& bias = {}) {
  std::vector<ExpertChoice> out(mixture.experts_per_token);
  ChooseExperts(mixture, logits, bias.empty() ? nullptr : bias.data(), out);
  return out;
}

TEST(ExpertChoiceTest, SoftmaxIsOverAllExperts) {
  MixtureSpec mixture = {.experts = 4, .experts_per_token = 2};
  const std::vector<float> logits = {1, 3, 0, 2};
  const float sum = std::exp(-2.0F) + 1 + std::exp(-3.0F) + std::exp(-1.0F);
  auto chosen = Choose(mixture, logits);
  EXPECT_THAT(Experts(chosen), testing::ElementsAre(1, 3));
  EXPECT_FLOAT_EQ(chosen[0].weight, 1 / sum);
  EXPECT_FLOAT_EQ(chosen[1].weight, std::exp(-1.0F) / sum);
  mixture.normalize = true;
  mixture.scale = 3;
  chosen = Choose(mixture, logits);
  EXPECT_FLOAT_EQ(chosen[0].weight, 3 / (1 + std::exp(-1.0F)));
  EXPECT_FLOAT_EQ(chosen[0].weight + chosen[1].weight, 3);
}

TEST(ExpertChoiceTest, SoftmaxMayBeOverTheChosen) {
  const auto chosen = Choose({.experts = 4,
                              .experts_per_token = 2,
                              .router = RouterKind::kChosenSoftmax},
                             {-1, -3, -5, -2});
  EXPECT_THAT(Experts(chosen), testing::ElementsAre(0, 3));
  EXPECT_FLOAT_EQ(chosen[0].weight, 1 / (1 + std::exp(-1.0F)));
  EXPECT_FLOAT_EQ(chosen[0].weight + chosen[1].weight, 1);
}

TEST(ExpertChoiceTest, ABiasOfChoosingIsNoPartOfWeights) {
  const auto chosen = Choose(
      {.experts = 3, .experts_per_token = 1, .router = RouterKind::kSigmoid},
      {2, 1, 0}, {0, 0, 5});
  EXPECT_THAT(Experts(chosen), testing::ElementsAre(2));
  EXPECT_FLOAT_EQ(chosen[0].weight, 0.5F);
}

TEST(ExpertChoiceTest, OfEqualScoresTheFirstAreChosen) {
  const auto chosen =
      Choose({.experts = 5, .experts_per_token = 3}, {1, 7, 1, 1, 1});
  EXPECT_THAT(Experts(chosen), testing::ElementsAre(0, 1, 2));
}

TEST(ExpertChoiceTest, OnlyTheBestGroupsAreChosenFrom) {
  // Groups of three, by the sum of their two best: the second's is greatest,
  // though the first has the best expert.
  const auto chosen = Choose({.experts = 6,
                              .experts_per_token = 2,
                              .router = RouterKind::kSigmoid,
                              .groups = 2,
                              .chosen_groups = 1},
                             {3, -3, -4, 2, -5, 1});
  EXPECT_THAT(Experts(chosen), testing::ElementsAre(3, 5));
}

TEST(ExpertChoiceTest, DifferentExpertsAreChosenEvenOfNoNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto chosen =
      Choose({.experts = 4, .experts_per_token = 3}, {nan, nan, nan, nan});
  EXPECT_THAT(Experts(chosen), testing::ElementsAre(0, 1, 2));
}

TEST(ExpertChoiceTest, WeightsThatAddUpToNothingStay) {
  const auto chosen = Choose({.experts = 2,
                              .experts_per_token = 2,
                              .router = RouterKind::kSigmoid,
                              .normalize = true},
                             {-500, -500});
  EXPECT_EQ(chosen[0].weight, 0);
  EXPECT_EQ(chosen[1].weight, 0);
}

// Logits of a row are the same bits in any company, and near the definition.
TEST(RouterTest, LogitsDependOnTheirRowAlone) {
  constexpr int kRows = 7, kOutputs = 9, kInputs = 77;
  std::vector<float> x(kRows * kInputs), w(kOutputs * kInputs), bias(kOutputs);
  uint32_t state = 1;
  const auto fill = [&](std::vector<float>& values) {
    for (float& v : values) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F;
    }
  };
  fill(x), fill(w), fill(bias);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<std::byte> typed(x.size() * sizeof(float));
    ConvertFloats(x.data(), x.size(), dtype, typed.data());
    std::vector<float> values(x.size());
    ToFloats(typed.data(), x.size(), dtype, values.data());
    std::vector<float> all(kRows * kOutputs);
    RouterLogits(dtype, typed.data(), kRows, kInputs, w.data(), bias.data(),
                 kOutputs, all.data());
    for (int row = 0; row < kRows; ++row) {
      std::vector<float> alone(kOutputs);
      RouterLogits(
          dtype,
          typed.data() + row * kInputs * (dtype == DType::kFloat32 ? 4 : 2), 1,
          kInputs, w.data(), bias.data(), kOutputs, alone.data());
      for (int e = 0; e < kOutputs; ++e) {
        EXPECT_EQ(alone[e], all[row * kOutputs + e]) << row << " " << e;
        double sum = bias[e];
        for (int i = 0; i < kInputs; ++i) {
          sum += double{values[row * kInputs + i]} * w[e * kInputs + i];
        }
        EXPECT_NEAR(alone[e], sum, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
