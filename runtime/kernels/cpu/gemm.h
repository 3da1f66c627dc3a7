#pragma once

#include <atomic>
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
#include "runtime/kernels/cpu/compute_pool.h"
#include "runtime/kernels/cpu/host_buffer.h"

// Matrix products y = a * W^T by oneDNN, with W packed once.
//
// oneDNN runs single-threaded; the threads are ours, because a stage shares its
// process with others and OpenMP's threads would spin against theirs. W is cut
// into panels of output columns, `a` into tiles of rows; each (panel, tile) is
// one call of a primitive made in advance, whose result goes to a scratch tile
// of the thread and from there through an epilogue to where it is wanted.
//
// Batch invariance: a row's result must not depend on how many rows are
// computed with it. oneDNN does not promise that (its AVX2 kernels, for
// example, sum the last one to three rows of a tile in another order), so each
// row count on offer is tried when a shape is first used, on rows that are all
// the same: a count that gives any row other bits than the largest count gives
// its first row is not used, and such tiles are padded to the next larger one.

namespace sluice {

class GemmShape;
struct GemmThread;

// W, [n, k] row-major as nn.Linear stores it, packed by panels. Move-only.
class PackedMatrix {
 public:
  PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;
  PackedMatrix& operator=(PackedMatrix&&) noexcept;
  ~PackedMatrix();

  int32_t k() const { return k_; }
  int32_t n() const { return n_; }
  int32_t num_panels() const {
    return panel_width_ == 0 ? 0 : (n_ + panel_width_ - 1) / panel_width_;
  }
  int32_t panel_begin(int panel) const { return panel * panel_width_; }
  int32_t panel_end(int panel) const {
    return std::min(n_, (panel + 1) * panel_width_);
  }

 private:
  friend class GemmEngine;
  struct Panel;
  int32_t k_ = 0;
  int32_t n_ = 0;
  int32_t panel_width_ = 0;
  HostBuffer data_;
  std::vector<Panel> panels_;
};

// Makes and runs the products of one backend. Used by one caller at a time.
class GemmEngine {
 public:
  // Columns in a panel; a panel of K x 128 and a tile of 128 x K stay in L2 for
  // the usual K. Independent of the number of threads, so that results are too.
  static constexpr int32_t kPanelWidth = 128;
  // Rows in the largest tile.
  static constexpr int32_t kTileRows = 128;
  // Rows that must be readable in the input of a product of `rows`: whole
  // tiles, and what oneDNN's kernels for float32 on AVX2 read past the last
  // row: they take 24 at a time.
  static constexpr int32_t ReadableRows(int32_t rows) {
    return (rows + kTileRows - 1) / kTileRows * kTileRows + 32;
  }

  // kUnimplemented if oneDNN has no products of this dtype on this machine.
  static absl::StatusOr<std::unique_ptr<GemmEngine>> Create(DType dtype,
                                                            ComputePool* pool);
  ~GemmEngine();

  DType dtype() const { return dtype_; }
  size_t element_bytes() const { return dtype_ == DType::kFloat32 ? 4 : 2; }

  // What a matrix will take, in bytes. Makes the primitives of its shape.
  absl::StatusOr<size_t> PackedBytes(int32_t n, int32_t k);

  // Allocates a matrix, to be filled panel by panel.
  absl::StatusOr<PackedMatrix> Allocate(const std::string& name, int32_t n,
                                        int32_t k, MemoryBudget* budget);
  // Packs rows [panel_begin, panel_end) of W, float32 [columns, k] row-major.
  // Different panels may be packed by different threads at once.
  absl::Status Pack(PackedMatrix& matrix, int panel, const float* rows,
                    int thread);

  // Gets a finished tile: rows [row, row + rows), columns [col, col + cols),
  // float32 with `cols` floats from row to row. May overwrite it.
  using Epilogue = absl::FunctionRef<void(
      int32_t row, int32_t rows, int32_t col, int32_t cols, float* tile)>;
  // a: [rows, k] in dtype, rows contiguous, with memory for ReadableRows(rows).
  absl::Status Multiply(const PackedMatrix& w, const void* a, int32_t rows,
                        Epilogue epilogue);

  // Row counts that a shape runs with, for tests.
  absl::StatusOr<std::vector<int32_t>> TileSizes(int32_t n, int32_t k);

 private:
  GemmEngine(DType dtype, ComputePool* pool);
  absl::StatusOr<GemmShape*> Shape(int32_t n, int32_t k);

  const DType dtype_;
  ComputePool* const pool_;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<GemmShape>> shapes_;
  std::vector<std::unique_ptr<GemmThread>> threads_;
  std::atomic<int> error_{0};
};

}  // namespace sluice
