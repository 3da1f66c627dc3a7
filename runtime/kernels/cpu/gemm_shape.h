#pragma once

#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types.h"
#include "runtime/kernels/cpu/slice_gemm.h"
#include "runtime/placement/matrix_layout.h"
#include "runtime/quant/panel_codec.h"

// oneDNN's part of GemmEngine, which alone includes this file beside its test.

namespace sluice {

// Some of oneDNN's kernels remember how many OpenMP threads the thread that
// made them could use, others ask when they run: one in either case. The number
// is each thread's own.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(before_); }

 private:
  int before_;
};

absl::Status DnnlError(absl::string_view what, const dnnl::error& e);

// Returns the order in which oneDNN wants a matrix, as text.
std::string PackingName(const dnnl::memory::desc& packed);

// oneDNN's scratchpads want a cache line's alignment.
constexpr size_t kScratchAlignment = 64;
inline std::byte* AlignScratch(std::byte* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return p +
         (kScratchAlignment - address % kScratchAlignment) % kScratchAlignment;
}

// The primitives for panels of n columns and k rows. Thread-compatible; Run and
// Pack may be called by several threads, each with its own `thread`.
class GemmShape {
 public:
  struct Tile {
    int32_t rows = 0;
    dnnl::matmul primitive;
    // The arguments of each thread, with its own data handles.
    std::vector<dnnl::memory> src, dst, scratchpad;
  };

  // Fails with kUnimplemented if oneDNN has no batch-invariant GEMM of these.
  static absl::StatusOr<std::unique_ptr<GemmShape>> Create(
      int32_t n, int32_t k, DType dtype, const dnnl::engine& engine,
      int num_threads);

  // Returns the least tile that takes `rows`, or the largest one.
  const Tile& TileFor(int32_t rows) const {
    for (auto it = tiles_.rbegin(); it != tiles_.rend(); ++it) {
      if (it->rows >= rows) return *it;
    }
    return tiles_.front();
  }

  // Multiplies [tile.rows, k] by the packed panel: [tile.rows, width] at `out`.
  // `scratch` holds
  // scratchpad_bytes() at a multiple of kScratchAlignment.
  dnnl_status_t Run(const Tile& tile, const std::byte* packed, const void* a,
                    float* out, void* scratch, const dnnl::stream& stream,
                    int thread) const;

  // Packs float32 rows [n, k] to packed_bytes() at `out`.
  absl::Status Pack(const float* rows, std::byte* out,
                    const dnnl::stream& stream) const;

  // Finds out whether and how panels can be multiplied slice by slice.
  // `known_order`: false to take oneDNN's packed order for one that PanelOrder
  // cannot describe.
  absl::Status PrepareSlices(bool known_order);
  // Does so, and makes what a panel in a quantized format needs; to be called
  // before the calls below. Where the packed order is not known, codes are
  // row-major, and oneDNN reorders what they give.
  absl::Status PrepareQuantized(bool known_order);
  bool has_quantized() const { return quantized_ != nullptr; }
  // Returns the bytes of a panel in this format, not kFull.
  size_t quantized_bytes(WeightFormat format) const {
    return codec(format).encoded_bytes();
  }
  // Returns the bytes that Dequantize needs beside its output, which may be 0.
  size_t plain_bytes() const {
    return quantized_->in_order ? 0 : quantized_->int4.decoded_bytes();
  }
  absl::Status Quantize(WeightFormat format, const float* rows,
                        std::byte* out) const {
    return codec(format).Encode(rows, out);
  }
  // Makes numbers of a quantized matrix's panel of this shape. Writes
  // packed_bytes() at `out`, aligned as a panel; `plain` has plain_bytes().
  dnnl_status_t Dequantize(const MatrixLayout& w, int panel,
                           const std::byte* quantized, std::byte* out,
                           std::byte* plain, const dnnl::stream& stream,
                           int thread) const;
  // Returns the order in which Run sums, if PrepareSlices found it: then
  // MultiplySlice gives the same bits.
  SumOrder sum_order() const {
    return slices_ == nullptr ? SumOrder() : slices_->sums;
  }
  // Returns the packed order, if PrepareSlices found it: else block is 0.
  const PanelOrder& packed_order() const { return slices_->order; }
  // Returns whether MultiplySlice took less time than Run when it was tried.
  bool slices_are_faster() const {
    return slices_ != nullptr && slices_->faster;
  }
  // Returns whether the codes lie in the packed order.
  bool quantized_in_order() const { return quantized_->in_order; }

  const dnnl::memory::desc& packed_desc() const { return packed_; }
  size_t packed_bytes() const { return packed_.get_size(); }
  size_t scratchpad_bytes() const { return scratchpad_bytes_; }
  // Returns the tiles, largest first; the first has GemmEngine::kTileRows.
  const std::vector<Tile>& tiles() const { return tiles_; }
  int32_t n() const { return n_; }
  // Columns of a tile: n, filled up with zeros.
  int32_t width() const { return width_; }
  int32_t k() const { return k_; }

 private:
  struct Slices {
    PanelOrder order;
    SumOrder sums;
    bool faster = false;
  };
  struct Quantized {
    PanelCodec int4, int8;
    bool in_order = false;
    PanelOrder order;  // of what is decoded, and its dtype
    DType decoded = DType::kFloat32;
    // Reorders float32 [k, n] to the packed order if not in_order.
    dnnl::reorder reorder;
    std::vector<dnnl::memory> plain, packed;  // per thread
  };

  const PanelCodec& codec(WeightFormat format) const {
    return format == WeightFormat::kInt4 ? quantized_->int4 : quantized_->int8;
  }
  // Decodes a panel to the order of quantized_.
  void Decode(const MatrixLayout& w, int panel, const std::byte* quantized,
              std::byte* out) const;
  // Finds the packed order by packing numbers that tell where they come from;
  // block is 0 if it has another form.
  absl::StatusOr<PanelOrder> FindOrder() const;
  // Finds the order of summation by trying those that oneDNN is known to have;
  // chunk is 0 if it has another.
  absl::StatusOr<SumOrder> FindSumOrder() const;
  // Returns whether MultiplySlice, which sums in this order, is faster than the
  // largest tile: twice so with bfloat16 where the processor does fewer of
  // these multiply-adds at a time.
  absl::StatusOr<bool> TrySlices(const SumOrder& sums) const;
  // Drops the tiles that do not give every row the same bits.
  absl::Status KeepInvariantTiles();

  int32_t n_ = 0;
  int32_t width_ = 0;
  int32_t k_ = 0;
  DType dtype_ = DType::kFloat32;
  dnnl::engine engine_;
  dnnl::memory::desc packed_;
  std::vector<dnnl::memory> weights_;  // per thread, with its own data handle
  size_t scratchpad_bytes_ = 0;
  std::vector<Tile> tiles_;  // largest first
  std::unique_ptr<Slices> slices_;
  std::unique_ptr<Quantized> quantized_;
};

}  // namespace sluice
