// Tests that the emulation of cuBLASLt refuses what the documentation does not
// allow.

#include <cublasLt.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/support/device_array.h"

namespace sluice {
namespace {

class CublasEmulationTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    const int32_t transpose = CUBLAS_OP_T;
    ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA,
                                             &transpose, sizeof transpose),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference_),
              CUBLAS_STATUS_SUCCESS);
    w_ = Layout(CUDA_R_16BF, kK, kN, kK);
    x_ = Layout(CUDA_R_16BF, kK, kRows, kK);
    y_ = Layout(CUDA_R_32F, kN, kRows, kN);
  }
  void TearDown() override {
    for (const auto layout : layouts_) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatmulDescDestroy(desc_);
    cublasLtDestroy(handle_);
  }
  cublasLtMatrixLayout_t Layout(cudaDataType type, int rows, int cols, int ld) {
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, type, rows, cols, ld),
              CUBLAS_STATUS_SUCCESS);
    layouts_.push_back(layout);
    return layout;
  }
  cublasStatus_t Heuristic(cublasLtMatrixLayout_t w, cublasLtMatrixLayout_t x,
                           cublasLtMatrixLayout_t y) {
    return cublasLtMatmulAlgoGetHeuristic(handle_, desc_, w, x, y, y,
                                          preference_, 3, results_, &count_);
  }
  cublasStatus_t Multiply(const void* w, const void* x, void* y,
                          const cublasLtMatmulAlgo_t& algo, void* workspace,
                          size_t bytes) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle_, desc_, &one, w, w_, x, x_, &zero, y, y_, y,
                          y_, &algo, workspace, bytes, nullptr);
  }

  static constexpr int kRows = 3, kN = 8, kK = 16;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  std::vector<cublasLtMatrixLayout_t> layouts_;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulHeuristicResult_t results_[3];
  int count_ = 0;
};

TEST_F(CublasEmulationTest, ShapesMustAgree) {
  EXPECT_EQ(Heuristic(w_, x_, y_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(count_, 2) << "without work space there are no splits";
  EXPECT_EQ(Heuristic(w_, Layout(CUDA_R_16BF, kK - 1, kRows, kK), y_),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Heuristic(w_, x_, Layout(CUDA_R_32F, kN, kRows + 1, kN)),
            CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatrixLayout_t layout = nullptr;
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 4, 4, 3),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasEmulationTest, TypesMustGoTogether) {
  EXPECT_EQ(Heuristic(w_, Layout(CUDA_R_16F, kK, kRows, kK), y_),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Heuristic(w_, x_, Layout(CUDA_R_16F, kN, kRows, kN)),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Heuristic(w_, x_, Layout(CUDA_R_16BF, kN, kRows, kN)),
            CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasEmulationTest, ABiasMustBeThere) {
  const uint32_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                           &epilogue, 8),
            CUBLAS_STATUS_INVALID_VALUE)
      << "it has four bytes";
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                           &epilogue, sizeof epilogue),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Heuristic(w_, x_, y_), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasEmulationTest, AlgorithmsWantTheAlignmentThatWasPromised) {
  ASSERT_EQ(Heuristic(w_, x_, y_), CUBLAS_STATUS_SUCCESS);
  const cublasLtMatmulAlgo_t aligned = results_[0].algo;
  const uint32_t two = 2;
  ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(
                preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &two,
                sizeof two),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Heuristic(w_, x_, y_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(count_, 1);
  const cublasLtMatmulAlgo_t any = results_[0].algo;
  const DeviceArray<uint16_t> w(kN * kK + 1), x(kRows * kK);
  const DeviceArray<float> y(kN * kRows);
  EXPECT_EQ(Multiply(w.data(), x.data(), y.data(), aligned, nullptr, 0),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(w.data() + 1, x.data(), y.data(), aligned, nullptr, 0),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(w.data() + 1, x.data(), y.data(), any, nullptr, 0),
            CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasEmulationTest, MemoryMustBeTheDevices) {
  const uint64_t bytes = 1 << 12;
  ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(
                preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                sizeof bytes),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Heuristic(w_, x_, y_), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(count_, 3);
  const cublasLtMatmulAlgo_t any = results_[2].algo, split = results_[1].algo;
  const DeviceArray<uint16_t> w(kN * kK), x(kRows * kK);
  const DeviceArray<float> y(kN * kRows);
  const DeviceArray<std::byte> workspace(bytes);
  std::vector<uint16_t> host(kN * kK);
  EXPECT_EQ(Multiply(host.data(), x.data(), y.data(), any, nullptr, 0),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(w.data() + 8, x.data(), y.data(), any, nullptr, 0),
            CUBLAS_STATUS_INVALID_VALUE)
      << "the end is beyond its memory";
  EXPECT_EQ(Multiply(w.data(), x.data(), y.data(), split, nullptr, 0),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(w.data(), x.data(), y.data(), split, workspace.data() + 16,
                     bytes - 16),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(
      Multiply(w.data(), x.data(), y.data(), split, workspace.data(), bytes),
      CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(w.data(), x.data(), y.data(), {}, nullptr, 0),
            CUBLAS_STATUS_INVALID_VALUE)
      << "no algorithm of ours";
}

}  // namespace
}  // namespace sluice
