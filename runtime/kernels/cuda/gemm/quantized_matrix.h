#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "runtime/placement/gpu_limits.h"
#include "runtime/quant/panel_codec.h"
#include "runtime/weights/packed_view.h"

// Quantized weight matrices on the device: panels of output columns as
// PanelCodec encodes them, in the order below. A block of columns is a group,
// so that what a thread block reads of a group is one piece of memory.

namespace sluice {

struct QuantizedMatrix {
  int32_t n = 0;              // output columns, rows of the weight
  int32_t k = 0;              // inputs
  int32_t bits = 4;           // or 8
  int32_t panel_columns = 0;  // of all panels but the last; whole groups
  // Panel p lies in the packed unit at offset + p * panel_bytes; in device
  // memory, at a multiple of 16 bytes.
  PackedView packed;
  size_t offset = 0;
  size_t panel_bytes = 0;

  int32_t groups() const { return (n + 63) / 64; }
  // Fails with kInvalidArgument if sizes make no sense.
  absl::Status Validate() const;
};

// Returns the codec of a panel of `columns` columns.
PanelCodec DevicePanelCodec(int32_t columns, int32_t k, int bits, DType dtype);

// out[i, j] = the weight for output column i and input j, [n, k], for T float,
// __half and __nv_bfloat16. `out` lies at a multiple of 16 bytes.
template <typename T>
absl::Status DequantizeMatrix(const QuantizedMatrix& w, T* out,
                              cudaStream_t stream);

// Rows that a GEMM takes at most.
inline constexpr int32_t kQuantizedGemmRows = GpuLimits::kFewRows;

// The division of a GEMM's inputs among thread blocks, so that all processors
// have work.
struct QuantizedGemmPlan {
  int32_t rows = 0;
  int32_t splits = 1;
  int32_t pairs_per_split = 0;
  size_t workspace_bytes = 0;  // at a multiple of 16 bytes; may be 0
};
// Plans 1 <= rows <= kQuantizedGemmRows for a device's `processors`.
absl::StatusOr<QuantizedGemmPlan> PlanQuantizedGemm(const QuantizedMatrix& w,
                                                    int32_t rows,
                                                    int32_t processors);

// y = x w^T + bias, or, to accumulate, y += x w^T + bias: x is [rows, k] of T,
// y float [rows, n], with `y_stride` elements from row to row; `bias`, float
// [n], may be null. Weights are dequantized in registers, GEMMs are float32;
// the order of a sum depends on the plan only.
//
// `counters`, of w.groups() integers, is zero before and after; launches on
// different streams need their own, and their own work space.
template <typename T>
absl::Status QuantizedGemm(const QuantizedMatrix& w,
                           const QuantizedGemmPlan& plan, const T* x,
                           const float* bias, bool accumulate, float* y,
                           int64_t y_stride, void* workspace, int32_t* counters,
                           cudaStream_t stream);

}  // namespace sluice
