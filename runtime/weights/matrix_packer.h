#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/weights/matrix_layout.h"

namespace sluice {

// How a backend wants matrices in images: where layouts and packing, which all
// backends share, meet what is a backend's own.
class MatrixPacker {
 public:
  virtual ~MatrixPacker() = default;

  // Of the elements of full matrices.
  virtual DType dtype() const = 0;
  // Of tables of which rows are looked up.
  virtual DType table_dtype() const { return dtype(); }
  size_t element_bytes() const { return ElementBytes(dtype()); }

  // How W, [n, k], will lie from `offset` (a multiple of kPanelAlignment) on.
  // kInvalidArgument for sizes below 1 or an unaligned offset.
  virtual absl::StatusOr<MatrixLayout> Layout(int32_t n, int32_t k,
                                              WeightFormat format,
                                              size_t offset) = 0;

  // Packs rows [panel_begin, panel_end) of W, float32 [columns, k] row-major
  // and contiguous, to `out`, panel_bytes at a 64-byte boundary: all of it is
  // written. Panels may be packed by several threads at once, each with its own
  // `thread`, while none calls anything else. kInvalidArgument if a quantized
  // format cannot hold a weight (NaN, infinite, larger than 1e30).
  virtual absl::Status Pack(const MatrixLayout& w, int panel, const float* rows,
                            int thread, std::byte* out) = 0;

  // Whether each panel of a gated MLP's first matrix has some gate columns and
  // then the same up columns; else all gate columns come before all up columns.
  virtual bool interleaves_gate() const = 0;
  // Whether products may add a plain MLP's first bias before they round their
  // results, and so want it in dtype(), too.
  virtual bool wants_typed_bias() const = 0;

  // What the bytes that Pack writes depend on, beside the weights and the
  // layout; begins with the backend's name.
  virtual std::string PackingKey() const = 0;
};

}  // namespace sluice
