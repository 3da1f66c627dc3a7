#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/placement/backend_space.h"
#include "runtime/weights/matrix_packer.h"
#include "runtime/weights/packed_view.h"

// GEMMs y = a * W^T by oneDNN, with W packed once, in memory that
// someone else owns.
//
// oneDNN runs single-threaded; the threads are ours, because a stage shares its
// process with others and OpenMP's threads would spin against theirs. W is cut
// into panels of output columns, `a` into tiles of rows; each (panel, tile) is
// one call of a primitive made in advance, whose result goes to a scratch tile
// of the thread and from there through an epilogue to where it is wanted.
//
// Formats: a full panel holds the weights in oneDNN's own order, in the
// engine's dtype. A quantized one holds the codes in that same order (see
// runtime/quant/panel_codec.h); a task turns it into a full panel in its
// thread's scratch memory, which stays in the cache, and runs all its row tiles
// on that. So a GEMM with a quantized matrix has the same bits as one with what
// Dequantize makes of it.
//
// Slices: where oneDNN's order of summation is one that can be had so, which
// GemmShape tries for each shape, a panel can be multiplied slice by slice, as
// floats (slice_gemm.h), with the same bits. Matrices in a checkpoint's codes
// are, as they need not become panels before; and matrices of bfloat16, in any
// format, where that is faster.
//
// Batch invariance: a row's result must not depend on how many rows are
// computed with it. oneDNN does not promise that (its AVX2 kernels, for
// example, sum the last one to three rows of a tile in another order), so each
// row count on offer is tried when a shape is first used, on rows that are all
// the same: a count that gives any row other bits than the largest count gives
// its first row is not used, and such tiles are padded to the next larger one.
//
// Nor may a column's result depend on what columns are computed with it, as
// these are a rank's, where several ranks compute a product (TensorShard).
// oneDNN's AVX2 kernels sum what is left after whole vectors of columns in
// another order: panels are filled up to whole ones.

namespace sluice {

class GemmShape;
struct GemmThread;

// Makes and runs the GEMMs of one backend. Used by one caller at a time,
// but for Pack.
class GemmEngine : public MatrixPacker {
 public:
  static constexpr int32_t kPanelWidth = kPanelColumns;
  // Rows in the largest tile.
  static constexpr int32_t kTileRows = kGemmTileRows;
  // Fails with kUnimplemented if oneDNN has no GEMMs of this dtype on this
  // machine. `pool` must outlive the engine.
  static absl::StatusOr<std::unique_ptr<GemmEngine>> Create(
      const PanelRules& rules, ComputePool* pool);
  static absl::StatusOr<std::unique_ptr<GemmEngine>> Create(DType dtype,
                                                            ComputePool* pool) {
    return Create(PanelRules::Cpu(dtype), pool);
  }
  ~GemmEngine() override;

  // Makes the primitives of the matrix's panels.
  absl::Status Prepare(MatrixLayout* w) override;
  // `thread` is in [0, pool->num_threads()).
  absl::Status Pack(const MatrixLayout& w, int panel, const float* rows,
                    int thread, std::byte* out) override;

  // An epilogue gets a finished tile: rows [row, row + rows), columns [col, col
  // + cols), float32 with `cols` floats from row to row. May overwrite it.
  using Epilogue = absl::FunctionRef<void(
      int32_t row, int32_t rows, int32_t col, int32_t cols, float* tile)>;
  // Computes a * W^T. `a` is [rows, k] in dtype, rows contiguous, with memory
  // for ReadableRows(rows) of them.
  absl::Status Multiply(const MatrixLayout& w, const PackedView& packed,
                        const void* a, int32_t rows, Epilogue epilogue);

  // Makes panels [first_panel, first_panel + num_panels) of the quantized `w`
  // into those of `full`, a kFull layout of the same size, on the pool.
  // `out_packed` is the address of offset 0 of the unit that has `full`.
  absl::Status Dequantize(const MatrixLayout& w, const PackedView& packed,
                          const MatrixLayout& full, std::byte* out_packed,
                          int first_panel, int num_panels);

  std::string PackingKey() const override { return "cpu;" + LayoutKey(); }
  // Identifies what packed bytes depend on beside the weights and the layout:
  // dtype, oneDNN and the instruction set it uses, our own format. For the key
  // of a packed unit on disk.
  std::string LayoutKey() const;

  // Returns the bytes of scratch memory, which Prepare() may grow.
  size_t scratch_bytes() const;

  // Called by tests, before the first quantized layout: takes oneDNN's packed
  // order for unknown, so that each dequantized panel goes through its reorder.
  void IgnorePackedOrder() { known_order_ = false; }

 private:
  GemmEngine(const PanelRules& rules, ComputePool* pool);
  // Returns the primitives of panels of [n, k], made if there are none yet.
  absl::StatusOr<GemmShape*> Shape(int32_t n, int32_t k);
  // Returns a panel's primitives; kInternal if Layout() did not describe it.
  absl::StatusOr<const GemmShape*> FindShape(const MatrixLayout& w,
                                             int panel) const;
  struct PanelShapes;
  absl::StatusOr<PanelShapes> ShapesOf(const MatrixLayout& w) const;
  absl::Status MultiplyFull(const MatrixLayout& w, const PanelShapes& shapes,
                            const PackedView& packed, const void* a,
                            int32_t rows, Epilogue epilogue);
  absl::Status MultiplyQuantized(const MatrixLayout& w,
                                 const PanelShapes& shapes,
                                 const PackedView& packed, const void* a,
                                 int32_t rows, Epilogue epilogue);
  // The same, with floats that are made slice by slice.
  void MultiplySliced(const MatrixLayout& w, const PanelShapes& shapes,
                      const PackedView& packed, const void* a, int32_t rows,
                      Epilogue epilogue);
  // Returns the first error of a task since the engine was made.
  absl::Status Error() const;

  ComputePool* const pool_;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<GemmShape>> shapes_;
  std::vector<std::unique_ptr<GemmThread>> threads_;
  bool known_order_ = true;
  std::atomic<int> error_{0};  // a task's dnnl_status_t
};

}  // namespace sluice
