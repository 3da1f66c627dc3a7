#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/weights/matrix_layout.h"
#include "runtime/weights/matrix_packer.h"

namespace sluice {

// How matrices lie in images for a device. Full ones are row-major, [n, k], as
// cuBLASLt likes its weights best: all panels together are one matrix without
// gaps. Quantized ones are as runtime/kernels/cuda/gemm/quantized_matrix.h
// wants them. Thread-safe.
class DeviceMatrices : public MatrixPacker {
 public:
  explicit DeviceMatrices(DType dtype) : dtype_(dtype) {}

  DType dtype() const override { return dtype_; }
  absl::StatusOr<MatrixLayout> Layout(int32_t n, int32_t k, WeightFormat format,
                                      size_t offset) override;
  absl::Status Pack(const MatrixLayout& w, int panel, const float* rows,
                    int thread, std::byte* out) override;
  // What comes after a product takes rows of both.
  bool interleaves_gate() const override { return false; }
  // cuBLASLt adds biases in its results' type.
  bool wants_typed_bias() const override { return dtype_ != DType::kFloat32; }
  std::string PackingKey() const override;

 private:
  const DType dtype_;
};

}  // namespace sluice
