#include "runtime/kernels/cuda/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/kernels/cpu/vector_ops.h"
#include "tests/cuda/support/device_array.h"
#include "tests/cuda/support/parity.h"

// Norms, activations, sums and look-ups by row, against the CPU's.

namespace sluice {
namespace {

template <typename T>
class RowsTest : public testing::Test {};
using Elements = testing::Types<float, __half, __nv_bfloat16>;
TYPED_TEST_SUITE(RowsTest, Elements);

TYPED_TEST(RowsTest, Norms) {
  using T = TypeParam;
  Random random(1);
  for (int i = 0; i < 60; ++i) {
    const int kind = i % 3;
    const int n = i % 20 == 0 ? 3000 + i : random.Size(600);
    const int all = random.Int(1, 8);
    const int rows = random.Int(1, all);
    const bool pick = random.Coin();
    const bool affine = random.Coin();
    SCOPED_TRACE(testing::Message() << kind << ": " << rows << " x " << n);
    const std::vector<float> x = random.Normal(all * n, 0.5f, 2);
    const std::vector<float> weight = random.Normal(n, 1);
    const std::vector<float> bias = random.Normal(n);
    std::vector<int32_t> numbers(rows);
    for (int32_t& row : numbers) row = random.Int(0, all - 1);

    const DeviceArray<float> dx(x), dweight(weight), dbias(bias);
    const DeviceArray<int32_t> dnumbers(numbers);
    NormRowsArgs args;
    args.x = dx.data();
    if (pick) args.rows_of_x = dnumbers.data();
    args.rows = rows;
    args.n = n;
    args.weight = affine ? dweight.data() : nullptr;
    args.bias = affine ? dbias.data() : nullptr;
    args.eps = 1e-5f;
    const std::vector<T> got = InAnyOrder([&] {
      const DeviceArray<T> out(rows * n);
      EXPECT_TRUE((kind == 0   ? RmsNormRows<T>(args, out.data(), nullptr)
                   : kind == 1 ? LayerNormRows<T>(args, out.data(), nullptr)
                               : ConvertRows<T>(args, out.data(), nullptr))
                      .ok());
      return out.Read();
    });

    std::vector<float> want(rows * n);
    for (int row = 0; row < rows; ++row) {
      const float* from = x.data() + (pick ? numbers[row] : row) * n;
      float* to = want.data() + row * n;
      if (kind == 0) {
        const std::vector<float> ones(n, 1.0f);
        RmsNorm(from, affine ? weight.data() : ones.data(), n, 1e-5f,
                DType::kFloat32, to);
      } else if (kind == 1) {
        LayerNorm(from, affine ? weight.data() : nullptr,
                  affine ? bias.data() : nullptr, n, 1e-5f, DType::kFloat32,
                  to);
      } else {
        std::copy_n(from, n, to);
      }
    }
    if (kind == 2) {
      for (size_t j = 0; j < want.size(); ++j) {
        ASSERT_EQ(static_cast<float>(got[j]), static_cast<float>(T(want[j])));
      }
    } else {
      ASSERT_LT(RelativeError(ToFloats(got), want), 1e-6 + kRounding<T>);
    }
  }
}

TEST(NormRowsTest, InPlace) {
  Random random(2);
  for (const int n : {5, 64, 1000}) {
    const std::vector<float> x = random.Normal(3 * n);
    const DeviceArray<float> dx(x), other(3 * n);
    NormRowsArgs args;
    args.x = dx.data();
    args.rows = 3;
    args.n = n;
    ASSERT_TRUE(LayerNormRows(args, other.data(), nullptr).ok());
    ASSERT_TRUE(LayerNormRows(args, dx.data(), nullptr).ok());
    EXPECT_EQ(dx.Read(), other.Read());
  }
}

TEST(NormRowsTest, PartsOfRows) {
  Random random(3);
  for (const int n : {6, 64, 128}) {
    constexpr int kRows = 5, kHeads = 3, kSkipped = 2;
    const int stride = (kSkipped + kHeads + 2) * n;
    const std::vector<float> x = random.Normal(kRows * stride);
    const std::vector<float> weight = random.Normal(n, 1);
    const DeviceArray<float> dx(x), dweight(weight);
    NormRowsArgs args;
    args.x = dx.data() + kSkipped * n;
    args.rows = kRows * kHeads;
    args.n = n;
    args.weight = dweight.data();
    args.eps = 1e-5f;
    args.heads = kHeads;
    args.stride = stride;
    ASSERT_TRUE(RmsNormRows(args, dx.data() + kSkipped * n, nullptr).ok());
    std::vector<float> want = x;
    for (int part = 0; part < args.rows; ++part) {
      float* const at =
          want.data() + part / kHeads * stride + (kSkipped + part % kHeads) * n;
      RmsNorm(at, weight.data(), n, args.eps, DType::kFloat32, at);
    }
    EXPECT_LT(RelativeError(dx.Read(), want), 1e-6);
    // The rest is as it was.
    const std::vector<float> got = dx.Read();
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kSkipped * n; ++i) {
        ASSERT_EQ(got[row * stride + i], x[row * stride + i]);
      }
    }
  }
}

TEST(NormRowsTest, RowsWithoutElementsAreRefused) {
  EXPECT_EQ(RmsNormRows<float>({}, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

template <typename In, typename T>
void CheckActivations(int seed) {
  Random random(seed);
  for (int i = 0; i < 32; ++i) {
    const auto activation = static_cast<Activation>(i % 4);
    const bool gated = i / 4 % 2 == 0;
    const bool with_bias = random.Coin();
    const int n = i == 13 ? 5000 : random.Size(500);
    const int rows = random.Int(1, 6);
    const int columns = gated ? 2 * n : n;
    SCOPED_TRACE(testing::Message() << i << ": " << rows << " x " << n);
    std::vector<In> in = random.Normal<In>(rows * columns, 0, 3);
    in[0] = In(-200.0f);
    const std::vector<float> bias = random.Normal(columns);
    const DeviceArray<In> din(in);
    const DeviceArray<float> dbias(bias);
    const float* b = with_bias ? dbias.data() : nullptr;
    const std::vector<T> got = InAnyOrder([&] {
      const DeviceArray<T> out(rows * n);
      EXPECT_TRUE((gated ? GateRows(activation, din.data(), b, rows, n,
                                    out.data(), nullptr)
                         : ActivateRows(activation, din.data(), b, rows, n,
                                        out.data(), nullptr))
                      .ok());
      return out.Read();
    });
    std::vector<float> want(rows * n);
    const float* host_bias = with_bias ? bias.data() : nullptr;
    (gated ? GatedTile : PlainTile)(activation, ToFloats(in).data(), rows,
                                    columns, host_bias, DType::kFloat32,
                                    want.data(), n);
    ASSERT_LT(RelativeError(ToFloats(got), want), 1e-6 + kRounding<T>);
  }
}

TYPED_TEST(RowsTest, Activations) {
  CheckActivations<float, TypeParam>(3);
  CheckActivations<TypeParam, TypeParam>(4);
}

TEST(ActivateRowsTest, NaNStaysVisible) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const DeviceArray<float> in(std::vector<float>{nan, -1, 2});
  const DeviceArray<float> out(3);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(ActivateRows(static_cast<Activation>(i), in.data(), nullptr, 1,
                             3, out.data(), nullptr)
                    .ok());
    EXPECT_TRUE(std::isnan(out.Read()[0])) << i;
    EXPECT_GT(out.Read()[2], 1.7f) << i;
  }
}

TYPED_TEST(RowsTest, Sums) {
  using T = TypeParam;
  Random random(5);
  for (int i = 0; i < 30; ++i) {
    const int n = i == 7 ? 4100 : random.Size(400);
    const int rows = random.Int(1, 9);
    const bool with_y = i % 3 != 0;
    const bool with_bias = i % 3 != 1;
    const std::vector<float> x = random.Normal(rows * n);
    const std::vector<T> y = random.Normal<T>(rows * n);
    const std::vector<float> bias = random.Normal(n);
    const DeviceArray<T> dy(y);
    const DeviceArray<float> dbias(bias);
    const std::vector<float> got = InAnyOrder([&] {
      const DeviceArray<float> dx(x);
      EXPECT_TRUE(AddRows(with_y ? dy.data() : nullptr,
                          with_bias ? dbias.data() : nullptr, rows, n,
                          dx.data(), nullptr)
                      .ok());
      return dx.Read();
    });
    for (int j = 0; j < rows * n; ++j) {
      const float added = (with_y ? static_cast<float>(y[j]) : 0.0f) +
                          (with_bias ? bias[j % n] : 0.0f);
      ASSERT_EQ(got[j], x[j] + added) << rows << " x " << n;
    }
  }
}

// There are more rows than a grid may have blocks in y or z.
TEST(AddRowsTest, ManyRows) {
  constexpr int kRows = 70000;
  const DeviceArray<float> x(std::vector<float>(kRows * 3, 1.0f));
  const DeviceArray<float> bias(std::vector<float>{1, 2, 3});
  ASSERT_TRUE(
      AddRows<float>(nullptr, bias.data(), kRows, 3, x.data(), nullptr).ok());
  const std::vector<float> sums = x.Read();
  for (int i = 0; i < kRows * 3; ++i) {
    ASSERT_EQ(sums[i], 2.0f + static_cast<float>(i % 3));
  }
}

TYPED_TEST(RowsTest, LooksUp) {
  using T = TypeParam;
  Random random(6);
  for (int i = 0; i < 24; ++i) {
    const int n = i == 7 ? 3000 : random.Size(300);
    const int rows = random.Int(1, 9);
    const int vocab = random.Int(3, 40);
    const int offset = random.Int(0, 2);
    const std::vector<T> table = random.Normal<T>(vocab * n);
    std::vector<int32_t> numbers(rows);
    for (int32_t& number : numbers) number = random.Int(0, vocab - 1 - offset);
    const DeviceArray<T> dtable(table);
    const DeviceArray<int32_t> dnumbers(numbers);
    const std::vector<float> sums = InAnyOrder([&] {
      const DeviceArray<float> x(rows * n);
      EXPECT_TRUE(
          GatherRows(dtable.data(), dnumbers.data(), rows, n, x.data(), nullptr)
              .ok());
      EXPECT_TRUE(AddGatheredRows(dtable.data(), dnumbers.data(), offset, rows,
                                  n, x.data(), nullptr)
                      .ok());
      return x.Read();
    });
    const DeviceArray<T> copies(rows * n);
    ASSERT_TRUE(GatherRows(dtable.data(), dnumbers.data(), rows, n,
                           copies.data(), nullptr)
                    .ok());
    const std::vector<T> copied = copies.Read();
    for (int j = 0; j < rows * n; ++j) {
      const T* at = table.data() + numbers[j / n] * n + j % n;
      ASSERT_EQ(static_cast<float>(copied[j]), static_cast<float>(*at));
      ASSERT_EQ(sums[j],
                static_cast<float>(*at) + static_cast<float>(at[offset * n]));
    }
  }
}

}  // namespace
}  // namespace sluice
