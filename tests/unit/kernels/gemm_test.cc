#include "runtime/kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/kernels/cpu/vector_ops.h"

namespace sluice {
namespace {

struct Shape {
  int32_t n, k;
};

// A matrix with its input rows, in a dtype.
class Fixture {
 public:
  Fixture(DType dtype, Shape shape, int threads, int max_rows)
      : shape_(shape),
        pool_(threads),
        budget_(Tier::kHost, uint64_t{1} << 30),
        w_(static_cast<size_t>(shape.n) * shape.k),
        a_(static_cast<size_t>(max_rows) * shape.k) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& x : w_) x = uniform(random);
    for (float& x : a_) x = uniform(random);
    auto engine = GemmEngine::Create(dtype, &pool_);
    status_ = engine.status();
    if (!status_.ok()) return;
    engine_ = *std::move(engine);
    auto matrix = engine_->Allocate("test", shape.n, shape.k, &budget_);
    status_ = matrix.status();
    if (!status_.ok()) return;
    matrix_ = *std::move(matrix);
    for (int p = 0; p < matrix_.num_panels(); ++p) {
      status_.Update(engine_->Pack(
          matrix_, p, w_.data() + matrix_.panel_begin(p) * shape.k, 0));
    }
    if (dtype == DType::kBFloat16) {
      bits_.resize(a_.size());
      FloatToBf16(a_.data(), a_.size(), bits_.data());
      // What the product sees.
      Bf16ToFloat(bits_.data(), a_.size(), a_.data());
      std::vector<uint16_t> w(w_.size());
      FloatToBf16(w_.data(), w_.size(), w.data());
      Bf16ToFloat(w.data(), w_.size(), w_.data());
    }
  }

  // Rows [first, first + rows), copied to the front of padded memory.
  std::vector<float> Multiply(int32_t first, int32_t rows) {
    const size_t element = bits_.empty() ? 4 : 2;
    const auto* from = bits_.empty()
                           ? reinterpret_cast<const std::byte*>(a_.data())
                           : reinterpret_cast<const std::byte*>(bits_.data());
    std::vector<std::byte> input(GemmEngine::ReadableRows(rows) * shape_.k *
                                 element);
    std::memcpy(input.data(), from + first * shape_.k * element,
                rows * shape_.k * element);
    std::vector<float> out(static_cast<size_t>(rows) * shape_.n, NAN);
    const absl::Status status = engine_->Multiply(
        matrix_, input.data(), rows,
        [&](int32_t row, int32_t count, int32_t col, int32_t cols,
            float* tile) {
          for (int32_t i = 0; i < count; ++i) {
            std::memcpy(out.data() + (row + i) * shape_.n + col,
                        tile + i * cols, cols * sizeof(float));
          }
        });
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  const absl::Status& status() const { return status_; }
  const std::vector<float>& a() const { return a_; }
  const std::vector<float>& w() const { return w_; }
  GemmEngine& engine() { return *engine_; }
  MemoryBudget& budget() { return budget_; }

 private:
  Shape shape_;
  ComputePool pool_;
  MemoryBudget budget_;
  std::vector<float> w_, a_;
  std::vector<uint16_t> bits_;
  std::unique_ptr<GemmEngine> engine_;
  PackedMatrix matrix_;
  absl::Status status_;
};

class GemmTest : public testing::TestWithParam<DType> {};

constexpr Shape kShapes[] = {{1, 1},    {3, 5},     {37, 45},  {128, 64},
                             {129, 20}, {300, 100}, {768, 96}, {200, 1030}};

#define SKIP_IF_UNIMPLEMENTED(status)                  \
  if (absl::IsUnimplemented(status)) {                 \
    GTEST_SKIP() << "not on this machine: " << status; \
  }                                                    \
  ASSERT_TRUE(status.ok()) << status

TEST_P(GemmTest, ComputesTheProduct) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    constexpr int kRows = 139;
    Fixture f(GetParam(), shape, 2, kRows);
    SKIP_IF_UNIMPLEMENTED(f.status());
    const std::vector<float> out = f.Multiply(0, kRows);
    for (int row = 0; row < kRows; ++row) {
      for (int col = 0; col < shape.n; ++col) {
        double sum = 0;
        for (int i = 0; i < shape.k; ++i) {
          sum += static_cast<double>(f.a()[row * shape.k + i]) *
                 f.w()[col * shape.k + i];
        }
        ASSERT_NEAR(out[row * shape.n + col], sum,
                    2e-6 * (1 + std::sqrt(shape.k)) * 2)
            << row << ", " << col;
      }
    }
  }
}

TEST_P(GemmTest, RowsDoNotDependOnTheirNumberOrPlace) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    constexpr int kRows = 300;
    Fixture f(GetParam(), shape, 2, kRows);
    SKIP_IF_UNIMPLEMENTED(f.status());
    const std::vector<float> all = f.Multiply(0, kRows);
    for (int rows :
         {1,  2,  3,  4,  5,  6,  7,   8,   9,   13,  16,  17,  23, 31,
          32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 160, 255, 257}) {
      for (int first : {0, 1, 5, 43}) {
        const std::vector<float> some = f.Multiply(first, rows);
        ASSERT_EQ(std::memcmp(some.data(), all.data() + first * shape.n,
                              some.size() * sizeof(float)),
                  0)
            << rows << " rows from " << first;
      }
    }
  }
}

TEST_P(GemmTest, ResultsDoNotDependOnThreads) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    constexpr int kRows = 77;
    Fixture one(GetParam(), shape, 1, kRows);
    SKIP_IF_UNIMPLEMENTED(one.status());
    Fixture many(GetParam(), shape, 7, kRows);
    EXPECT_EQ(one.Multiply(0, kRows), many.Multiply(0, kRows));
  }
}

TEST_P(GemmTest, ChargesWhatItSays) {
  Fixture f(GetParam(), {300, 100}, 1, 1);
  SKIP_IF_UNIMPLEMENTED(f.status());
  auto bytes = f.engine().PackedBytes(300, 100);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(f.budget().used_bytes(), *bytes);
  MemoryBudget tight(Tier::kHost, *bytes - 1);
  auto matrix = f.engine().Allocate("head", 300, 100, &tight);
  EXPECT_TRUE(absl::IsResourceExhausted(matrix.status())) << matrix.status();
  EXPECT_NE(matrix.status().message().find("head"), std::string::npos);
  EXPECT_EQ(tight.used_bytes(), 0u);
}

TEST_P(GemmTest, OffersTilesOfManySizes) {
  Fixture f(GetParam(), {128, 64}, 1, 1);
  SKIP_IF_UNIMPLEMENTED(f.status());
  auto sizes = f.engine().TileSizes(128, 64);
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->front(), GemmEngine::kTileRows);
  EXPECT_GE(sizes->size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(DTypes, GemmTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& i) {
                           return std::string(DTypeName(i.param));
                         });

}  // namespace
}  // namespace sluice
