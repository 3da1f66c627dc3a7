#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "runtime/placement/matrix_layout.h"

namespace sluice {

// Puts matrices into packed units as a backend wants them: where packing, which
// all backends share, meets what is a backend's own.
class MatrixPacker {
 public:
  explicit MatrixPacker(const PanelRules& rules) : rules_(rules) {}
  virtual ~MatrixPacker() = default;

  const PanelRules& rules() const { return rules_; }
  DType dtype() const { return rules_.dtype; }
  size_t element_bytes() const { return ElementBytes(dtype()); }

  // Makes what packing a matrix and GEMMs with it need, for one that the rules
  // laid out, and sets its `packing`. kInternal if its panels take more than
  // the rules say.
  virtual absl::Status Prepare(MatrixLayout* w) { return absl::OkStatus(); }
  // Returns how W, [n, k], lies from `offset` (a multiple of kPanelAlignment)
  // on, prepared. kInvalidArgument for sizes below 1 or an unaligned offset.
  absl::StatusOr<MatrixLayout> Layout(int32_t n, int32_t k, WeightFormat format,
                                      size_t offset) {
    if (n < 1 || k < 1 || offset % kPanelAlignment != 0) {
      return InvalidArgument("no layout for a matrix of ", n, " x ", k, " at ",
                             offset);
    }
    MatrixLayout w = rules_.Layout(n, k, format, offset);
    SLUICE_RETURN_IF_ERROR(Prepare(&w));
    return w;
  }

  // Packs rows [panel_begin, panel_end) of W, float32 [columns, k] row-major
  // and contiguous, to `out`, panel_bytes at a 64-byte boundary: all of it is
  // written. Panels may be packed by several threads at once, each with its own
  // `thread`, while none calls anything else. kInvalidArgument if a quantized
  // format cannot hold a weight (NaN, infinite, larger than 1e30).
  virtual absl::Status Pack(const MatrixLayout& w, int panel, const float* rows,
                            int thread, std::byte* out) = 0;

  // Returns what the bytes that Pack writes depend on, beside the weights and
  // the layout; begins with the backend's name.
  virtual std::string PackingKey() const = 0;

 private:
  const PanelRules rules_;
};

}  // namespace sluice
