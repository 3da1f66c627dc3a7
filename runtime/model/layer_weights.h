#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/decoder_spec.h"

// The weights of a layer: the one list from which naming, packing, placing,
// dividing among ranks and costing derive.

namespace sluice {

// A weight, as the computing calls know it. Matrices are [outputs, inputs],
// row-major, as Hugging Face stores nn.Linear.
enum class TensorRole {
  // Tensors of a layer.
  kNorm1Weight,
  kNorm1Bias,  // before (or after, post-norm) attention; [hidden]
  kQWeight,
  kQBias,  // [num_heads * head_dim, hidden]
  kKWeight,
  kKBias,  // [num_kv_heads * head_dim, hidden]
  kVWeight,
  kVBias,        // [num_kv_heads * head_dim, hidden]
  kQNormWeight,  // [head_dim], or of all heads
  kKNormWeight,  // [head_dim], or of all KV heads
  kOutWeight,
  kOutBias,        // [hidden, num_heads * head_dim]
  kOutNormWeight,  // of what attention gives; [hidden]
  kNorm2Weight,
  kNorm2Bias,  // [hidden]
  kGateWeight,
  kGateBias,  // [intermediate, hidden]
  kUpWeight,
  kUpBias,  // [intermediate, hidden]; the only first matrix of a plain MLP
  kDownWeight,
  kDownBias,        // [hidden, intermediate]
  kDownNormWeight,  // of what the MLP gives; [hidden]
  // Tensors of the first stage.
  kEmbedding,          // [vocab, embed_dim]; also the head's, if tied
  kPositionEmbedding,  // [max_positions + position_offset, hidden]
  kProjectIn,          // [hidden, embed_dim]
  kEmbedNormWeight,
  kEmbedNormBias,  // [hidden]
  // Tensors of the last stage.
  kFinalNormWeight,
  kFinalNormBias,  // [hidden]
  kProjectOut,     // [embed_dim, hidden]
  kHead,
  kHeadBias,  // [vocab, embed_dim]
  // Further tensors of a layer: the logits of attention's sinks, [num_heads];
  // and of a mixture.
  kSinks,
  kRouterWeight,
  kRouterBias,  // [experts, hidden]
  kChoiceBias,  // [experts]
  kExpertGateWeight,
  kExpertGateBias,  // [expert_size, hidden]
  kExpertUpWeight,
  kExpertUpBias,  // [expert_size, hidden]
  kExpertDownWeight,
  kExpertDownBias,     // [hidden, expert_size]
  kSharedGateWeight,   // [shared_size, hidden]
  kSharedUpWeight,     // [shared_size, hidden]
  kSharedDownWeight,   // [hidden, shared_size]
  kSharedScoreWeight,  // [1, hidden]
};

// By what the rows of a matrix, or the elements of a vector, are divided among
// the ranks of a stage (TensorShard).
// kHeads and kKvHeads: a row for each element of a head. kEachHead: a row for
// each query head. The last three: by what lies between the matrices of an MLP,
// of the shared expert, or of another.
enum class RankSplit {
  kNone,
  kHeads,
  kKvHeads,
  kEachHead,
  kHidden,
  kInner,
  kSharedInner,
  kExpertInner,
};

struct WeightSlot {
  TensorRole role;
  RankSplit split;
  int64_t rows;     // of a matrix; the length of a vector
  int64_t columns;  // of a matrix; 0: a vector
  int64_t elements() const { return columns == 0 ? rows : rows * columns; }
};

// The vectors and matrices of a layer that are computed with, in the order in
// which they lie in its packed unit. Several slots may lie side by side in one.
enum class LayerVector {
  kNorm1Weight,
  kNorm1Bias,
  kNorm2Weight,
  kNorm2Bias,
  kQNorm,
  kKNorm,
  kOutNorm,
  kDownNorm,
  kQkvBias,
  kOutBias,
  kUpBias,       // in the order of up's columns
  kUpBiasTyped,  // the same in another dtype, for those who want it
  kDownBias,
  kSinks,
  kRouter,  // row by row: rows of logits are no GEMM's
  kRouterBias,
  kChoiceBias,
  kSharedScore,
};
inline constexpr int kNumLayerVectors =
    static_cast<int>(LayerVector::kSharedScore) + 1;

// Up and down are those of the MLP, of the shared expert, or of an expert.
enum class LayerMatrix {
  kQkv,  // Q, K and V
  kOut,
  kUp,  // gate, in a gated MLP, and up
  kDown,
};
inline constexpr int kNumLayerMatrices =
    static_cast<int>(LayerMatrix::kDown) + 1;

struct LayerWeights {
  struct Vector {
    LayerVector part;
    std::vector<WeightSlot> slots;
  };
  struct Matrix {
    LayerMatrix part;
    std::vector<WeightSlot> slots;  // of as many columns
  };
  std::vector<Vector> vectors;
  std::vector<Matrix> matrices;
  // Of each of a mixture's experts.
  int32_t experts = 0;
  std::vector<Vector> expert_vectors;
  std::vector<Matrix> expert_matrices;
};

// Returns what such a layer has, in the order of the parts. kUpBiasTyped, a
// copy, is not among it.
LayerWeights WeightsOf(const DecoderSpec& spec, const LayerSpec& layer);

// Returns what the checkpoint has a matrix coded in, or null; and where that is
// kept, null for a role that has none.
const CodeFormat* CodesOf(const LayerCodes& codes, TensorRole role);
const CodeFormat** CodesOf(LayerCodes* codes, TensorRole role);

// Returns the elements of a layer's matrices; and of those that a row is
// multiplied by: of the experts, only those that it takes.
int64_t LayerElements(const DecoderSpec& spec, const LayerSpec& layer);
int64_t RowElements(const DecoderSpec& spec, const LayerSpec& layer);
// Returns the sum of all layers' LayerElements.
int64_t AllLayerElements(const DecoderSpec& spec);

}  // namespace sluice
