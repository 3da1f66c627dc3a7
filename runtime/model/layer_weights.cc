#include "runtime/model/layer_weights.h"

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

using Role = TensorRole;

// The matrices of an MLP, their biases, and how they are divided.
struct MlpParts {
  RankSplit split;
  Role gate, up, down;
  Role gate_bias, up_bias, down_bias;
};
constexpr MlpParts kMlp = {
    RankSplit::kInner, Role::kGateWeight, Role::kUpWeight, Role::kDownWeight,
    Role::kGateBias,   Role::kUpBias,     Role::kDownBias};
constexpr MlpParts kExpert = {RankSplit::kExpertInner, Role::kExpertGateWeight,
                              Role::kExpertUpWeight,   Role::kExpertDownWeight,
                              Role::kExpertGateBias,   Role::kExpertUpBias,
                              Role::kExpertDownBias};
// It has no biases.
constexpr MlpParts kShared = {RankSplit::kSharedInner, Role::kSharedGateWeight,
                              Role::kSharedUpWeight,   Role::kSharedDownWeight,
                              Role::kGateBias,         Role::kUpBias,
                              Role::kDownBias};

void AddMlp(const DecoderSpec& spec, const MlpParts& parts, int64_t inner,
            bool bias, std::vector<LayerWeights::Vector>* vectors,
            std::vector<LayerWeights::Matrix>* matrices) {
  const int64_t hidden = spec.hidden_size;
  std::vector<WeightSlot> biases = {{parts.up_bias, parts.split, inner, 0}};
  std::vector<WeightSlot> up = {{parts.up, parts.split, inner, hidden}};
  if (spec.gated_mlp) {
    biases.insert(biases.begin(), {parts.gate_bias, parts.split, inner, 0});
    up.insert(up.begin(), {parts.gate, parts.split, inner, hidden});
  }
  if (bias) {
    vectors->push_back({LayerVector::kUpBias, std::move(biases)});
    vectors->push_back({LayerVector::kDownBias,
                        {{parts.down_bias, RankSplit::kHidden, hidden, 0}}});
  }
  matrices->push_back({LayerMatrix::kUp, std::move(up)});
  matrices->push_back(
      {LayerMatrix::kDown, {{parts.down, RankSplit::kHidden, hidden, inner}}});
}

int64_t Elements(const std::vector<LayerWeights::Matrix>& matrices) {
  int64_t elements = 0;
  for (const LayerWeights::Matrix& matrix : matrices) {
    for (const WeightSlot& slot : matrix.slots) elements += slot.elements();
  }
  return elements;
}

}  // namespace

bool DecoderSpec::has_mixtures() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& layer) { return layer.mixture; });
}

int32_t DecoderSpec::widest_inner() const {
  int32_t widest = 0;
  for (int i = 0; i < num_layers; ++i) {
    const LayerSpec& of = layer(i);
    widest = std::max(
        {widest, inner_size(of), of.mixture ? mixture.expert_size : 0});
  }
  return widest;
}

LayerWeights WeightsOf(const DecoderSpec& spec, const LayerSpec& layer) {
  const int64_t hidden = spec.hidden_size;
  const int64_t q = int64_t{spec.num_heads} * spec.head_dim;
  const int64_t kv = int64_t{spec.num_kv_heads} * spec.head_dim;
  const MixtureSpec& mixture = spec.mixture;
  LayerWeights weights;
  const auto vector = [&](bool present, LayerVector part,
                          std::vector<WeightSlot> slots) {
    if (present) weights.vectors.push_back({part, std::move(slots)});
  };
  const auto matrix = [&](LayerMatrix part, std::vector<WeightSlot> slots) {
    weights.matrices.push_back({part, std::move(slots)});
  };
  const auto norm = [&](LayerVector weight, Role weight_role, LayerVector bias,
                        Role bias_role) {
    vector(spec.has_norm_weight(), weight,
           {{weight_role, RankSplit::kNone, hidden, 0}});
    vector(spec.has_norm_bias(), bias,
           {{bias_role, RankSplit::kNone, hidden, 0}});
  };

  if (spec.norm_place != NormPlace::kOutput) {
    norm(LayerVector::kNorm1Weight, Role::kNorm1Weight, LayerVector::kNorm1Bias,
         Role::kNorm1Bias);
    if (!spec.shared_norm) {
      norm(LayerVector::kNorm2Weight, Role::kNorm2Weight,
           LayerVector::kNorm2Bias, Role::kNorm2Bias);
    }
  }
  if (spec.qk_norm == QkNorm::kAllHeads ||
      spec.qk_norm == QkNorm::kEachHeadOwnWeight) {
    vector(true, LayerVector::kQNorm,
           {{Role::kQNormWeight, RankSplit::kHeads, q, 0}});
    vector(true, LayerVector::kKNorm,
           {{Role::kKNormWeight, RankSplit::kKvHeads, kv, 0}});
  } else if (spec.qk_norm == QkNorm::kEachHead) {
    vector(true, LayerVector::kQNorm,
           {{Role::kQNormWeight, RankSplit::kNone, spec.head_dim, 0}});
    vector(true, LayerVector::kKNorm,
           {{Role::kKNormWeight, RankSplit::kNone, spec.head_dim, 0}});
  }
  vector(spec.norms_outputs(), LayerVector::kOutNorm,
         {{Role::kOutNormWeight, RankSplit::kNone, hidden, 0}});
  vector(spec.norms_outputs(), LayerVector::kDownNorm,
         {{Role::kDownNormWeight, RankSplit::kNone, hidden, 0}});
  vector(spec.qkv_bias, LayerVector::kQkvBias,
         {{Role::kQBias, RankSplit::kHeads, q, 0},
          {Role::kKBias, RankSplit::kKvHeads, kv, 0},
          {Role::kVBias, RankSplit::kKvHeads, kv, 0}});
  vector(spec.out_bias, LayerVector::kOutBias,
         {{Role::kOutBias, RankSplit::kHidden, hidden, 0}});
  matrix(LayerMatrix::kQkv,
         {{Role::kQWeight, RankSplit::kHeads, q, hidden},
          {Role::kKWeight, RankSplit::kKvHeads, kv, hidden},
          {Role::kVWeight, RankSplit::kKvHeads, kv, hidden}});
  matrix(LayerMatrix::kOut,
         {{Role::kOutWeight, RankSplit::kHidden, hidden, q}});
  if (!layer.mixture) {
    AddMlp(spec, kMlp, spec.intermediate_size, spec.mlp_bias, &weights.vectors,
           &weights.matrices);
  } else if (mixture.shared_size > 0) {
    AddMlp(spec, kShared, mixture.shared_size, false, &weights.vectors,
           &weights.matrices);
  }
  vector(spec.attention_sinks, LayerVector::kSinks,
         {{Role::kSinks, RankSplit::kEachHead, spec.num_heads, 0}});
  if (!layer.mixture) return weights;
  vector(true, LayerVector::kRouter,
         {{Role::kRouterWeight, RankSplit::kNone, mixture.experts, hidden}});
  vector(mixture.router_bias, LayerVector::kRouterBias,
         {{Role::kRouterBias, RankSplit::kNone, mixture.experts, 0}});
  vector(mixture.choice_bias, LayerVector::kChoiceBias,
         {{Role::kChoiceBias, RankSplit::kNone, mixture.experts, 0}});
  vector(mixture.shared_size > 0 && mixture.shared_score,
         LayerVector::kSharedScore,
         {{Role::kSharedScoreWeight, RankSplit::kNone, 1, hidden}});
  weights.experts = mixture.experts;
  AddMlp(spec, kExpert, mixture.expert_size, mixture.expert_bias,
         &weights.expert_vectors, &weights.expert_matrices);
  return weights;
}

const CodeFormat** CodesOf(LayerCodes* codes, TensorRole role) {
  switch (role) {
    case TensorRole::kQWeight:
      return &codes->q;
    case TensorRole::kKWeight:
      return &codes->k;
    case TensorRole::kVWeight:
      return &codes->v;
    case TensorRole::kOutWeight:
      return &codes->out;
    case TensorRole::kGateWeight:
    case TensorRole::kSharedGateWeight:
      return &codes->gate;
    case TensorRole::kUpWeight:
    case TensorRole::kSharedUpWeight:
      return &codes->up;
    case TensorRole::kDownWeight:
    case TensorRole::kSharedDownWeight:
      return &codes->down;
    case TensorRole::kExpertGateWeight:
      return &codes->expert_gate;
    case TensorRole::kExpertUpWeight:
      return &codes->expert_up;
    case TensorRole::kExpertDownWeight:
      return &codes->expert_down;
    default:
      return nullptr;
  }
}

const CodeFormat* CodesOf(const LayerCodes& codes, TensorRole role) {
  LayerCodes copy = codes;
  const CodeFormat** const found = CodesOf(&copy, role);
  return found == nullptr ? nullptr : *found;
}

int64_t LayerElements(const DecoderSpec& spec, const LayerSpec& layer) {
  const LayerWeights weights = WeightsOf(spec, layer);
  return Elements(weights.matrices) +
         weights.experts * Elements(weights.expert_matrices);
}

int64_t RowElements(const DecoderSpec& spec, const LayerSpec& layer) {
  const LayerWeights weights = WeightsOf(spec, layer);
  return Elements(weights.matrices) +
         spec.mixture.experts_per_token * Elements(weights.expert_matrices);
}

int64_t AllLayerElements(const DecoderSpec& spec) {
  int64_t elements = 0;
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    elements += LayerElements(spec, spec.layer(layer));
  }
  return elements;
}

}  // namespace sluice
