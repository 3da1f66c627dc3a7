#include "runtime/kernels/cuda/gemm/cublas_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/float16.h"
#include "tests/cuda/support/device_array.h"
#include "tests/cuda/support/parity.h"

namespace sluice {
namespace {

constexpr size_t kWorkspace = size_t{1} << 20;

uint16_t ToBits(DType dtype, float x) {
  return dtype == DType::kBFloat16
             ? static_cast<uint16_t>(__builtin_bit_cast(uint32_t, x) >> 16)
             : FloatToFloat16(x);
}

// Returns the bytes of values that the dtype holds exactly.
std::vector<std::byte> Encode(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() *
                               (dtype == DType::kFloat32 ? 4 : 2));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t bits = ToBits(dtype, values[i]);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

std::vector<float> Decode(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / (dtype == DType::kFloat32 ? 4 : 2));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    values[i] = dtype == DType::kBFloat16 ? BFloat16ToFloat(bits)
                                          : Float16ToFloat(bits);
  }
  return values;
}

std::vector<float> Rounded(DType dtype, const std::vector<float>& values) {
  return Decode(dtype, Encode(dtype, values));
}

class CublasGemmTest : public testing::Test {
 protected:
  CublasGemmTest() : workspace_(kWorkspace) { Make({}); }

  void Make(CublasGemm::Options options) {
    options.workspace = workspace_.data();
    if (options.workspace_bytes == 0) options.workspace_bytes = kWorkspace;
    auto engine = CublasGemm::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  struct Case {
    int32_t rows, n, k;
    DType in = DType::kFloat32, out = DType::kFloat32;
    bool bias = false, accumulate = false;
    Epilogue epilogue = Epilogue::kNone;
    int32_t gap = 0;     // between rows of y
    int32_t offset = 0;  // elements before x, w and y
    size_t spare_rows = 0;
  };

  // Multiplies so often, and compares what came of it.
  void Check(const Case& c, int times = 1) {
    SCOPED_TRACE(absl::StrCat(c.rows, " x ", c.k, " by ", c.n, " in ",
                              std::string(DTypeName(c.in)), " to ",
                              std::string(DTypeName(c.out))));
    const size_t in_bytes = c.in == DType::kFloat32 ? 4 : 2;
    const size_t out_bytes = c.out == DType::kFloat32 ? 4 : 2;
    const int32_t stride = c.n + c.gap;
    const auto x = Rounded(c.in, random_.Normal(c.offset + c.rows * c.k));
    const auto w = Rounded(c.in, random_.Normal(c.offset + c.n * c.k));
    const auto bias = Rounded(c.out, random_.Normal(c.n));
    auto y = Rounded(c.out, random_.Normal(c.offset + c.rows * stride));
    const DeviceArray<std::byte> device_x(Encode(c.in, x));
    const DeviceArray<std::byte> device_w(Encode(c.in, w));
    const DeviceArray<std::byte> device_bias(Encode(c.out, bias));
    const DeviceArray<std::byte> device_y(Encode(c.out, y));
    const DeviceArray<std::byte> spare(c.spare_rows * c.n * out_bytes);
    CublasGemm::Call product;
    product.rows = c.rows;
    product.n = c.n;
    product.k = c.k;
    product.in = c.in;
    product.out = c.out;
    product.x = device_x.data() + c.offset * in_bytes;
    product.w = device_w.data() + c.offset * in_bytes;
    if (c.bias) product.bias = device_bias.data();
    product.epilogue = c.epilogue;
    product.accumulate = c.accumulate;
    product.y = device_y.data() + c.offset * out_bytes;
    product.y_stride = stride;
    product.spare = spare.data();
    product.spare_bytes = spare.size();
    for (int i = 0; i < times; ++i) {
      const absl::Status status = engine_->Multiply(product);
      ASSERT_TRUE(status.ok()) << status;
      for (int32_t row = 0; row < c.rows; ++row) {
        for (int32_t col = 0; col < c.n; ++col) {
          float& to = y[c.offset + row * stride + col];
          double sum = c.accumulate ? to : 0;
          for (int32_t j = 0; j < c.k; ++j) {
            sum += static_cast<double>(x[c.offset + row * c.k + j]) *
                   w[c.offset + col * c.k + j];
          }
          if (c.bias) sum += bias[col];
          if (c.epilogue == Epilogue::kRelu) sum = std::max(sum, 0.0);
          if (c.epilogue == Epilogue::kGeluTanh) {
            sum *= 0.5 + 0.5 * std::tanh(std::sqrt(2 / M_PI) *
                                         (sum + 0.044715 * sum * sum * sum));
          }
          to = static_cast<float>(sum);
        }
      }
    }
    // The elements before and between the rows are left alone, bit for bit.
    const std::vector<float> got = Decode(c.out, device_y.Read());
    EXPECT_LT(RelativeError(got, y), c.out == DType::kFloat32 ? 1e-5 : 5e-3);
    for (int32_t i = 0; i < c.offset; ++i) EXPECT_EQ(got[i], y[i]);
    for (int32_t row = 0; row < c.rows; ++row) {
      for (int32_t col = c.n; col < stride; ++col) {
        const size_t at = c.offset + row * stride + col;
        EXPECT_EQ(got[at], y[at]);
      }
    }
  }

  Random random_{1};
  DeviceArray<std::byte> workspace_;
  std::unique_ptr<CublasGemm> engine_;
};

TEST_F(CublasGemmTest, MultipliesAnything) {
  for (int i = 0; i < 80; ++i) {
    Case c = {random_.Int(1, 40), random_.Size(90), random_.Size(90)};
    c.in = c.out = std::vector<DType>{DType::kFloat32, DType::kBFloat16,
                                      DType::kFloat16}[random_.Int(0, 2)];
    if (random_.Coin()) c.out = DType::kFloat32;
    c.bias = random_.Coin();
    c.accumulate = c.out == DType::kFloat32 && random_.Coin();
    if (!c.accumulate) {
      c.epilogue = static_cast<Epilogue>(random_.Int(0, 2));
    }
    c.gap = random_.Coin() ? random_.Int(0, 9) : 0;
    c.offset = random_.Coin() ? random_.Int(0, 9) : 0;
    c.spare_rows = random_.Int(0, c.rows);
    Check(c, random_.Int(1, 3));
  }
}

TEST_F(CublasGemmTest, NoRowsAreNoWork) {
  EXPECT_TRUE(engine_->Multiply({.rows = 0, .n = 4, .k = 4}).ok());
}

TEST_F(CublasGemmTest, RefusesSizesThatMakeNoSense) {
  for (const CublasGemm::Call& product :
       {CublasGemm::Call{.rows = 1, .n = 0, .k = 4},
        CublasGemm::Call{.rows = 1, .n = 4, .k = 0, .y_stride = 4},
        CublasGemm::Call{.rows = -1, .n = 4, .k = 4, .y_stride = 4},
        CublasGemm::Call{.rows = 1, .n = 4, .k = 4, .y_stride = 3}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(engine_->Multiply(product)));
  }
}

#ifdef SLUICE_CUDA_EMULATED

TEST_F(CublasGemmTest, ChoosesOncePerShape) {
  emulation::TakeCublasCounts();
  Check({.rows = 16, .n = 64, .k = 32});
  emulation::CublasCounts counts = emulation::TakeCublasCounts();
  EXPECT_EQ(counts.heuristics, 1);
  EXPECT_GT(counts.products, 6) << "all three were timed";
  Check({.rows = 16, .n = 64, .k = 32}, 3);
  counts = emulation::TakeCublasCounts();
  EXPECT_EQ(counts.heuristics, 0);
  EXPECT_EQ(counts.products, 3);
  // Rows that are near each other share what was chosen.
  Check({.rows = 13, .n = 64, .k = 32});
  counts = emulation::TakeCublasCounts();
  EXPECT_EQ(counts.heuristics, 0);
  EXPECT_EQ(counts.products, 1);
  Check({.rows = 12, .n = 64, .k = 32});
  EXPECT_EQ(emulation::TakeCublasCounts().heuristics, 1);
  Check({.rows = 16, .n = 64, .k = 32, .bias = true});
  EXPECT_EQ(emulation::TakeCublasCounts().heuristics, 1);
}

TEST_F(CublasGemmTest, TakesTheFastest) {
  for (const int fast : {0, 1, 2}) {
    Make({});
    emulation::SetFastAlgorithm(fast);
    const Case c = {
        .rows = 8, .n = 64, .k = 32, .accumulate = true, .spare_rows = 5};
    Check(c);
    emulation::TakeCublasCounts();
    Check(c, 2);
    EXPECT_EQ(emulation::TakeCublasCounts().by_algorithm[fast], 2);
  }
  emulation::SetFastAlgorithm(-1);
}

TEST_F(CublasGemmTest, TakesTheFirstWhereItIsNotToTime) {
  emulation::SetFastAlgorithm(2);
  Make({.candidates = 1});
  emulation::TakeCublasCounts();
  Check({.rows = 8, .n = 64, .k = 32});
  // This call has no spare place for results, so nothing is timed.
  Make({});
  Check({.rows = 8, .n = 64, .k = 32, .accumulate = true});
  EXPECT_EQ(emulation::TakeCublasCounts().products, 2);
  emulation::SetFastAlgorithm(-1);
}

// An algorithm that was good for fewer rows may want more work space for more.
TEST_F(CublasGemmTest, ChoosesAnewWhereWhatWasChosenDoesNotFit) {
  // The work space suffices for the splits of 14 rows.
  Make({.workspace_bytes = 2 * 4 * 14 * 64});
  emulation::SetFastAlgorithm(1);
  Check({.rows = 14, .n = 64, .k = 32});
  emulation::TakeCublasCounts();
  Check({.rows = 14, .n = 64, .k = 32});
  EXPECT_EQ(emulation::TakeCublasCounts().by_algorithm[1], 1);
  Check({.rows = 15, .n = 64, .k = 32});
  const emulation::CublasCounts counts = emulation::TakeCublasCounts();
  EXPECT_EQ(counts.by_algorithm[1], 0);
  EXPECT_EQ(counts.heuristics, 1);
  emulation::SetFastAlgorithm(-1);
}

TEST_F(CublasGemmTest, ErrorsComeBack) {
  emulation::SetCublasFailure(CUBLAS_STATUS_EXECUTION_FAILED);
  const DeviceArray<float> memory(64);
  CublasGemm::Call product;
  product.rows = product.n = product.k = 4;
  product.x = product.w = memory.data();
  product.y = memory.data() + 32;
  product.y_stride = 4;
  absl::Status status = engine_->Multiply(product);
  emulation::SetCublasFailure(CUBLAS_STATUS_SUCCESS);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_NE(status.message().find("failed to launch"), std::string::npos);
  // Memory of the host is refused.
  float host[16] = {};
  product.x = host;
  EXPECT_FALSE(engine_->Multiply(product).ok());
  product.x = memory.data();
  EXPECT_TRUE(engine_->Multiply(product).ok());
}

TEST_F(CublasGemmTest, LeavesNothingBehind) {
  Check({.rows = 8, .n = 64, .k = 32, .accumulate = true, .spare_rows = 8});
  EXPECT_GT(emulation::LiveCublasObjects(), 0);
  engine_.reset();
  EXPECT_EQ(emulation::LiveCublasObjects(), 0);
}

#endif

}  // namespace
}  // namespace sluice
