#include "runtime/model/checkpoint/tensor_names.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

bool IsOpt(const DecoderSpec& spec) { return spec.model_type == "opt"; }

// Collects tensors under a common prefix.
class Collector {
 public:
  explicit Collector(std::string prefix) : prefix_(std::move(prefix)) {}
  void Add(TensorRole role, const char* name, std::vector<int64_t> shape) {
    tensors_.push_back({role, absl::StrCat(prefix_, name), std::move(shape)});
  }
  std::vector<TensorRef> Take() { return std::move(tensors_); }

 private:
  std::string prefix_;
  std::vector<TensorRef> tensors_;
};

TensorRef EmbeddingRef(const DecoderSpec& spec, TensorRole role) {
  return {role,
          IsOpt(spec) ? "model.decoder.embed_tokens.weight"
                      : "model.embed_tokens.weight",
          {spec.vocab_size, spec.embed_dim}};
}

}  // namespace

bool IsBias(TensorRole role) {
  switch (role) {
    case TensorRole::kNorm1Bias:
    case TensorRole::kQBias:
    case TensorRole::kKBias:
    case TensorRole::kVBias:
    case TensorRole::kOutBias:
    case TensorRole::kNorm2Bias:
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
    case TensorRole::kDownBias:
    case TensorRole::kFinalNormBias:
      return true;
    default:
      return false;
  }
}

std::vector<TensorRef> LayerTensors(const DecoderSpec& spec, int layer) {
  using Role = TensorRole;
  const bool opt = IsOpt(spec);
  Collector c(absl::StrCat(opt ? "model.decoder.layers." : "model.layers.",
                           layer, "."));
  const int64_t hidden = spec.hidden_size;
  const int64_t inner = spec.intermediate_size;
  const int64_t q = int64_t{spec.num_heads} * spec.head_dim;
  const int64_t kv = int64_t{spec.num_kv_heads} * spec.head_dim;
  const bool norm_weight = spec.norm == NormKind::kRmsNorm || spec.norm_affine;
  const bool norm_bias = spec.norm == NormKind::kLayerNorm && spec.norm_affine;

  if (norm_weight) {
    c.Add(Role::kNorm1Weight,
          opt ? "self_attn_layer_norm.weight" : "input_layernorm.weight",
          {hidden});
  }
  if (norm_bias) {
    c.Add(Role::kNorm1Bias,
          opt ? "self_attn_layer_norm.bias" : "input_layernorm.bias", {hidden});
  }
  c.Add(Role::kQWeight, "self_attn.q_proj.weight", {q, hidden});
  c.Add(Role::kKWeight, "self_attn.k_proj.weight", {kv, hidden});
  c.Add(Role::kVWeight, "self_attn.v_proj.weight", {kv, hidden});
  if (spec.qkv_bias) {
    c.Add(Role::kQBias, "self_attn.q_proj.bias", {q});
    c.Add(Role::kKBias, "self_attn.k_proj.bias", {kv});
    c.Add(Role::kVBias, "self_attn.v_proj.bias", {kv});
  }
  c.Add(Role::kOutWeight,
        opt ? "self_attn.out_proj.weight" : "self_attn.o_proj.weight",
        {hidden, q});
  if (spec.out_bias) {
    c.Add(Role::kOutBias,
          opt ? "self_attn.out_proj.bias" : "self_attn.o_proj.bias", {hidden});
  }
  if (norm_weight) {
    c.Add(Role::kNorm2Weight,
          opt ? "final_layer_norm.weight" : "post_attention_layernorm.weight",
          {hidden});
  }
  if (norm_bias) {
    c.Add(Role::kNorm2Bias,
          opt ? "final_layer_norm.bias" : "post_attention_layernorm.bias",
          {hidden});
  }
  if (spec.gated_mlp) {
    c.Add(Role::kGateWeight, "mlp.gate_proj.weight", {inner, hidden});
    if (spec.mlp_bias) c.Add(Role::kGateBias, "mlp.gate_proj.bias", {inner});
  }
  c.Add(Role::kUpWeight, opt ? "fc1.weight" : "mlp.up_proj.weight",
        {inner, hidden});
  if (spec.mlp_bias) {
    c.Add(Role::kUpBias, opt ? "fc1.bias" : "mlp.up_proj.bias", {inner});
  }
  c.Add(Role::kDownWeight, opt ? "fc2.weight" : "mlp.down_proj.weight",
        {hidden, inner});
  if (spec.mlp_bias) {
    c.Add(Role::kDownBias, opt ? "fc2.bias" : "mlp.down_proj.bias", {hidden});
  }
  return c.Take();
}

std::vector<TensorRef> EmbeddingTensors(const DecoderSpec& spec) {
  std::vector<TensorRef> tensors = {EmbeddingRef(spec, TensorRole::kEmbedding)};
  if (spec.positions == PositionKind::kLearned) {
    tensors.push_back({TensorRole::kPositionEmbedding,
                       "model.decoder.embed_positions.weight",
                       {int64_t{spec.max_positions} + spec.position_offset,
                        spec.hidden_size}});
  }
  if (spec.embed_dim != spec.hidden_size) {
    tensors.push_back({TensorRole::kProjectIn,
                       "model.decoder.project_in.weight",
                       {spec.hidden_size, spec.embed_dim}});
  }
  return tensors;
}

std::vector<TensorRef> HeadTensors(const DecoderSpec& spec) {
  const std::string prefix =
      IsOpt(spec) ? "model.decoder.final_layer_norm" : "model.norm";
  std::vector<TensorRef> tensors;
  if (spec.final_norm &&
      (spec.norm == NormKind::kRmsNorm || spec.norm_affine)) {
    tensors.push_back({TensorRole::kFinalNormWeight,
                       absl::StrCat(prefix, ".weight"),
                       {spec.hidden_size}});
    if (spec.norm == NormKind::kLayerNorm) {
      tensors.push_back({TensorRole::kFinalNormBias,
                         absl::StrCat(prefix, ".bias"),
                         {spec.hidden_size}});
    }
  }
  if (spec.embed_dim != spec.hidden_size) {
    tensors.push_back({TensorRole::kProjectOut,
                       "model.decoder.project_out.weight",
                       {spec.embed_dim, spec.hidden_size}});
  }
  if (spec.tied_embeddings) {
    tensors.push_back(EmbeddingRef(spec, TensorRole::kHead));
  } else {
    tensors.push_back({TensorRole::kHead,
                       "lm_head.weight",
                       {spec.vocab_size, spec.embed_dim}});
  }
  return tensors;
}

}  // namespace sluice
