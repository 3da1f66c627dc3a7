#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/backend_space.h"
#include "runtime/weights/matrix_packer.h"
#include "runtime/weights/packed_window.h"

namespace sluice {

// One stage's weights, packed for one backend: their layout, and the packing.
// They come as packed units: blocks of bytes that the caller keeps in memory or
// on disk as it likes, and shows to the backend for the time of a call
// (PackedView). What differs between backends is their MatrixPacker. Used by
// one thread at a time.
class PackedWeights {
 public:
  // The pool and the budget, which packing uses, must outlive this. The errors
  // of MatrixPacker::Prepare.
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Create(
      const DecoderSpec& spec, const BackendShape& shape,
      std::unique_ptr<MatrixPacker> matrices, ComputePool* pool,
      MemoryBudget* budget);
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // The layouts of what the computing calls find in packed units. `layer`
  // counts from the model's first; that of `dequantized` has quantized weights
  // made full, and no bytes if all are full anyway. Without an embedding or a
  // head, these are empty.
  const PackedLayouts& layouts() const { return layouts_; }
  const EmbeddingLayout& embedding() const { return layouts_.embedding; }
  const LayerLayout& layer(int layer) const { return layouts_.layer(layer); }
  const LayerLayout& dequantized() const { return layouts_.dequantized; }
  const std::vector<HeadSectionLayout>& head() const { return layouts_.head; }

  // Sizes of packed units: multiples of 4096.
  size_t EmbeddingBytes() const { return embedding().bytes; }
  size_t LayerBytes(int layer) const { return layouts_.layer(layer).bytes; }
  size_t DequantizedLayerBytes() const { return dequantized().bytes; }
  // The head's matrix is cut into sections of columns, none of which is much
  // larger than a layer: a large vocabulary's need not be in memory at once.
  int num_head_sections() const { return static_cast<int>(head().size()); }
  // The embedding's table lies at the head of its packed unit: the row of token
  // t is bytes [t, t + 1) * EmbeddingRowBytes(), and nothing else is looked up
  // by token. A caller may show a packed unit with other rows there, and give
  // Backend::Embed their numbers for tokens.
  size_t EmbeddingRowBytes() const { return embedding().row_bytes; }
  size_t EmbeddingTableBytes() const { return embedding().table_bytes; }
  // Returns what the bytes of a packed unit depend on, beside the weights
  // themselves.
  std::string PackedKey() const;

  // These read, convert and pack what of the tensors lies in the window of
  // their packed unit: by rows, a panel at a time and on all threads, with
  // little memory besides. Gaps are left alone; what lies across the window's
  // borders is packed once for each window that has some of it. Progress adds
  // up to the window. `layer` counts from the model's first.
  absl::Status PackEmbedding(const TensorSource& source, LoadProgress progress,
                             const PackedWindow& to);
  absl::Status PackLayer(int layer, const TensorSource& source,
                         LoadProgress progress, const PackedWindow& to);
  absl::Status PackHead(int section, const TensorSource& source,
                        LoadProgress progress, const PackedWindow& to);

 private:
  PackedWeights(const DecoderSpec& spec, const BackendShape& shape,
                std::unique_ptr<MatrixPacker> matrices, ComputePool* pool,
                MemoryBudget* budget)
      : spec_(spec),
        shape_(shape),
        matrices_(std::move(matrices)),
        pool_(pool),
        budget_(budget),
        layouts_(PackedLayouts::Of(spec_, shape_, matrices_->rules())) {}

  const DecoderSpec spec_;
  const BackendShape shape_;
  const std::unique_ptr<MatrixPacker> matrices_;
  ComputePool* const pool_;
  MemoryBudget* const budget_;
  PackedLayouts layouts_;
};

}  // namespace sluice
