#include "runtime/kernels/cuda/gemm/packed_gemm.h"

#include <algorithm>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/dtype_dispatch.h"

namespace sluice {
namespace {

QuantizedMatrix Quantized(const MatrixLayout& w, const PackedView& packed,
                          int32_t first_panel, int32_t columns) {
  QuantizedMatrix q;
  q.n = columns;
  q.k = w.k;
  q.bits = w.format == WeightFormat::kInt4 ? 4 : 8;
  q.panel_columns = w.panel_width;
  q.packed = packed;
  q.offset = w.panel_offset(first_panel);
  q.panel_bytes = w.whole_panel_bytes;
  return q;
}

}  // namespace

absl::StatusOr<size_t> PackedGemm::WorkspaceBytes(
    std::span<const MatrixLayout> matrices, int32_t max_rows,
    int32_t processors) {
  size_t max = 0;
  for (const MatrixLayout& w : matrices) {
    max = std::max(
        max, std::min(GpuSpace::kMaxGemms,
                      GpuSpace::kMaxSplits * max_rows * w.n * sizeof(float)));
    if (w.format == WeightFormat::kFull) continue;
    for (int32_t rows = 1; rows <= std::min(max_rows, kQuantizedGemmRows);
         ++rows) {
      SLUICE_ASSIGN_OR_RETURN(
          const QuantizedGemmPlan plan,
          PlanQuantizedGemm(Quantized(w, {}, 0, w.n), rows, processors));
      max = std::max(max, plan.workspace_bytes);
    }
  }
  return max;
}

absl::StatusOr<std::unique_ptr<PackedGemm>> PackedGemm::Create(
    const Options& options) {
  std::unique_ptr<PackedGemm> self(new PackedGemm(options));
  SLUICE_ASSIGN_OR_RETURN(
      self->engine_,
      CublasGemm::Create({.stream = options.stream,
                          .workspace = options.workspace,
                          .workspace_bytes = options.workspace_bytes}));
  if (options.counter_bytes == 0) return self;
  SLUICE_ASSIGN_OR_RETURN(
      self->dequantized_,
      options.device->Allocate("workspace", options.dequantized_bytes));
  SLUICE_ASSIGN_OR_RETURN(
      self->counters_,
      options.device->Allocate("workspace", options.counter_bytes));
  return self;
}

absl::Status PackedGemm::ForEachPiece(const MatrixLayout& w,
                                      const PackedView& packed, Piece piece) {
  if (w.format != WeightFormat::kFull) {
    const int32_t columns =
        GpuSpace::DequantizedColumns(w, dequantized_.bytes(), options_.dtype);
    for (int32_t first = 0; first < w.n; first += columns) {
      const int32_t count = std::min(columns, w.n - first);
      SLUICE_RETURN_IF_ERROR(WithElement(options_.dtype, [&](auto* type) {
        return DequantizeMatrix(
            Quantized(w, packed, first / w.panel_width, count),
            static_cast<decltype(type)>(dequantized_.data()), options_.stream);
      }));
      SLUICE_RETURN_IF_ERROR(piece(first, count, dequantized_.data()));
    }
    return absl::OkStatus();
  }
  // `low` counts the panels below the packed unit's cut.
  int low = 0;
  while (low < w.num_panels() && w.panel_offset(low) < packed.split) ++low;
  const int32_t columns = std::min(w.n, low * w.panel_width);
  if (columns > 0) {
    SLUICE_RETURN_IF_ERROR(piece(0, columns, packed.At(w.offset)));
  }
  if (columns == w.n) return absl::OkStatus();
  return piece(columns, w.n - columns, packed.At(w.panel_offset(low)));
}

absl::Status PackedGemm::ToFloat(const Call& call, const float* bias,
                                 bool accumulate, float* y) {
  const MatrixLayout& w = *call.w;
  if (call.rows == 0 || w.n == 0) return absl::OkStatus();
  const int64_t stride = call.y_stride > 0 ? call.y_stride : w.n;
  if (OnlyToFloat(w, call.rows)) {
    const QuantizedMatrix quantized = Quantized(w, call.packed, 0, w.n);
    SLUICE_ASSIGN_OR_RETURN(
        const QuantizedGemmPlan plan,
        PlanQuantizedGemm(quantized, call.rows, options_.processors));
    return WithElement(options_.dtype, [&](auto* type) {
      return QuantizedGemm(
          quantized, plan,
          static_cast<const ElementOf<decltype(type)>*>(call.x), bias,
          accumulate, y, stride, options_.workspace, counters_.as<int32_t>(),
          options_.stream);
    });
  }
  return ForEachPiece(w, call.packed,
                      [&](int32_t first, int32_t columns, const void* weights) {
                        return engine_->Multiply(
                            {.rows = call.rows,
                             .n = columns,
                             .k = w.k,
                             .in = options_.dtype,
                             .out = DType::kFloat32,
                             .x = call.x,
                             .w = weights,
                             .bias = bias == nullptr ? nullptr : bias + first,
                             .accumulate = accumulate,
                             .y = y + first,
                             .y_stride = stride,
                             .spare = call.spare,
                             .spare_bytes = call.spare_bytes});
                      });
}

absl::Status PackedGemm::ToTyped(const Call& call, Epilogue epilogue,
                                 const void* bias, void* y) {
  const MatrixLayout& w = *call.w;
  const size_t element = ElementBytes(options_.dtype);
  return ForEachPiece(
      w, call.packed, [&](int32_t first, int32_t columns, const void* weights) {
        const void* piece_bias =
            bias == nullptr
                ? nullptr
                : static_cast<const std::byte*>(bias) + first * element;
        return engine_->Multiply(
            {.rows = call.rows,
             .n = columns,
             .k = w.k,
             .in = options_.dtype,
             .out = options_.dtype,
             .x = call.x,
             .w = weights,
             .bias = piece_bias,
             .epilogue = epilogue,
             .y = static_cast<std::byte*>(y) + first * element,
             .y_stride = w.n,
             .spare = call.spare,
             .spare_bytes = call.spare_bytes});
      });
}

absl::Status PackedGemm::Dequantize(const MatrixLayout& w,
                                    const PackedView& packed, void* out) {
  if (w.n == 0) return absl::OkStatus();
  return WithElement(options_.dtype, [&](auto* type) {
    return DequantizeMatrix(Quantized(w, packed, 0, w.n),
                            static_cast<decltype(type)>(out), options_.stream);
  });
}

}  // namespace sluice
