#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/kernels/cuda/gemm/cublas_gemm.h"
#include "runtime/kernels/cuda/gemm/quantized_matrix.h"
#include "runtime/memory/device.h"
#include "runtime/placement/backend_space.h"
#include "runtime/weights/packed_view.h"

namespace sluice {

// GEMMs with matrices as they lie in packed units (DeviceMatrices): full ones
// by cuBLASLt, in two pieces where the packed unit is cut; quantized ones in
// one kernel for few rows, else panels at a time are made full in scratch
// memory first. Used by one thread.
class PackedGemm {
 public:
  struct Options {
    Device* device = nullptr;  // outlives this
    cudaStream_t stream = nullptr;
    DType dtype = DType::kFloat32;
    int32_t processors = 0;
    // Device memory as CublasGemm wants it.
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    // Scratch memory for quantized matrices, as GpuSpace says of all that will
    // be multiplied with.
    size_t dequantized_bytes = 0;
    size_t counter_bytes = 0;
  };
  // Fails with kResourceExhausted if the device lacks room for scratch memory.
  static absl::StatusOr<std::unique_ptr<PackedGemm>> Create(
      const Options& options);

  // Returns the work space that GEMMs of up to `max_rows` rows with these need,
  // or as much as is worth having.
  static absl::StatusOr<size_t> WorkspaceBytes(
      std::span<const MatrixLayout> matrices, int32_t max_rows,
      int32_t processors);

  struct Call {
    const MatrixLayout* w = nullptr;
    PackedView packed;
    int32_t rows = 0;
    const void* x = nullptr;  // [rows, k] in the dtype
    // Elements from row to row of a result that is float; 0: n.
    int64_t y_stride = 0;
    // Memory that may be overwritten, as CublasGemm::Call has it.
    void* spare = nullptr;
    size_t spare_bytes = 0;
  };
  // y = x w^T + bias, or y += x w^T + bias: float [rows, n], with
  // call.y_stride; `bias`, float [n], may be null.
  absl::Status ToFloat(const Call& call, const float* bias, bool accumulate,
                       float* y);
  // y = epilogue(x w^T + bias): [rows, n] in the dtype; `bias`, [n] in the
  // dtype, may be null. REQUIRES: !OnlyToFloat().
  absl::Status ToTyped(const Call& call, Epilogue epilogue, const void* bias,
                       void* y);
  // Returns whether such a GEMM gives its result as float only: few rows and a
  // quantized matrix.
  static bool OnlyToFloat(const MatrixLayout& w, int32_t rows) {
    return w.format != WeightFormat::kFull && rows <= kQuantizedGemmRows;
  }

  // Sets whether algorithms may be timed (see CublasGemm).
  void AllowTiming(bool allow) { engine_->AllowTiming(allow); }

  // Writes the full matrix [n, k], in the dtype, of a quantized one.
  absl::Status Dequantize(const MatrixLayout& w, const PackedView& packed,
                          void* out);

 private:
  // Computes columns [first, first + columns) of a GEMM from their weights.
  using Piece = absl::FunctionRef<absl::Status(int32_t first, int32_t columns,
                                               const void* w)>;

  explicit PackedGemm(const Options& options) : options_(options) {}
  // Calls `piece` for all columns, as many at a time as lie together.
  absl::Status ForEachPiece(const MatrixLayout& w, const PackedView& packed,
                            Piece piece);

  const Options options_;
  std::unique_ptr<CublasGemm> engine_;
  DeviceBuffer dequantized_;  // some panels of a quantized matrix
  DeviceBuffer counters_;     // QuantizedGemm's, zero
};

}  // namespace sluice
