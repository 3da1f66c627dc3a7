// Weights of ScaledCodes are the products that the formats' definition names,
// to the bit, on every instruction set.

#include "runtime/quant/scaled_strip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/float16.h"
#include "runtime/quant/strip_codec.h"
#include "tests/unit/kernels/targets.h"

namespace sluice {
namespace {

using Code = ScaledCodes::Code;

float FromBFloat16Of(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  bits += 0x7fff + (bits >> 16 & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

float RoundTo(DType dtype, float x) {
  if (dtype == DType::kFloat32) return x;
  return dtype == DType::kBFloat16 ? FromBFloat16Of(x)
                                   : Float16ToFloat(FloatToFloat16(x));
}

// A sign, 4 bits of exponent with bias 7, 3 bits of mantissa.
float E4M3(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double number = exponent == 0 ? std::ldexp(mantissa, -9)
                                      : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(code < 128 ? number : -number);
}

// Rows, and the numbers that they stand for.
struct Rows {
  int32_t n = 0, k = 0;
  std::vector<std::byte> raw;
  std::vector<float> values;
};

class RowMaker {
 public:
  RowMaker(const CodeFormat& format, int32_t n, int32_t k)
      : format_(format), scaled_(*format.scaled), random_(7) {
    rows_.n = n;
    rows_.k = k;
    rows_.raw.resize(n * format.row_bytes(k));
    for (int32_t i = 0; scaled_.any_order && i < k; ++i) {
      order_.push_back(static_cast<uint8_t>(random_() % scaled_.groups(k)));
    }
    for (int32_t row = 0; row < n; ++row) Add(row);
  }
  const Rows& rows() const { return rows_; }

 private:
  // Scales of all sizes: ordinary and negative ones, and such that products
  // are subnormal or too large.
  float AnyScale() {
    constexpr int kPowers[] = {-8, -10, -12, -20, -24, 12, 0, -7};
    const float scale =
        std::ldexp(1.0f + static_cast<float>(random_() % 4096) / 4096,
                   kPowers[random_() % std::size(kPowers)]);
    const float stored = RoundTo(scaled_.scale, scale);
    return random_() % 4 == 0 ? -stored : stored;
  }

  void Add(int32_t row) {
    const int32_t k = rows_.k;
    const int32_t groups = scaled_.groups(k);
    std::byte* next = rows_.raw.data() + row * format_.row_bytes(k);
    std::vector<uint8_t> codes(k);
    for (int32_t i = 0; i < k; ++i) {
      codes[i] = static_cast<uint8_t>(random_() >> 9);
      if (format_.bits == 4) codes[i] &= 15;
      if (scaled_.code == Code::kE4M3) {
        // Each code comes, NaN apart.
        codes[i] = static_cast<uint8_t>(i + row);
        if ((codes[i] & 0x7f) == 0x7f) codes[i] = 0x80;
      }
    }
    for (int32_t i = 0; i < k; ++i) {
      if (format_.bits == 8) {
        *next++ = std::byte(codes[i]);
      } else if (i % 2 == 0) {
        *next++ = std::byte(codes[i] | codes[i + 1] << 4);
      }
    }
    if (!scaled_.shared || row % kStripColumns == 0) {
      scales_.resize(groups);
      for (float& scale : scales_) scale = AnyScale();
    }
    for (const float scale : scales_) {
      const size_t bytes = scaled_.scale_bytes();
      const uint16_t half =
          scaled_.scale == DType::kBFloat16
              ? static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16)
              : FloatToFloat16(scale);
      std::memcpy(next, bytes == 4 ? static_cast<const void*>(&scale) : &half,
                  bytes);
      next += bytes;
    }
    std::vector<int> zeros(groups);
    for (int& zero : zeros) {
      if (scaled_.zero_bits == 0) continue;
      const int bits = scaled_.zero_bits;
      zero = static_cast<int>(random_() % (1u << bits)) - (1 << (bits - 1));
      *next++ = static_cast<std::byte>(zero);
    }
    for (const uint8_t group : order_) *next++ = std::byte(group);
    for (int32_t i = 0; i < k; ++i) {
      const int32_t group = scaled_.any_order ? order_[i] : i / (k / groups);
      const float number =
          scaled_.code == Code::kE4M3
              ? E4M3(codes[i])
              : static_cast<float>(codes[i] - (1 << (format_.bits - 1)) -
                                   zeros[group]);
      rows_.values.push_back(RoundTo(scaled_.scale, number * scales_[group]));
    }
  }

  const CodeFormat& format_;
  const ScaledCodes& scaled_;
  std::minstd_rand random_;
  std::vector<uint8_t> order_;
  std::vector<float> scales_;
  Rows rows_;
};

void ExpectDecodes(const CodeFormat& format, const Rows& rows, DType dtype,
                   const PanelOrder& order) {
  const size_t element = dtype == DType::kFloat32 ? 4 : 2;
  const int32_t columns =
      (rows.n + order.block - 1) / order.block * order.block;
  std::vector<std::byte> expected(element * columns * order.padded_k);
  for (int32_t i = 0; i < rows.n; ++i) {
    for (int32_t j = 0; j < rows.k; ++j) {
      const float value = rows.values[static_cast<size_t>(i) * rows.k + j];
      const uint32_t bits =
          dtype == DType::kFloat32
              ? std::bit_cast<uint32_t>(value)
              : std::bit_cast<uint32_t>(FromBFloat16Of(value)) >> 16;
      std::memcpy(expected.data() + order.Position(i, j) * element, &bits,
                  element);
    }
  }
  // Vectors, so that AddressSanitizer sees what lies beyond.
  std::vector<std::vector<std::byte>> strips;
  const std::byte* const groups = GroupsOfRow(format, rows.raw.data(), rows.k);
  for (int32_t column = 0; column < rows.n; column += kStripColumns) {
    strips.emplace_back(StripBytes(format, rows.k));
    ASSERT_TRUE(EncodeStrip(format,
                            rows.raw.data() + column * format.row_bytes(rows.k),
                            std::min(kStripColumns, rows.n - column), rows.k,
                            strips.back().data(), groups)
                    .ok());
  }
  ForEachTarget([&](const char* target) {
    std::vector<std::byte> out(expected.size(), std::byte{0x5a});
    ClearPadding(rows.n, rows.k, dtype, order, out.data());
    for (size_t i = 0; i < strips.size(); ++i) {
      const auto column = static_cast<int32_t>(i) * kStripColumns;
      DecodeStrip(format, strips[i].data(), rows.k, dtype, order, column,
                  std::min(kStripColumns, rows.n - column), out.data(), groups);
    }
    ASSERT_EQ(out, expected)
        << format.name << " on " << target << " in blocks of " << order.block
        << " by " << order.interleave << ", " << DTypeName(dtype);
  });
}

TEST(ScaledStrip, DecodesToTheProducts) {
  for (const CodeFormat& format : ScaledFormats()) {
    SCOPED_TRACE(std::string(format.name));
    // A last group that is cut, where inputs are in any order.
    const int32_t k = format.scaled->any_order ? 264 : 256;
    const Rows rows = RowMaker(format, 39, k).rows();
    for (const int32_t block : {16, 39}) {
      ExpectDecodes(format, rows, DType::kFloat32, {block, 1, k});
      ExpectDecodes(format, rows, DType::kBFloat16, {block, 1, k});
      ExpectDecodes(format, rows, DType::kBFloat16, {block, 2, k + 32});
    }
  }
}

TEST(ScaledStrip, TakesTheBytesOfTheCheckpoint) {
  const struct {
    const char* name;
    double bits;  // of a weight in the checkpoint
  } cases[] = {{"E4M3_F32", 8},
               {"E4M3_F32_B128", 8},
               {"INT8_BF16", 8},
               {"INT4_BF16_G32", 4.5},
               {"INT4_BF16_G128", 4.125},
               {"INT4_F16_G32_Z4", 4.625},
               {"INT4_F16_G128_Z4", 4.15625},
               {"INT4_F16_G128_Z4_ANY", 4.15625},
               {"INT8_F16_G128_Z8", 8.1875}};
  for (const auto& c : cases) {
    const CodeFormat* const format = FindCodeFormat(c.name);
    ASSERT_NE(format, nullptr) << c.name;
    const auto bytes = static_cast<double>(StripBytes(*format, 4096));
    EXPECT_GE(bytes, 16 * 4096 * c.bits / 8) << c.name;
    EXPECT_LE(bytes, 1.002 * 16 * 4096 * c.bits / 8) << c.name;
  }
}

TEST(ScaledStrip, EachFormatHasItsName) {
  for (const CodeFormat& format : ScaledFormats()) {
    EXPECT_EQ(FindCodeFormat(format.name), &format);
    EXPECT_EQ(FindScaledFormat(*format.scaled), &format);
  }
  EXPECT_FALSE(FindCodeFormat("INT4_F16_G32_ANY")->Fits(32 * 257));
  EXPECT_TRUE(FindCodeFormat("INT4_F16_G32_ANY")->Fits(32 * 256));
}

TEST(ScaledStrip, RefusesWhatIsNoNumber) {
  const CodeFormat& format = *FindCodeFormat("E4M3_F32");
  const std::vector<std::byte> good = RowMaker(format, 2, 64).rows().raw;
  std::vector<std::byte> strip(StripBytes(format, 64));
  std::vector<std::byte> bad = good;
  bad[64 + 4 + 9] = std::byte{0xff};
  EXPECT_EQ(EncodeStrip(format, bad.data(), 2, 64, strip.data()).message(),
            "row 1 of the 2 has NaN as its weight 9");
  bad = good;
  const float infinite = HUGE_VALF;
  std::memcpy(bad.data() + 64, &infinite, 4);
  EXPECT_EQ(EncodeStrip(format, bad.data(), 2, 64, strip.data()).message(),
            "row 0 of the 2 has a scale that is no number");
}

TEST(ScaledStrip, RefusesAnOrderOfItsOwn) {
  const CodeFormat& format = *FindCodeFormat("INT4_F16_G32_ANY");
  const std::vector<std::byte> rows = RowMaker(format, 2, 64).rows().raw;
  std::vector<std::byte> strip(StripBytes(format, 64));
  std::vector<std::byte> groups(rows.end() - 64, rows.end());
  EXPECT_TRUE(
      EncodeStrip(format, rows.data(), 2, 64, strip.data(), groups.data())
          .ok());
  groups[5] ^= std::byte{1};
  EXPECT_EQ(EncodeStrip(format, rows.data(), 2, 64, strip.data(), groups.data())
                .message(),
            "row 0 of the 2 has its inputs in an order of its own");
}

}  // namespace
}  // namespace sluice
