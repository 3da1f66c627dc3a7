#include "runtime/model/checkpoint/dummy_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace sluice
