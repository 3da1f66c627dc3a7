#include "runtime/quant/panel_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/quant/group_codec.h"
#include "tests/unit/kernels/targets.h"
#include "tests/unit/quant/dequantize_code.h"

namespace sluice {
namespace {

struct Case {
  int32_t n, k;
  DType dtype;
  PanelOrder order;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& [n, k] : {std::pair{1, 1},
                             {3, 5},
                             {16, 2},
                             {37, 45},
                             {64, 64},
                             {72, 103},
                             {100, 33},
                             {128, 130},
                             {128, 65},
                             {200, 31},
                             {256, 7}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int32_t block : {16, 32, 48, 64, 128, n}) {
        cases.push_back({n, k, dtype, {block, 1, k}});
        cases.push_back({n, k, dtype, {block, 1, (k + 15) / 16 * 16}});
        if (dtype == DType::kBFloat16) {
          cases.push_back({n, k, dtype, {block, 2, (k + 31) / 32 * 32}});
          cases.push_back({n, k, dtype, {block, 2, (k + 1) / 2 * 2}});
        }
      }
    }
  }
  return cases;
}

std::vector<float> Weights(int32_t n, int32_t k) {
  std::mt19937 random(n * 1000 + k);
  std::normal_distribution<float> normal(0.01f, 0.3f);
  std::vector<float> rows(static_cast<size_t>(n) * k);
  for (float& x : rows) x = normal(random);
  return rows;
}

// The element's bits: a float's, or a bfloat16's in the lower half.
uint32_t Bits(float x, DType dtype) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (dtype == DType::kFloat32) return bits;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

TEST(PanelCodec, DecodesWhatGroupsSayInTheOrderAskedFor) {
  for (const Case& c : Cases()) {
    const std::vector<float> rows = Weights(c.n, c.k);
    const float unit = *ChooseQuantUnit(rows.data(), rows.size());
    for (const int bits : {4, 8}) {
      SCOPED_TRACE(testing::Message()
                   << c.n << " x " << c.k << " " << DTypeName(c.dtype)
                   << " in blocks of " << c.order.block << " by "
                   << c.order.interleave << " padded to " << c.order.padded_k
                   << ", " << bits << " bits");
      const PanelCodec codec(c.n, c.k, bits, c.dtype, c.order);
      const size_t element = c.dtype == DType::kFloat32 ? 4 : 2;
      const int32_t columns =
          (c.n + c.order.block - 1) / c.order.block * c.order.block;
      ASSERT_EQ(codec.decoded_bytes(),
                element * columns * static_cast<size_t>(c.order.padded_k));
      ASSERT_EQ(codec.encoded_bytes() % 64, 0u);

      // The expected elements are computed by groups, one at a time.
      std::vector<std::byte> expected(codec.decoded_bytes());
      for (int32_t first = 0; first < c.n; first += kQuantGroup) {
        const int32_t size = std::min(kQuantGroup, c.n - first);
        std::vector<uint8_t> codes(static_cast<size_t>(size) * c.k);
        std::vector<GroupParams> params(c.k);
        QuantizeGroups(rows.data() + static_cast<size_t>(first) * c.k, c.k,
                       size, c.k, bits, unit, codes.data(), params.data());
        for (int32_t i = 0; i < size; ++i) {
          for (int32_t k = 0; k < c.k; ++k) {
            const uint32_t value = Bits(
                DequantizeCode(params[k], unit, codes[i * c.k + k]), c.dtype);
            std::memcpy(
                expected.data() + c.order.Position(first + i, k) * element,
                &value, element);
          }
        }
      }
      const std::byte kGuard{0x5a};
      // Vectors, so that AddressSanitizer sees what lies beyond.
      std::vector<std::byte> encoded(codec.encoded_bytes(), kGuard);
      ASSERT_TRUE(codec.Encode(rows.data(), encoded.data()).ok());
      ForEachTarget([&](const char* target) {
        std::vector<std::byte> out(codec.decoded_bytes() + 64, kGuard);
        codec.Decode(encoded.data(), out.data());
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), expected.size()), 0)
            << target;
        for (size_t i = expected.size(); i < out.size(); ++i) {
          ASSERT_EQ(out[i], kGuard) << target << " writes beyond its end";
        }
      });
    }
  }
}

TEST(PanelCodec, TakesTheBytesItPromises) {
  // 4 bits and, per 64 of them, two float16; and the header.
  const PanelOrder order = {64, 2, 2048};
  const PanelCodec int4(128, 2048, 4, DType::kBFloat16, order);
  EXPECT_EQ(int4.encoded_bytes(), 128 * 2048 * 9 / 16 + 64);
  const PanelCodec int8(128, 2048, 8, DType::kBFloat16, order);
  EXPECT_EQ(int8.encoded_bytes(), 128 * 2048 * 17 / 16 + 64);
}

TEST(PanelCodec, RefusesWhatIsNoWeight) {
  const PanelCodec codec(5, 7, 4, DType::kFloat32, {5, 1, 7});
  std::vector<float> rows(35, 0.5f);
  std::vector<std::byte> out(codec.encoded_bytes());
  EXPECT_TRUE(codec.Encode(rows.data(), out.data()).ok());
  rows[34] = NAN;
  EXPECT_TRUE(absl::IsInvalidArgument(codec.Encode(rows.data(), out.data())));
}

}  // namespace
}  // namespace sluice
