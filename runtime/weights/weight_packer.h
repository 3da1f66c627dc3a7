#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/layer_layout.h"
#include "runtime/weights/image_window.h"
#include "runtime/weights/load_progress.h"
#include "runtime/weights/matrix_packer.h"

namespace sluice {

// Reads a checkpoint's tensors into images: by rows, a panel at a time and on
// all threads, so that it needs little memory besides the image. Used by one
// thread at a time.
class WeightPacker {
 public:
  // All must outlive the packer.
  WeightPacker(const DecoderSpec& spec, MatrixPacker* packer, ComputePool* pool,
               MemoryBudget* budget)
      : spec_(spec), packer_(packer), pool_(pool), budget_(budget) {}

  // `to` is a window of an image of the layout; gaps are left alone. What lies
  // across its borders is packed once for each window that has some of it.
  absl::Status PackLayer(const LayerLayout& layout, int layer,
                         const TensorSource& source, LoadProgress progress,
                         const ImageWindow& to);
  absl::Status PackEmbedding(const EmbeddingLayout& layout,
                             const TensorSource& source, LoadProgress progress,
                             const ImageWindow& to);
  absl::Status PackHead(const HeadSectionLayout& layout,
                        const TensorSource& source, LoadProgress progress,
                        const ImageWindow& to);

 private:
  // Rows of tensors that lie side by side in a panel.
  struct RowRun {
    const TensorRef* ref;
    int64_t begin;
    int64_t end;
  };
  using PanelRows = std::vector<RowRun>;

  // Rows of tensors one after the other.
  static std::vector<PanelRows> IntoPanels(const std::vector<RowRun>& runs);
  // All of them.
  static std::vector<PanelRows> Concatenate(
      const std::vector<const TensorRef*>& tensors);
  // Half a panel of each.
  static std::vector<PanelRows> Interleave(const TensorRef* a,
                                           const TensorRef* b);

  absl::Status PackMatrix(const MatrixLayout& layout,
                          const std::vector<PanelRows>& panels,
                          const TensorSource& source, LoadProgress progress,
                          const ImageWindow& to);
  // A table of which rows are looked up, in its dtype, from `offset`
  // on in the image.
  absl::Status PackTable(const TensorRef& ref, int64_t rows, size_t offset,
                         const TensorSource& source, LoadProgress progress,
                         const ImageWindow& to);
  // Nothing if the layout is empty.
  absl::Status PackVectors(const VectorLayout& layout,
                           const std::vector<const TensorRef*>& tensors,
                           const TensorSource& source, const ImageWindow& to);

  const DecoderSpec& spec_;
  MatrixPacker* const packer_;
  ComputePool* const pool_;
  MemoryBudget* const budget_;
};

}  // namespace sluice
