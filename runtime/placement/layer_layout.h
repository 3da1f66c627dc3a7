#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/number_format.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/layer_weights.h"
#include "runtime/placement/matrix_layout.h"
#include "runtime/placement/tensor_shard.h"

// The layout of a backend's packed weights, its packed units: one block of
// bytes for the embedding, for each layer and for each section of the head,
// without pointers, so that it can lie in memory, on disk, or partly here and
// partly there. Parts (vectors and the panels of matrices) begin at multiples
// of 64 bytes; packed units are multiples of 4096.

namespace sluice {

// A vector in a packed unit, float32 by default; length 0 if there is none.
struct VectorLayout {
  size_t offset = 0;
  int64_t length = 0;
  DType dtype = DType::kFloat32;
  size_t bytes() const { return length * ElementBytes(dtype); }
  // Returns the vector's address in a view of the packed unit (PackedView).
  template <typename View>
  const float* In(const View& packed, int64_t first = 0) const {
    if (length == 0) return nullptr;
    return reinterpret_cast<const float*>(packed.At(offset)) + first;
  }
};

struct NormLayout {
  VectorLayout weight;
  VectorLayout bias;
};

// One of a mixture's experts. Offsets count from where it begins.
struct ExpertLayout {
  VectorLayout up_bias;  // in the order of up's columns
  VectorLayout down_bias;
  MatrixLayout up;  // as LayerLayout's
  MatrixLayout down;
  size_t bytes = 0;  // whole granules
};

struct LayerLayout {
  NormLayout norm1, norm2;
  VectorLayout q_norm, k_norm;  // of a head, or of the rank's
  VectorLayout out_norm, down_norm;
  VectorLayout qkv_bias, out_bias;
  VectorLayout up_bias;  // in the order of up's columns
  // The up_bias in the rules' dtype, if they want that.
  VectorLayout up_bias_typed;
  VectorLayout down_bias;
  VectorLayout sinks;
  VectorLayout router;  // [experts, hidden]
  VectorLayout router_bias, choice_bias, shared_score;
  // Q, K and V side by side: of the rank's heads, if a stage has several ranks;
  // of the other matrices, too, it then has its columns (TensorShard), which
  // may be none.
  MatrixLayout qkv;
  MatrixLayout out;
  // The up columns; in a gated MLP also the gate columns, in turns with these
  // or before them, as PanelRules says.
  MatrixLayout up;
  MatrixLayout down;
  // A mixture's experts lie behind all else, one after the other, and each as
  // the first; all begin at a PlacementGranule of `bytes`, in which what is
  // read is checked. Up and down are then the shared expert's, or nobody's.
  ExpertLayout expert;
  int32_t experts = 0;
  size_t core_bytes = 0;  // of all else
  size_t bytes = 0;

  // Returns where an expert begins.
  size_t expert_begin(int32_t index) const {
    return core_bytes + static_cast<size_t>(index) * expert.bytes;
  }
  // Returns where the part begins that has the byte at `offset`: a packed unit
  // is cut between parts only.
  size_t PartBegin(size_t offset) const;

  VectorLayout& vector(LayerVector part);
  MatrixLayout& matrix(LayerMatrix part);

  // Return all vectors and all matrices, but those of experts, in the order in
  // which they lie.
  std::array<VectorLayout*, kNumLayerVectors> vectors();
  std::array<const VectorLayout*, kNumLayerVectors> vectors() const;
  std::array<MatrixLayout*, kNumLayerMatrices> matrices();
  std::array<const MatrixLayout*, kNumLayerMatrices> matrices() const;
};

// Some columns of the head's matrix, and in the first section the norm and
// projection before it.
struct HeadSectionLayout {
  NormLayout norm;
  MatrixLayout project_out;  // n is 0 if the model has none
  MatrixLayout head;
  VectorLayout head_bias;    // of the section's columns
  int32_t first_column = 0;  // among the rank's columns
  size_t bytes = 0;

  size_t PartBegin(size_t offset) const;  // as LayerLayout's
};

struct EmbeddingLayout {
  size_t table = 0;  // [vocab, embed_dim] in the rules' table_dtype; first
  // Of rows that are as the checkpoint has them; null: they are numbers.
  const CodeFormat* codes = nullptr;
  size_t row_bytes = 0;    // of the table
  size_t table_bytes = 0;  // all rows
  size_t positions = 0;    // [position_rows, hidden] in the same
  int64_t position_rows = 0;
  MatrixLayout project_in;  // n is 0 if the model has none
  NormLayout norm;
  size_t bytes = 0;
};

// `format` is that of the layers' matrices. A head of quantized layers has 8
// bits: it is a large part of what is read, and the logits' errors are the
// answer's. Its small projection and the embedding stay full.
// The shard is that of the layers' format, also for a layer made full.
// Full matrices whose weights `layer` has codes of stay in these, if the rules
// keep them and they come in whole strips: all of a matrix, or none.
LayerLayout MakeLayerLayout(const DecoderSpec& spec, const LayerSpec& layer,
                            WeightFormat format, const TensorShard& shard,
                            const PanelRules& rules);
// Cuts the rank's part of the head into sections of whole panels, none much
// larger than the layers' largest unit, of `unit_bytes`, or a MiB, if a panel
// is not.
std::vector<HeadSectionLayout> MakeHeadLayout(const DecoderSpec& spec,
                                              WeightFormat format,
                                              const TensorShard& shard,
                                              size_t unit_bytes,
                                              const PanelRules& rules);
// A learned position table has the rows that `max_model_len` positions look up.
EmbeddingLayout MakeEmbeddingLayout(const DecoderSpec& spec,
                                    int32_t max_model_len,
                                    const PanelRules& rules);

}  // namespace sluice
