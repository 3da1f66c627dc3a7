#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "common/types.h"
#include "runtime/weights/matrix_packer.h"

namespace sluice {

// Packs matrices into packed units for a device. Full ones are row-major, [n,
// k], as cuBLASLt likes its weights best: all panels together are one matrix
// without gaps. Quantized ones are as
// runtime/kernels/cuda/gemm/quantized_matrix.h wants them. Thread-safe.
class DeviceMatrices : public MatrixPacker {
 public:
  explicit DeviceMatrices(DType dtype) : MatrixPacker(PanelRules::Gpu(dtype)) {}

  absl::Status Pack(const MatrixLayout& w, int panel, const float* rows,
                    int thread, std::byte* out) override;
  std::string PackingKey() const override;
};

}  // namespace sluice
