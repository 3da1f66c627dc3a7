#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"

namespace sluice {

enum class NormKind { kRmsNorm, kLayerNorm };
enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };
enum class PositionKind { kRotary, kLearned };

// Rotary embedding, scaling already folded in: the angle of pair i at position
// p is p * inv_freq[i]. Pairs are (i, i + dim/2), as in Hugging Face;
// dimensions of a head from `dim` on are not rotated.
struct RotarySpec {
  int32_t dim = 0;
  std::vector<float> inv_freq;  // dim / 2
  float attention_factor = 1;   // multiplies sin and cos (YaRN)
};

// The description of a decoder-only transformer, which the executor interprets;
// a new family (families/) is a new description.
//
//   x = embed(tokens) [project_in] [+ learned positions]
//   each layer, pre-norm:   x += attention(norm1(x));  x += mlp(norm2(x))
//               post-norm:  x = norm1(x + attention(x));  x = norm2(x + mlp(x))
//   logits = head([project_out] final_norm(x))
struct DecoderSpec {
  std::string model_type;  // as in config.json
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t embed_dim = 0;  // width of the embedding; differs from hidden_size
                          // only with project_in / project_out
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;
  int32_t intermediate_size = 0;
  int32_t max_positions = 0;  // the maximum of a sequence
  // The default limit of a sequence, where the checkpoint does not tell for
  // sure that it is meant for max_positions; 0: max_positions.
  int32_t default_positions = 0;

  NormKind norm = NormKind::kRmsNorm;
  bool norm_affine =
      true;  // LayerNorm with weight and bias; RMSNorm always has a weight
  float norm_eps = 1e-5f;
  bool pre_norm = true;
  bool final_norm = true;

  Activation activation = Activation::kSilu;
  bool gated_mlp =
      true;  // down(act(gate(x)) * up(x)); otherwise down(act(up(x)))
  bool qkv_bias = false;
  // RMSNorm of each head's q and k, with norm_eps, before positions.
  bool qk_norm = false;
  bool out_bias = false;
  bool mlp_bias = false;

  PositionKind positions = PositionKind::kRotary;
  RotarySpec rotary;
  int32_t position_offset =
      0;  // row of the learned position table for position 0

  float attention_scale = 0;  // multiplies q.k
  // Factors of the embedding's rows, of what attention and MLP add to x, and of
  // the logits. They are made part of the weights (LayerTensors and its kin).
  float embedding_scale = 1;
  float residual_scale = 1;
  float logit_scale = 1;
  std::vector<int32_t> sliding_window;  // per layer: positions visible
                                        // including one's own; 0: all
  bool tied_embeddings = false;         // the head is the embedding matrix

  DType native_dtype = DType::kFloat32;  // of config.json
  std::vector<int32_t> eos_token_ids;    // of config.json
  int32_t bos_token_id = -1;
};

// Reads config.json's text. kInvalidArgument names the key that is missing, of
// the wrong type or out of range; kUnimplemented names a model_type or feature
// that is not supported. Accepts both spellings: torch_dtype / dtype,
// rope_theta + rope_scaling / rope_parameters.
absl::StatusOr<DecoderSpec> ParseDecoderSpec(absl::string_view config_json);

// For kAuto, returns the model's native dtype; for float16, unless
// `has_float16`, bfloat16, which is as wide and which processors compute with.
DType ResolveDType(DTypeChoice choice, const DecoderSpec& spec,
                   bool has_float16 = false);

}  // namespace sluice
