#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/decoder_spec.h"

namespace sluice {

enum class TensorRole {
  // Tensors of a layer. Matrices are [out_features, in_features], row-major, as
  // Hugging Face stores nn.Linear.
  kNorm1Weight,
  kNorm1Bias,  // before (or after, post-norm) attention; [hidden]
  kQWeight,
  kQBias,  // [num_heads * head_dim, hidden]
  kKWeight,
  kKBias,  // [num_kv_heads * head_dim, hidden]
  kVWeight,
  kVBias,  // [num_kv_heads * head_dim, hidden]
  kOutWeight,
  kOutBias,  // [hidden, num_heads * head_dim]
  kNorm2Weight,
  kNorm2Bias,  // [hidden]
  kGateWeight,
  kGateBias,  // [intermediate, hidden]
  kUpWeight,
  kUpBias,  // [intermediate, hidden]; the only first matrix of a plain MLP
  kDownWeight,
  kDownBias,  // [hidden, intermediate]
  // Tensors of the first stage.
  kEmbedding,          // [vocab, embed_dim]; also the head's, if tied
  kPositionEmbedding,  // [max_positions + position_offset, hidden]
  kProjectIn,          // [hidden, embed_dim]
  // Tensors of the last stage.
  kFinalNormWeight,
  kFinalNormBias,  // [hidden]
  kProjectOut,     // [embed_dim, hidden]
  kHead,           // [vocab, embed_dim]
};

// One tensor that a model of this description must have.
struct TensorRef {
  TensorRole role;
  std::string name;  // in the checkpoint
  std::vector<int64_t> shape;
};

bool IsBias(TensorRole role);

std::vector<TensorRef> LayerTensors(const DecoderSpec& spec, int layer);
std::vector<TensorRef> EmbeddingTensors(const DecoderSpec& spec);
// With tied embeddings kHead names the embedding matrix.
std::vector<TensorRef> HeadTensors(const DecoderSpec& spec);

}  // namespace sluice
