#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/weights/image_window.h"
#include "runtime/weights/layer_layout.h"
#include "runtime/weights/load_progress.h"
#include "runtime/weights/matrix_packer.h"
#include "runtime/weights/weight_packer.h"

namespace sluice {

// How one stage's weights lie packed for one backend, and the packing. They
// come as images: blocks of bytes that the caller keeps in memory or on disk as
// it likes, and shows to the backend for the time of a call (ImageView). What
// differs between backends is their MatrixPacker. Used by one thread at a time.
class PackedWeights {
 public:
  struct Options {
    LayerRange layers;  // those of the first have an embedding, of the last a
                        // head
    WeightFormat format = WeightFormat::kFull;
    int32_t max_model_len = 0;  // positions in a sequence
  };
  // The pool and the budget, which packing uses, must outlive this. The errors
  // of MatrixPacker::Layout.
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Create(
      const DecoderSpec& spec, const Options& options,
      std::unique_ptr<MatrixPacker> matrices, ComputePool* pool,
      MemoryBudget* budget);
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // What the computing calls find in images. All layers are alike; those of
  // `expanded` have quantized weights made full, and no bytes if weights are
  // full anyway. Without an embedding or a head, these are empty.
  const EmbeddingLayout& embedding() const { return embedding_; }
  const LayerLayout& layer() const { return layer_; }
  const LayerLayout& expanded() const { return expanded_; }
  const std::vector<HeadSectionLayout>& head() const { return head_; }

  // Sizes of images: multiples of 4096.
  size_t EmbeddingBytes() const { return embedding_.bytes; }
  size_t LayerBytes() const { return layer_.bytes; }
  size_t ExpandedLayerBytes() const { return expanded_.bytes; }
  // The head's matrix is cut into sections of columns, none of which is much
  // larger than a layer: a large vocabulary's need not be in memory at once.
  int num_head_sections() const { return static_cast<int>(head_.size()); }
  size_t HeadBytes(int section) const { return head_[section].bytes; }
  // The embedding's table lies at the head of its image: the row of token t is
  // bytes [t, t + 1) * EmbeddingRowBytes(), and nothing else is looked up by
  // token. A caller may show an image with other rows there, and give
  // Backend::Embed their numbers for tokens.
  size_t EmbeddingRowBytes() const {
    return static_cast<size_t>(spec_.embed_dim) *
           ElementBytes(matrices_->table_dtype());
  }
  size_t EmbeddingTableBytes() const {
    return static_cast<size_t>(spec_.vocab_size) * EmbeddingRowBytes();
  }
  // Where the parts of an image begin that must not straddle a split,
  // ascending, from 0.
  std::span<const size_t> LayerParts() const { return layer_.parts; }
  std::span<const size_t> HeadParts(int section) const {
    return head_[section].parts;
  }
  // What the bytes of an image depend on, beside the weights themselves.
  std::string ImageKey() const;

  // These read, convert and pack what of the tensors lies in the window of
  // their image; progress adds up to the window. `layer` counts from the
  // model's first.
  absl::Status PackEmbedding(const TensorSource& source, LoadProgress progress,
                             const ImageWindow& to) {
    return packer_.PackEmbedding(embedding_, source, progress, to);
  }
  absl::Status PackLayer(int layer, const TensorSource& source,
                         LoadProgress progress, const ImageWindow& to) {
    return packer_.PackLayer(layer_, layer, source, progress, to);
  }
  absl::Status PackHead(int section, const TensorSource& source,
                        LoadProgress progress, const ImageWindow& to) {
    return packer_.PackHead(head_[section], source, progress, to);
  }

 private:
  PackedWeights(const DecoderSpec& spec, const Options& options,
                std::unique_ptr<MatrixPacker> matrices, ComputePool* pool,
                MemoryBudget* budget)
      : spec_(spec),
        options_(options),
        matrices_(std::move(matrices)),
        packer_(spec_, matrices_.get(), pool, budget) {}
  absl::Status MakeLayouts();
  // Rows of the position table that may be looked up.
  int64_t PositionRows() const {
    return int64_t{options_.max_model_len} + spec_.position_offset;
  }

  const DecoderSpec spec_;
  const Options options_;
  const std::unique_ptr<MatrixPacker> matrices_;
  WeightPacker packer_;
  EmbeddingLayout embedding_;
  LayerLayout layer_, expanded_;
  std::vector<HeadSectionLayout> head_;
};

}  // namespace sluice
