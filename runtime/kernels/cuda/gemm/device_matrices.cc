#include "runtime/kernels/cuda/gemm/device_matrices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/kernels/cuda/gemm/quantized_matrix.h"
#include "runtime/quant/convert_floats.h"

namespace sluice {
namespace {

// Grows when the bytes that Pack writes change.
constexpr int kFormatVersion = 1;

size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

int BitsOf(WeightFormat format) {
  return format == WeightFormat::kInt4 ? 4 : 8;
}

}  // namespace

absl::StatusOr<MatrixLayout> DeviceMatrices::Layout(int32_t n, int32_t k,
                                                    WeightFormat format,
                                                    size_t offset) {
  if (n < 1 || k < 1 || offset % kPanelAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no layout for a matrix of ", n, " x ", k, " at ", offset));
  }
  MatrixLayout w;
  w.n = n;
  w.k = k;
  w.format = format;
  w.offset = offset;
  w.panel_width = kPanelColumns;
  const auto bytes = [&](int32_t columns) {
    return format == WeightFormat::kFull
               ? RoundUp(size_t{1} * columns * k * element_bytes(),
                         kPanelAlignment)
               : DevicePanelCodec(columns, k, BitsOf(format), dtype_)
                     .encoded_bytes();
  };
  w.whole_panel_bytes = bytes(kPanelColumns);
  w.last_panel_bytes = bytes(w.panel_end(w.num_panels() - 1) -
                             w.panel_begin(w.num_panels() - 1));
  w.bytes = w.whole_panel_bytes * (w.num_panels() - 1) + w.last_panel_bytes;
  return w;
}

absl::Status DeviceMatrices::Pack(const MatrixLayout& w, int panel,
                                  const float* rows, int thread,
                                  std::byte* out) {
  const int32_t columns = w.panel_end(panel) - w.panel_begin(panel);
  if (w.format != WeightFormat::kFull) {
    return DevicePanelCodec(columns, w.k, BitsOf(w.format), dtype_)
        .Encode(rows, out);
  }
  const int64_t count = int64_t{columns} * w.k;
  ConvertFloats(rows, count, dtype_, out);
  const size_t used = count * element_bytes();
  std::fill(out + used, out + w.panel_bytes(panel), std::byte{});
  return absl::OkStatus();
}

std::string DeviceMatrices::PackingKey() const {
  return absl::StrCat("cuda;format ", kFormatVersion, " ", DTypeName(dtype_),
                      " panel ", kPanelColumns);
}

}  // namespace sluice
