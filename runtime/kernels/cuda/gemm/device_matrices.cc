#include "runtime/kernels/cuda/gemm/device_matrices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/kernels/cuda/gemm/quantized_matrix.h"
#include "runtime/quant/convert_floats.h"

namespace sluice {
namespace {

// Grows when the bytes that Pack writes change.
constexpr int kFormatVersion = 1;

int BitsOf(WeightFormat format) {
  return format == WeightFormat::kInt4 ? 4 : 8;
}

}  // namespace

absl::Status DeviceMatrices::Pack(const MatrixLayout& w, int panel,
                                  const float* rows, int thread,
                                  std::byte* out) {
  const int32_t columns = w.panel_end(panel) - w.panel_begin(panel);
  if (w.format != WeightFormat::kFull) {
    return DevicePanelCodec(columns, w.k, BitsOf(w.format), dtype())
        .Encode(rows, out);
  }
  const int64_t count = int64_t{columns} * w.k;
  ConvertFloats(rows, count, dtype(), out);
  const size_t used = count * element_bytes();
  std::fill(out + used, out + w.panel_bytes(panel), std::byte{});
  return absl::OkStatus();
}

std::string DeviceMatrices::PackingKey() const {
  return absl::StrCat("cuda;format ", kFormatVersion, " ", DTypeName(dtype()),
                      " panel ", kPanelColumns);
}

}  // namespace sluice
