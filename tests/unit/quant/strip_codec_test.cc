#include "runtime/quant/strip_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/test_paths.h"
#include "tests/unit/kernels/targets.h"

namespace sluice {
namespace {

// Rows of two blocks each, and the numbers that ggml's own package makes of
// them (tests/golden/make_gguf_blocks.py).
struct Golden {
  int32_t n = 0, k = 0;
  std::vector<std::byte> raw;
  std::vector<float> values;
};

Golden ReadGolden(const CodeFormat& format) {
  const std::string path =
      absl::StrCat(TestsDir(), "/golden/gguf_blocks/", format.name, ".bin");
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  Golden golden;
  golden.k = 2 * format.block;
  const size_t row_bytes = format.row_bytes(golden.k);
  golden.n = static_cast<int32_t>(text.size() / (row_bytes + 4 * golden.k));
  golden.raw.resize(golden.n * row_bytes);
  golden.values.resize(static_cast<size_t>(golden.n) * golden.k);
  EXPECT_EQ(text.size(), golden.raw.size() + 4 * golden.values.size()) << path;
  std::memcpy(golden.raw.data(), text.data(), golden.raw.size());
  std::memcpy(golden.values.data(), text.data() + golden.raw.size(),
              4 * golden.values.size());
  if (format.kind == CodeKind::kMxFp4) {
    // The first four rows have scales too large to be kept.
    golden.n -= 4;
    golden.raw.erase(golden.raw.begin(), golden.raw.begin() + 4 * row_bytes);
    golden.values.erase(golden.values.begin(),
                        golden.values.begin() + 4 * golden.k);
  }
  return golden;
}

// The element's bits: a float's, or a bfloat16's in the lower half. No weight
// is -0.
uint32_t Bits(float x, DType dtype) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  if (dtype == DType::kFloat32) return bits;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

void ExpectDecodes(const CodeFormat& format, const Golden& golden, DType dtype,
                   const PanelOrder& order) {
  const size_t element = dtype == DType::kFloat32 ? 4 : 2;
  const int32_t columns =
      (golden.n + order.block - 1) / order.block * order.block;
  const size_t bytes = element * columns * order.padded_k;
  std::vector<std::byte> expected(bytes);
  for (int32_t i = 0; i < golden.n; ++i) {
    for (int32_t j = 0; j < golden.k; ++j) {
      const uint32_t value =
          Bits(golden.values[static_cast<size_t>(i) * golden.k + j], dtype);
      std::memcpy(expected.data() + order.Position(i, j) * element, &value,
                  element);
    }
  }
  ForEachTarget([&](const char* target) {
    std::vector<std::byte> out(bytes, std::byte{0x5a});
    ClearPadding(golden.n, golden.k, dtype, order, out.data());
    for (int32_t column = 0; column < golden.n; column += kStripColumns) {
      const int32_t count = std::min(kStripColumns, golden.n - column);
      // A vector, so that AddressSanitizer sees what lies beyond.
      std::vector<std::byte> strip(StripBytes(format, golden.k));
      const std::byte* rows =
          golden.raw.data() + column * format.row_bytes(golden.k);
      ASSERT_TRUE(
          EncodeStrip(format, rows, count, golden.k, strip.data()).ok());
      DecodeStrip(format, strip.data(), golden.k, dtype, order, column, count,
                  out.data());
    }
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), bytes), 0)
        << format.name << " on " << target << " in blocks of " << order.block
        << " by " << order.interleave << ", " << DTypeName(dtype);
  });
}

TEST(StripCodec, DecodesToTheNumbersOfGgml) {
  for (const CodeFormat& format : CodeFormats()) {
    const Golden golden = ReadGolden(format);
    const int32_t k = golden.k;
    for (const int32_t block : {16, 32, 48, 64, golden.n}) {
      for (const int32_t padded : {k, k + 32}) {
        ExpectDecodes(format, golden, DType::kFloat32, {block, 1, padded});
        ExpectDecodes(format, golden, DType::kBFloat16, {block, 1, padded});
        ExpectDecodes(format, golden, DType::kBFloat16, {block, 2, padded});
      }
    }
  }
}

TEST(StripCodec, TakesTheBytesOfTheCheckpoint) {
  const struct {
    const char* name;
    double bits;  // of a weight
  } cases[] = {{"Q4_0", 4.5},    {"Q4_1", 5},     {"Q5_0", 5.5},
               {"Q5_1", 6},      {"Q8_0", 8.5},   {"Q2_K", 2.625},
               {"Q3_K", 3.4375}, {"Q4_K", 4.5},   {"Q5_K", 5.5},
               {"Q6_K", 6.5625}, {"IQ4_NL", 4.5}, {"MXFP4", 4.25}};
  ASSERT_EQ(std::size(cases), CodeFormats().size());
  for (const auto& c : cases) {
    const CodeFormat* const format = FindCodeFormat(c.name);
    ASSERT_NE(format, nullptr) << c.name;
    EXPECT_EQ(static_cast<double>(StripBytes(*format, 4096)),
              16 * 4096 * c.bits / 8)
        << c.name;
  }
  EXPECT_EQ(FindCodeFormat("Q4_2"), nullptr);
}

TEST(StripCodec, RefusesScalesThatAreNoNumbers) {
  for (const CodeFormat& format : CodeFormats()) {
    const Golden golden = ReadGolden(format);
    std::vector<std::byte> strip(StripBytes(format, golden.k));
    std::vector<std::byte> raw = golden.raw;
    // All ones are the exponent of NaN wherever a scale has it.
    std::fill_n(raw.begin() + format.block_bytes(), format.block_bytes(),
                std::byte{0xff});
    EXPECT_TRUE(
        EncodeStrip(format, golden.raw.data(), 2, golden.k, strip.data()).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(
        EncodeStrip(format, raw.data(), 2, golden.k, strip.data())))
        << format.name;
  }
}

}  // namespace
}  // namespace sluice
