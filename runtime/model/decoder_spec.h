#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/model/code_format.h"

namespace sluice {

enum class NormKind { kRmsNorm, kLayerNorm };
enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };
// Rotary; rows of a table, added to the embedding; or ALiBi, which adds to a
// score the distance, not positive, times the head's slope (Press, Smith and
// Lewis 2022, section 3). Rounded ALiBi (Falcon) adds to q.k, before it is
// scaled, what b(j) exceeds b of the token's own position by: b(j) is position
// j times the slope, with both and the product rounded to bfloat16.
enum class PositionKind { kRotary, kLearned, kAlibi, kRoundedAlibi };

// Where a block's norms are: of what attention and MLP take, of what they give,
// of both, or of their sums with x.
enum class NormPlace { kInput, kOutput, kInputAndOutput, kSum };
// The norm of q and k, with norm_eps, before positions: RMSNorm of each head's
// by itself, with a weight that all heads share; LayerNorm of each head's, each
// with a weight of its own and no bias; RMSNorm of all heads' together.
enum class QkNorm { kNone, kEachHead, kEachHeadOwnWeight, kAllHeads };

// Rotary embedding, scaling already folded in: the angle of pair i at position
// p is p * inv_freq[i]. Pairs are (i, i + dim/2), as in Hugging Face;
// dimensions of a head from `dim` on are not rotated.
struct RotarySpec {
  int32_t dim = 0;
  std::vector<float> inv_freq;  // dim / 2
  float attention_factor = 1;   // multiplies sin and cos (YaRN)
  friend bool operator==(const RotarySpec&, const RotarySpec&) = default;
};

// What a router makes of its logits, of which each expert has one: the scores
// by which experts are chosen, and the weights of those that are.
enum class RouterKind {
  kSoftmax,        // scores and weights: softmax over all experts
  kSigmoid,        // scores and weights: sigmoid of each logit
  kChosenSoftmax,  // scores: the logits; weights: softmax over the chosen
};

// A mixture of experts, MLPs of which each row takes a few. Of a row h, normed
// as an MLP's input is, all of it in float32 but for the experts' products:
//
//   logits = router(h) [+ router bias], and scores of RouterKind
//   chosen = the experts_per_token experts of the greatest score [+ choice
//            bias]; of equal ones, those of lower numbers
//   y = [[sigmoid(shared_score(h))] shared(h)] and then, in the order of their
//       numbers, + weight * expert(h) of each of the chosen
//
// and y is added to x as what an MLP gives. With several groups, which are
// neighbouring experts, a group counts as the sum of its two greatest scores
// [+ choice bias], and only experts of the chosen_groups greatest are chosen.
struct MixtureSpec {
  int32_t experts = 0;  // 0: the model has no mixtures
  int32_t experts_per_token = 0;
  int32_t expert_size = 0;    // the width between an expert's matrices
  int32_t shared_size = 0;    // of the expert that all rows take; 0: none
  bool shared_score = false;  // the shared expert's output has a factor
  RouterKind router = RouterKind::kSoftmax;
  bool router_bias = false;
  bool choice_bias = false;  // of choosing only, no part of weights
  // Weights of the chosen are divided by their sum, or by least_sum if that is
  // greater, unless it is 0; and then multiplied by `scale`.
  bool normalize = false;
  float least_sum = 0;
  float scale = 1;
  int32_t groups = 1;  // divides `experts`
  int32_t chosen_groups = 1;
  bool expert_bias = false;  // of the experts' matrices, but not the shared's
  friend bool operator==(const MixtureSpec&, const MixtureSpec&) = default;
};

// The formats in which the checkpoint has a layer's matrices coded, each output
// by itself; null: it has numbers, or codes that are only read as numbers. Bits
// of answers do not depend on whether codes are kept. In a mixture gate, up and
// down are those of the shared expert, and all other experts are alike.
struct LayerCodes {
  const CodeFormat* q = nullptr;
  const CodeFormat* k = nullptr;
  const CodeFormat* v = nullptr;
  const CodeFormat* out = nullptr;
  const CodeFormat* gate = nullptr;
  const CodeFormat* up = nullptr;
  const CodeFormat* down = nullptr;
  const CodeFormat* expert_gate = nullptr;
  const CodeFormat* expert_up = nullptr;
  const CodeFormat* expert_down = nullptr;
  friend bool operator==(const LayerCodes&, const LayerCodes&) = default;
};

// What layers of one model may differ in.
struct LayerSpec {
  int32_t window = 0;         // positions visible including one's own; 0: all
  int32_t rotary = 0;         // of DecoderSpec::rotaries; -1: none
  float attention_scale = 1;  // times DecoderSpec::attention_scale
  bool mixture = false;       // DecoderSpec::mixture takes the MLP's place
  LayerCodes codes;
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// The description of a decoder-only transformer, which the executor interprets;
// a new family (families/) is a new description.
//
//   x = [embed_norm] embed(tokens) [project_in] [+ learned positions]
//   each layer, by NormPlace:
//     kInput            x += attention(norm1(x));  x += mlp(norm2(x))
//     kOutput           x += out_norm(attention(x));  x += down_norm(mlp(x))
//     kInputAndOutput   x += out_norm(attention(norm1(x)));
//                       x += down_norm(mlp(norm2(x)))
//     kSum              x = norm1(x + attention(x));  x = norm2(x + mlp(x))
//     kInput, parallel  x += attention(norm1(x)) + mlp(norm2(x))
//   logits = cap(head([project_out] final_norm(x)))
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
  int32_t intermediate_size = 0;  // of layers without a mixture
  int32_t max_positions = 0;      // the maximum of a sequence
  // The default limit of a sequence, where the checkpoint does not tell for
  // sure that it is meant for max_positions; 0: max_positions.
  int32_t default_positions = 0;

  NormKind norm = NormKind::kRmsNorm;
  // Of LayerNorm: whether there is a weight, and with it a bias. RMSNorm always
  // has a weight and never a bias.
  bool norm_affine = true;
  bool norm_bias = true;
  float norm_eps = 1e-5f;
  // Norms of outputs have no bias.
  NormPlace norm_place = NormPlace::kInput;
  // Attention and MLP take the same x. With shared_norm, norm2 is norm1.
  bool parallel = false;
  bool shared_norm = false;
  bool final_norm = true;
  bool embed_norm = false;  // of the embedding

  Activation activation = Activation::kSilu;
  bool gated_mlp =
      true;  // down(act(gate(x)) * up(x)); otherwise down(act(up(x)))
  // Of gated MLPs and experts with SiLU, for g = gate(x) and u = up(x): if
  // gate_limit is not 0, g is at most that, and u within it on both sides;
  // then down(g * sigmoid(gate_slope * g) * (u + up_offset)).
  float gate_limit = 0;
  float gate_slope = 1;
  float up_offset = 0;
  MixtureSpec mixture;  // that layers have (LayerSpec::mixture)
  bool qkv_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool out_bias = false;
  // Each query head has a logit of its own, its sink, which takes part in its
  // softmax as one more position would that has no value.
  bool attention_sinks = false;
  bool mlp_bias = false;
  bool head_bias = false;

  PositionKind positions = PositionKind::kRotary;
  std::vector<RotarySpec> rotaries;  // that layers have
  int32_t position_offset =
      0;  // row of the learned position table for position 0

  float attention_scale = 0;  // multiplies q.k
  // A value s becomes cap * tanh(s / cap), of scaled q.k and of logits; 0: no
  // cap.
  float attention_cap = 0;
  float logit_cap = 0;
  // Factors of the embedding's rows, of what attention and MLP add to x, and of
  // the logits. They are made part of the weights (LayerTensors and its kin).
  float embedding_scale = 1;
  float residual_scale = 1;
  float logit_scale = 1;
  std::vector<LayerSpec> layers;  // [num_layers]; empty: all default
  bool tied_embeddings = false;   // the head is the embedding matrix
  // As LayerCodes, of the head and of the embedding's rows, which are decoded
  // before embedding_scale.
  const CodeFormat* head_codes = nullptr;
  const CodeFormat* embedding_codes = nullptr;
  // The checkpoint has no head, so that there are embeddings, but no logits. It
  // is described as tied.
  bool headless = false;

  DType native_dtype = DType::kFloat32;  // of config.json
  std::vector<int32_t> eos_token_ids;    // of config.json
  int32_t bos_token_id = -1;

  LayerSpec layer(int i) const {
    return static_cast<size_t>(i) < layers.size() ? layers[i] : LayerSpec();
  }
  // Returns what a layer's positions are rotated by, or null.
  const RotarySpec* rotary(int i) const {
    const auto of = static_cast<size_t>(layer(i).rotary);
    return of < rotaries.size() ? &rotaries[of] : nullptr;
  }
  // Returns the width between the matrices of a layer's MLP, or of its shared
  // expert; 0: it has neither.
  int32_t inner_size(const LayerSpec& layer) const {
    return layer.mixture ? mixture.shared_size : intermediate_size;
  }
  bool has_mixtures() const;
  // Returns the greatest width between the matrices of an MLP or an expert.
  int32_t widest_inner() const;
  bool alibi() const {
    return positions == PositionKind::kAlibi ||
           positions == PositionKind::kRoundedAlibi;
  }
  // Returns ALiBi's slope of a query head, float32, not rounded; 0 without
  // ALiBi. Heads from alibi_heads() on, if their number is no power of two,
  // have those between.
  float alibi_slope(int head) const;
  // Returns the greatest power of two that is not above num_heads, or 0 without
  // ALiBi.
  int32_t alibi_heads() const;
  bool norms_inputs() const {
    return norm_place == NormPlace::kInput ||
           norm_place == NormPlace::kInputAndOutput;
  }
  bool norms_outputs() const {
    return norm_place == NormPlace::kOutput ||
           norm_place == NormPlace::kInputAndOutput;
  }
  bool has_norm_bias() const {
    return norm == NormKind::kLayerNorm && norm_affine && norm_bias;
  }
  bool has_norm_weight() const {
    return norm == NormKind::kRmsNorm || norm_affine;
  }
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
