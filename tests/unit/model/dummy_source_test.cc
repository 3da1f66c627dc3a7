#include "runtime/model/checkpoint/dummy_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runtime/model/code_format.h"
#include "runtime/quant/scaled_strip.h"
#include "runtime/quant/strip_codec.h"
#include "tests/unit/kernels/targets.h"

namespace sluice {
namespace {

uint32_t Mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

TensorRef Matrix(const std::string& name, int64_t rows, int64_t cols) {
  TensorRef ref;
  ref.name = name;
  ref.role = TensorRole::kQWeight;
  ref.shape = {rows, cols};
  return ref;
}

TEST(DummySourceTest, NumbersAreTheSameOnAllMachines) {
  for (const int64_t cols : {1, 7, 16, 37, 4096}) {
    const TensorRef ref = Matrix("a", 3, cols);
    const uint32_t seed = (2166136261u ^ 'a') * 16777619u;
    std::vector<float> wanted;
    const float scale =
        1.0f / std::sqrt(static_cast<float>(cols)) * std::sqrt(3.0f) * 0x1p-31f;
    for (uint32_t row = 0; row < 3; ++row) {
      const uint32_t base = Mix(seed + row * 0x9e3779b9u);
      for (uint32_t col = 0; col < cols; ++col) {
        const auto bits = static_cast<int32_t>(Mix(base ^ col));
        wanted.push_back(static_cast<float>(bits) * scale);
      }
    }
    ForEachTarget([&](const char* target) {
      std::vector<float> numbers(static_cast<size_t>(3 * cols) + 1, 9);
      ASSERT_TRUE(DummySource().ReadRows(ref, 0, 3, numbers.data()).ok());
      EXPECT_EQ(numbers.back(), 9) << target;
      numbers.pop_back();
      EXPECT_EQ(numbers, wanted) << target << " " << cols;
    });
  }
}

TEST(DummySourceTest, RowsAreTheSameInAnyParts) {
  const TensorRef ref = Matrix("model.layers.0.weight", 5, 19);
  std::vector<float> whole(5 * 19), parts(5 * 19);
  ASSERT_TRUE(DummySource().ReadRows(ref, 0, 5, whole.data()).ok());
  ASSERT_TRUE(DummySource().ReadRows(ref, 0, 2, parts.data()).ok());
  ASSERT_TRUE(DummySource().ReadRows(ref, 2, 5, parts.data() + 2 * 19).ok());
  EXPECT_EQ(whole, parts);
}

TEST(DummySourceTest, DeviationKeepsActivationsOfOrderOne) {
  constexpr int64_t kCols = 1024;
  const TensorRef ref = Matrix("b", 64, kCols);
  std::vector<float> x(64 * kCols);
  ASSERT_TRUE(DummySource().ReadRows(ref, 0, 64, x.data()).ok());
  double sum = 0, squares = 0;
  for (const float v : x) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  EXPECT_NEAR(squares / 64, 1, 0.02);  // the norm of a row
  EXPECT_NEAR(sum / static_cast<double>(x.size()), 0, 1e-3);
}

// Codes are made up, too, of every format.
TEST(DummySourceTest, CodesArePackedLikeACheckpoints) {
  for (const CodeFormat& format : ScaledFormats()) {
    const TensorRef ref = Matrix("a", 20, 256);
    std::vector<std::byte> rows(20 * format.row_bytes(256));
    ASSERT_TRUE(DummySource().ReadCodes(ref, format, 0, 20, rows.data()).ok());
    std::vector<std::byte> strip(StripBytes(format, 256));
    const std::byte* const groups = GroupsOfRow(format, rows.data(), 256);
    EXPECT_TRUE(
        EncodeStrip(format, rows.data(), 16, 256, strip.data(), groups).ok())
        << format.name;
    std::vector<float> numbers(16 * 256);
    DecodeStrip(format, strip.data(), 256, DType::kFloat32, {16, 1, 256}, 0, 16,
                numbers.data(), groups);
    double squares = 0;
    for (const float x : numbers) squares += x * x;
    EXPECT_NEAR(std::sqrt(squares / 16 / 256), 1.0 / 16, 0.03) << format.name;
  }
}

}  // namespace
}  // namespace sluice
