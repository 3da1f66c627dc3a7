#include "runtime/kernels/cpu/vector_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/float16.h"
#include "runtime/quant/convert_floats.h"
#include "tests/unit/kernels/targets.h"

namespace sluice {
namespace {

constexpr int kLengths[] = {1, 3, 4, 15, 16, 17, 36, 64, 100, 768};

std::vector<float> Random(int n, uint32_t seed, float range) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-range, range);
  std::vector<float> out(n);
  for (float& x : out) x = uniform(random);
  return out;
}

// Rounds to nearest even; NaN stays NaN.
uint16_t RoundToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

double Reference(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return x > 0 ? x : 0;
  }
  return 0;
}

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu,
                                       Activation::kGeluTanh,
                                       Activation::kRelu};

TEST(VectorOpsTest, Activations) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const Activation activation : kActivations) {
      SCOPED_TRACE(static_cast<int>(activation));
      std::vector<float> x;
      for (float v = -12; v <= 12; v += 0.0137f) x.push_back(v);
      for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-8f, 87.0f, -87.0f,
                      -104.0f, 1e4f, -1e4f, 1e38f, -1e38f}) {
        x.push_back(v);
      }
      const int n = static_cast<int>(x.size());
      std::vector<float> out(n), gated(n);
      const std::vector<float> up = Random(n, 3, 2);
      PlainTile(activation, x.data(), 1, n, nullptr, DType::kFloat32,
                out.data(), n);
      std::vector<float> both = x;
      both.insert(both.end(), up.begin(), up.end());
      GatedTile(activation, both.data(), 1, 2 * n, nullptr, DType::kFloat32,
                gated.data(), n);
      for (int i = 0; i < n; ++i) {
        const double want = Reference(activation, x[i]);
        // Where GELU vanishes, 1 + erf cancels, in torch as here.
        const double slack = 1e-6 * std::abs(want) + 2e-7 * std::abs(x[i]);
        ASSERT_NEAR(out[i], want, slack) << x[i];
        ASSERT_NEAR(gated[i], want * up[i], 3 * slack + 1e-38) << x[i];
      }
    }
  });
}

// gpt-oss's activation, where it is clamped and where it is not.
TEST(VectorOpsTest, ClampedGates) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const int n : {1, 7, 16, 37, 400}) {
      constexpr int kRows = 2;
      const int stride = n + 3;
      const auto tile = Random(kRows * 2 * n, 1, 12),
                 bias = Random(2 * n, 2, 1);
      for (const ClampedGate gate :
           {ClampedGate{7, 1.702F, 1}, {0.75F, 1.3F, 1}, {0, 1, 0}}) {
        std::vector<float> out(kRows * stride, -5);
        ClampedTile(gate, tile.data(), kRows, 2 * n, bias.data(),
                    DType::kFloat32, out.data(), stride);
        for (int row = 0; row < kRows; ++row) {
          for (int i = 0; i < n; ++i) {
            double g = tile[row * 2 * n + i] + bias[i];
            double u = tile[row * 2 * n + n + i] + bias[n + i];
            if (gate.limit > 0) {
              g = std::min<double>(g, gate.limit);
              u = std::clamp<double>(u, -gate.limit, gate.limit);
            }
            const double want = g / (1 + std::exp(-gate.slope * g));
            ASSERT_NEAR(out[row * stride + i], want * (u + gate.up_offset),
                        3e-6 * (1 + std::abs(g * u)));
          }
          EXPECT_EQ(out[row * stride + n], -5);
        }
      }
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const auto& tile : {std::array{nan, 1.0F}, {1.0F, nan}}) {
      float out = 0;
      ClampedTile({7, 1.702F, 1}, tile.data(), 1, 2, nullptr, DType::kFloat32,
                  &out, 1);
      EXPECT_TRUE(std::isnan(out));
    }
  });
}

TEST(VectorOpsTest, ActivationsKeepNan) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const Activation activation : kActivations) {
      float out = 0;
      PlainTile(activation, &nan, 1, 1, nullptr, DType::kFloat32, &out, 1);
      EXPECT_TRUE(std::isnan(out)) << static_cast<int>(activation);
      uint16_t bits = 0;
      PlainTile(activation, &nan, 1, 1, nullptr, DType::kBFloat16, &bits, 1);
      ToFloats(&bits, 1, DType::kBFloat16, &out);
      EXPECT_TRUE(std::isnan(out)) << static_cast<int>(activation);
    }
  });
}

TEST(VectorOpsTest, TilesWithBiasesAndStrides) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const int n : {1, 7, 16, 37, 64}) {
      constexpr int kRows = 3;
      const int stride = n + 5;
      const auto tile = Random(kRows * 2 * n, 1, 3), bias = Random(2 * n, 2, 1),
                 x = Random(kRows * stride, 3, 1);
      std::vector<float> gated = x, plain = x, added = x, stored = x;
      GatedTile(Activation::kSilu, tile.data(), kRows, 2 * n, bias.data(),
                DType::kFloat32, gated.data(), stride);
      PlainTile(Activation::kSilu, tile.data(), kRows, n, bias.data(),
                DType::kFloat32, plain.data(), stride);
      AddTile(tile.data(), kRows, n, bias.data(), added.data(), stride);
      StoreTile(tile.data(), kRows, n, bias.data(), stored.data(), stride);
      for (int row = 0; row < kRows; ++row) {
        for (int i = 0; i < stride; ++i) {
          const int at = row * stride + i;
          if (i >= n) {
            EXPECT_EQ(gated[at], x[at]);
            EXPECT_EQ(plain[at], x[at]);
            EXPECT_EQ(added[at], x[at]);
            EXPECT_EQ(stored[at], x[at]);
            continue;
          }
          const float biased = tile[row * n + i] + bias[i];
          EXPECT_EQ(stored[at], biased);
          EXPECT_EQ(added[at], x[at] + biased);
          EXPECT_NEAR(plain[at], Reference(Activation::kSilu, biased), 2e-6);
          EXPECT_NEAR(
              gated[at],
              Reference(Activation::kSilu, tile[row * 2 * n + i] + bias[i]) *
                  (tile[row * 2 * n + n + i] + bias[n + i]),
              6e-6);
        }
      }
    }
  });
}

TEST(VectorOpsTest, Norms) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const int n : kLengths) {
      auto x = Random(n, n, 5);
      for (float& v : x) v += 3;
      const auto w = Random(n, 11, 2), b = Random(n, 12, 2);
      double sum = 0, squares = 0;
      for (const float v : x) {
        sum += v;
        squares += static_cast<double>(v) * v;
      }
      const double mean = sum / n;
      double variance = 0;
      for (const float v : x) variance += (v - mean) * (v - mean);
      variance /= n;
      std::vector<float> rms(n), layer(n), bare(n);
      RmsNorm(x.data(), w.data(), n, 1e-5f, DType::kFloat32, rms.data());
      LayerNorm(x.data(), w.data(), b.data(), n, 1e-5f, DType::kFloat32,
                layer.data());
      LayerNorm(x.data(), nullptr, nullptr, n, 1e-5f, DType::kFloat32,
                bare.data());
      for (int i = 0; i < n; ++i) {
        const double normal = (x[i] - mean) / std::sqrt(variance + 1e-5);
        EXPECT_NEAR(rms[i], x[i] / std::sqrt(squares / n + 1e-5) * w[i], 1e-5);
        EXPECT_NEAR(bare[i], normal, 1e-5) << n;
        EXPECT_NEAR(layer[i], normal * w[i] + b[i], 1e-5) << n;
      }
      // The result may overwrite the input.
      std::vector<float> same = x;
      LayerNorm(same.data(), w.data(), b.data(), n, 1e-5f, DType::kFloat32,
                same.data());
      EXPECT_EQ(same, layer);
      std::vector<uint16_t> bits(n), rounded(n);
      RmsNorm(x.data(), w.data(), n, 1e-5f, DType::kBFloat16, bits.data());
      FloatToBf16(rms.data(), n, rounded.data());
      EXPECT_EQ(bits, rounded);
    }
  });
}

TEST(VectorOpsTest, ScaledAndCappedRows) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const int n : kLengths) {
      const auto x = Random(n, n, 5), w = Random(n, 11, 2);
      double squares = 0;
      for (const float v : x) squares += static_cast<double>(v) * v;
      EXPECT_NEAR(SumOfSquares(x.data(), n), squares, 1e-5 * (1 + squares));
      std::vector<float> scaled = x, capped = x;
      ScaleRow(scaled.data(), w.data(), n, 0.3F, scaled.data());
      CapRow(2.5F, n, capped.data());
      for (int i = 0; i < n; ++i) {
        EXPECT_NEAR(scaled[i], 0.3 * x[i] * w[i], 1e-5);
        EXPECT_NEAR(capped[i], 2.5 * std::tanh(x[i] / 2.5), 1e-6);
      }
    }
    float extremes[] = {std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity(), 1e30F,
                        std::numeric_limits<float>::quiet_NaN()};
    CapRow(30, 4, extremes);
    EXPECT_EQ(extremes[0], 30);
    EXPECT_EQ(extremes[1], -30);
    EXPECT_EQ(extremes[2], 30);
    EXPECT_TRUE(std::isnan(extremes[3]));
  });
}

TEST(VectorOpsTest, Bf16RoundsToNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<uint32_t, uint16_t>> cases = {
      {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81},
      {0x3f818000, 0x3f82}, {0x3f817fff, 0x3f81}, {0xbf818000, 0xbf82},
      {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
      {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x00018000, 0x0002},
      {0x7fc00000, 0x7fc0}, {0x7f800001, 0x7fc0}, {0xffffffff, 0x7fc0}};
  std::vector<float> x;
  for (const auto& c : cases) {
    float v;
    std::memcpy(&v, &c.first, 4);
    x.push_back(v);
    EXPECT_EQ(RoundToBf16(v), c.second) << std::hex << c.first;
  }
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    std::vector<uint16_t> out(x.size());
    FloatToBf16(x.data(), x.size(), out.data());
    std::vector<float> back(x.size());
    ToFloats(out.data(), x.size(), DType::kBFloat16, back.data());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(out[i], cases[i].second) << std::hex << cases[i].first;
    }
    EXPECT_EQ(back[7], infinity);
    EXPECT_TRUE(std::isnan(back[14]));
  });
}

TEST(VectorOpsTest, ConvertsToAndFromDTypes) {
  // There are more values than one call converts, and some that float16 can't
  // hold.
  std::vector<float> x = Random(70'001, 5, 100);
  x[3] = 1e30F;
  x[4] = -1e-30F;
  x[70'000] = std::numeric_limits<float>::infinity();
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    std::vector<std::byte> narrow(x.size() * 4);
    ConvertFloats(x.data(), static_cast<int64_t>(x.size()), dtype,
                  narrow.data());
    std::vector<float> back(x.size());
    ToFloats(narrow.data(), static_cast<int64_t>(x.size()), dtype, back.data());
    std::vector<float> sums(x.size(), 1.0F);
    AddRowOf(dtype, narrow.data(), static_cast<int32_t>(x.size()), sums.data());
    for (size_t i = 0; i < x.size(); ++i) {
      float want = x[i];
      if (dtype == DType::kBFloat16) {
        want = BFloat16ToFloat(RoundToBf16(x[i]));
      } else if (dtype == DType::kFloat16) {
        want = Float16ToFloat(FloatToFloat16(x[i]));
      }
      ASSERT_EQ(back[i], want) << i;
      ASSERT_EQ(sums[i], 1 + want) << i;
    }
  }
}

TEST(VectorOpsTest, RowSums) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const int n : kLengths) {
      const auto x = Random(n, 1, 1), y = Random(n, 2, 1);
      std::vector<uint16_t> bits(n);
      FloatToBf16(y.data(), n, bits.data());
      std::vector<float> plain = x, wide = x;
      AddRow(plain.data(), y.data(), n);
      AddBf16Row(wide.data(), bits.data(), n);
      for (int i = 0; i < n; ++i) {
        EXPECT_EQ(plain[i], x[i] + y[i]);
        EXPECT_EQ(wide[i], x[i] + BFloat16ToFloat(bits[i]));
      }
    }
  });
}

TEST(VectorOpsTest, RotatesPairs) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const auto& [half, n] : std::vector<std::pair<int, int>>{
             {0, 7}, {1, 2}, {5, 10}, {6, 15}, {16, 32}, {32, 64}, {20, 80}}) {
      const auto x = Random(n, 5, 1);
      std::vector<float> cos(half), sin(half), out(n);
      for (int i = 0; i < half; ++i) {
        cos[i] = std::cos(0.3f * (i + 1));
        sin[i] = std::sin(0.3f * (i + 1));
      }
      RotateHead(x.data(), cos.data(), sin.data(), half, n, 0.5f, out.data());
      for (int i = 0; i < half; ++i) {
        EXPECT_NEAR(out[i], 0.5f * (x[i] * cos[i] - x[i + half] * sin[i]),
                    1e-6);
        EXPECT_NEAR(out[i + half],
                    0.5f * (x[i + half] * cos[i] + x[i] * sin[i]), 1e-6);
      }
      for (int i = 2 * half; i < n; ++i) EXPECT_EQ(out[i], 0.5f * x[i]);
    }
  });
}

}  // namespace
}  // namespace sluice
