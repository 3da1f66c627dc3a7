#include "runtime/kernels/cuda/gemm/quantized_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/float16.h"
#include "runtime/quant/group_codec.h"
#include "tests/cuda/support/device_array.h"
#include "tests/cuda/support/parity.h"

namespace sluice {
namespace {

// A matrix of random codes in two pieces of device memory, and the weights that
// PanelCodec says it has.
class Matrix {
 public:
  Matrix(Random& random, int n, int k, int bits) {
    w_.n = n;
    w_.k = k;
    w_.bits = bits;
    w_.panel_columns = 64 << random.Int(0, 2);
    const int panels = (n + w_.panel_columns - 1) / w_.panel_columns;
    w_.panel_bytes =
        DevicePanelCodec(w_.panel_columns, k, bits, DType::kFloat32)
            .encoded_bytes();
    w_.offset = 64 * random.Int(0, 3);
    floats_.resize(static_cast<size_t>(n) * k);
    std::vector<std::byte> packed(w_.offset);
    for (int panel = 0; panel < panels; ++panel) {
      const int first = panel * w_.panel_columns;
      const int columns = std::min(w_.panel_columns, n - first);
      const std::vector<std::byte> bytes = Panel(
          random, columns, k, bits, floats_.data() + size_t{1} * first * k);
      packed.insert(packed.end(), bytes.begin(), bytes.end());
    }
    const size_t split = w_.offset + random.Int(0, panels - 1) * w_.panel_bytes;
    low_ = std::make_unique<DeviceArray<std::byte>>(
        std::vector<std::byte>(packed.begin(), packed.begin() + split));
    high_ = std::make_unique<DeviceArray<std::byte>>(
        std::vector<std::byte>(packed.begin() + split, packed.end()));
    w_.packed = {low_->data(), high_->data(), split, split};
  }

  const QuantizedMatrix& w() const { return w_; }
  // [n, k]
  const std::vector<float>& floats() const { return floats_; }

 private:
  static std::vector<std::byte> Panel(Random& random, int columns, int k,
                                      int bits, float* floats) {
    const PanelCodec codec =
        DevicePanelCodec(columns, k, bits, DType::kFloat32);
    std::vector<std::byte> bytes(codec.encoded_bytes());
    const float unit = random.Coin() ? 0.25f : 0x1p-20f;
    std::memcpy(bytes.data(), &unit, sizeof unit);
    auto* params = reinterpret_cast<GroupParams*>(bytes.data() + 64);
    auto* end =
        reinterpret_cast<GroupParams*>(bytes.data() + codec.codes_offset());
    for (; params < end; ++params) {
      const float scale = static_cast<float>(random.Int(0, 1000)) / 1000.0f;
      params->scale = FloatToFloat16(scale);
      params->min =
          FloatToFloat16(-scale * static_cast<float>(random.Int(0, 1 << bits)));
    }
    for (size_t i = codec.codes_offset(); i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(random.Int(0, 255));
    }
    std::vector<float> decoded(codec.decoded_bytes() / sizeof(float));
    codec.Decode(bytes.data(), decoded.data());
    for (int column = 0; column < columns; ++column) {
      for (int input = 0; input < k; ++input) {
        floats[static_cast<size_t>(column) * k + input] =
            decoded[codec.order().Position(column, input)];
      }
    }
    return bytes;
  }

  QuantizedMatrix w_;
  std::vector<float> floats_;
  std::unique_ptr<DeviceArray<std::byte>> low_, high_;
};

template <typename T>
class QuantizedMatrixTest : public testing::Test {};
using Elements = testing::Types<float, __half, __nv_bfloat16>;
TYPED_TEST_SUITE(QuantizedMatrixTest, Elements);

// The weights are the CPU's bit for bit.
TYPED_TEST(QuantizedMatrixTest, DequantizesAsTheCpuDoes) {
  using T = TypeParam;
  Random random(1);
  for (int i = 0; i < 24; ++i) {
    const int n = random.Size(400);
    const int k = random.Size(300);
    const Matrix matrix(random, n, k, i % 2 == 0 ? 4 : 8);
    SCOPED_TRACE(testing::Message() << n << " x " << k);
    const std::vector<T> got = InAnyOrder([&] {
      const DeviceArray<T> out(static_cast<size_t>(n) * k);
      EXPECT_TRUE(DequantizeMatrix(matrix.w(), out.data(), nullptr).ok());
      return out.Read();
    });
    for (size_t j = 0; j < got.size(); ++j) {
      ASSERT_EQ(static_cast<float>(got[j]),
                static_cast<float>(T(matrix.floats()[j])))
          << j;
    }
  }
}

TYPED_TEST(QuantizedMatrixTest, Multiplies) {
  using T = TypeParam;
  Random random(2);
  int in_parts = 0;
  for (int i = 0; i < 48; ++i) {
    const int rows = i % kQuantizedGemmRows + 1;
    const int n = random.Size(200);
    // The sum is long enough, now and then, to be divided among blocks.
    const int k = i % 4 == 0 ? random.Int(1100, 2500) : random.Size(700);
    const bool accumulate = random.Coin();
    const bool with_bias = random.Coin();
    // Rows of the result may lie among other columns.
    const int stride = n + (i % 3 == 0 ? random.Int(1, 40) : 0);
    SCOPED_TRACE(testing::Message() << rows << " x " << k << " x " << n);
    const Matrix matrix(random, n, k, random.Coin() ? 4 : 8);
    const std::vector<T> x = random.Normal<T>(rows * k);
    const std::vector<float> bias = random.Normal(n);
    const std::vector<float> y = random.Normal(rows * stride);
    const auto plan = PlanQuantizedGemm(matrix.w(), rows, random.Int(1, 30));
    ASSERT_TRUE(plan.ok());
    in_parts += plan->splits > 1;
    const DeviceArray<T> dx(x);
    const DeviceArray<float> dbias(bias);
    const DeviceArray<int32_t> counters(
        std::vector<int32_t>(matrix.w().groups(), 0));
    const std::vector<float> got = InAnyOrder([&] {
      const DeviceArray<float> dy(y);
      const DeviceArray<std::byte> workspace(plan->workspace_bytes);
      EXPECT_TRUE(QuantizedGemm(matrix.w(), *plan, dx.data(),
                                with_bias ? dbias.data() : nullptr, accumulate,
                                dy.data(), stride, workspace.data(),
                                counters.data(), nullptr)
                      .ok());
      return dy.Read();
    });
    EXPECT_EQ(counters.Read(), std::vector<int32_t>(matrix.w().groups(), 0));
    std::vector<float> want = y;
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < n; ++column) {
        double sum = with_bias ? bias[column] : 0;
        for (int input = 0; input < k; ++input) {
          sum += static_cast<double>(static_cast<float>(x[row * k + input])) *
                 matrix.floats()[static_cast<size_t>(column) * k + input];
        }
        if (accumulate) sum += y[row * stride + column];
        want[row * stride + column] = static_cast<float>(sum);
      }
    }
    ASSERT_LT(RelativeError(got, want), 3e-6);
  }
  EXPECT_GT(in_parts, 8);
}

// Weights that are encoded and decoded again are nearly the same.
TEST(DevicePanelCodecTest, KeepsWeights) {
  Random random(3);
  constexpr int kN = 100, kK = 70;
  const std::vector<float> weights = random.Normal(kN * kK);
  for (const int bits : {4, 8}) {
    const PanelCodec codec = DevicePanelCodec(kN, kK, bits, DType::kFloat32);
    std::vector<std::byte> bytes(codec.encoded_bytes());
    ASSERT_TRUE(codec.Encode(weights.data(), bytes.data()).ok());
    const DeviceArray<std::byte> packed(bytes);
    QuantizedMatrix w;
    w.n = kN;
    w.k = kK;
    w.bits = bits;
    w.panel_columns = 128;
    w.panel_bytes = codec.encoded_bytes();
    w.packed = PackedView::Whole(packed.data());
    const DeviceArray<float> out(kN * kK);
    ASSERT_TRUE(DequantizeMatrix(w, out.data(), nullptr).ok());
    EXPECT_LT(RelativeError(out.Read(), weights), bits == 4 ? 0.1 : 0.006);
  }
}

TEST(QuantizedMatrixArgsTest, WhatCannotBeIsRefused) {
  QuantizedMatrix w;
  w.n = 64;
  w.k = 4096;
  w.panel_columns = 64;
  w.panel_bytes = 1 << 20;
  EXPECT_TRUE(w.Validate().ok());
  for (const auto& change : std::vector<void (*)(QuantizedMatrix&)>{
           [](QuantizedMatrix& w) { w.n = 0; },
           [](QuantizedMatrix& w) { w.k = -1; },
           [](QuantizedMatrix& w) { w.bits = 5; },
           [](QuantizedMatrix& w) { w.panel_columns = 96; },
           [](QuantizedMatrix& w) { w.panel_columns = 320; },
           [](QuantizedMatrix& w) { w.offset = 8; },
           [](QuantizedMatrix& w) { w.panel_bytes = 24; }}) {
    QuantizedMatrix bad = w;
    change(bad);
    EXPECT_EQ(bad.Validate().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(DequantizeMatrix<float>(bad, nullptr, nullptr).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(PlanQuantizedGemm(bad, 1, 1).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(PlanQuantizedGemm(w, 17, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PlanQuantizedGemm(w, 0, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto plan = PlanQuantizedGemm(w, 2, 100);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->splits, 8);
  EXPECT_EQ(plan->workspace_bytes, 8u * 2 * 64 * 4);
  EXPECT_EQ(QuantizedGemm<float>(w, *plan, nullptr, nullptr, false, nullptr,
                                 w.n, nullptr, nullptr, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
