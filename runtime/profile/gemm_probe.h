#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/kernels/cpu/gemm.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Measures the GEMMs of a decoder layer: its four matrices one after the other,
// through GemmEngine, with the results stored. Copies of the layer take turns,
// so that few rows find their weights in memory and not in a cache.
class GemmProbe {
 public:
  // Pool and budget must outlive the probe. The layer is of a 1.1B model
  // (hidden 2048), or half as wide, and so on, if half of the budget's room is
  // too small for that. kUnimplemented if there are no GEMMs of this dtype
  // here; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GemmProbe>> Create(
      DType dtype, WeightFormat format, ComputePool* pool,
      MemoryBudget* budget) {
    return Create(dtype, format, nullptr, pool, budget);
  }
  // The same with weights in a checkpoint's codes, a format of any inputs'
  // order excepted.
  static absl::StatusOr<std::unique_ptr<GemmProbe>> Create(
      DType dtype, const CodeFormat& codes, ComputePool* pool,
      MemoryBudget* budget) {
    return Create(dtype, WeightFormat::kFull, &codes, pool, budget);
  }

  // Measures flops per second by rows, in about `seconds`.
  absl::StatusOr<RateCurve> FlopsByRows(double seconds,
                                        const std::atomic<bool>* cancelled);
  // The same for the given numbers of rows, ascending.
  absl::StatusOr<RateCurve> FlopsByRows(std::span<const int32_t> rows,
                                        double seconds,
                                        const std::atomic<bool>* cancelled);
  // Measures flops per second of the given numbers of rows, in their order.
  absl::StatusOr<std::vector<double>> Flops(std::span<const int32_t> rows,
                                            double seconds,
                                            const std::atomic<bool>* cancelled);
  // Measures the bytes of full weights per second that Dequantize makes.
  // REQUIRES: a quantized format, or codes.
  absl::StatusOr<double> DequantizedBytes(double seconds,
                                          const std::atomic<bool>* cancelled);

  static constexpr int32_t kMaxRows = 2048;

 private:
  // A matrix [n, k] of the layer.
  struct Matrix {
    MatrixLayout layout;
    size_t row_floats = 0;  // of a stored row of its result
  };

  GemmProbe() = default;
  static absl::StatusOr<std::unique_ptr<GemmProbe>> Create(
      DType dtype, WeightFormat format, const CodeFormat* codes,
      ComputePool* pool, MemoryBudget* budget);
  // Packs the first copy of the weights.
  absl::Status PackFirst(MemoryBudget* budget);
  // Makes the weights and the inputs.
  absl::Status Fill(MemoryBudget* budget);
  absl::Status Multiply(const Matrix& matrix, size_t copy, int32_t rows);

  std::unique_ptr<GemmEngine> engine_;
  std::vector<Matrix> matrices_;
  size_t copy_bytes_ = 0;
  size_t copies_ = 0;
  HostBuffer packed_;
  HostBuffer input_;
  HostBuffer output_;
  std::vector<MatrixLayout> full_;  // of the matrices, if they are decoded
  HostBuffer dequantized_;
};

// The rates as shares of the last one. On a machine that is busy with other
// work any may come out: no share is above kMaxThreadShare.
RateCurve SharesOfLast(std::vector<RateCurve::Point> rates);

// Measures the share of all threads' rate of 1, 2, 4, ... threads, up to
// `threads`: with GEMMs of 64 rows, in the faster dtype. `cores` as in
// ComputePool.
absl::StatusOr<RateCurve> MeasureShareByThreads(
    DType dtype, int threads, const std::vector<int>& cores,
    MemoryBudget* budget, double seconds, const std::atomic<bool>* cancelled);

}  // namespace sluice
