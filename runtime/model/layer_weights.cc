#include "runtime/model/layer_weights.h"

#include <utility>

namespace sluice {

LayerWeights WeightsOf(const DecoderSpec& spec) {
  using Role = TensorRole;
  const int64_t hidden = spec.hidden_size;
  const int64_t inner = spec.intermediate_size;
  const int64_t q = int64_t{spec.num_heads} * spec.head_dim;
  const int64_t kv = int64_t{spec.num_kv_heads} * spec.head_dim;
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
  if (spec.gated_mlp) {
    vector(spec.mlp_bias, LayerVector::kUpBias,
           {{Role::kGateBias, RankSplit::kInner, inner, 0},
            {Role::kUpBias, RankSplit::kInner, inner, 0}});
  } else {
    vector(spec.mlp_bias, LayerVector::kUpBias,
           {{Role::kUpBias, RankSplit::kInner, inner, 0}});
  }
  vector(spec.mlp_bias, LayerVector::kDownBias,
         {{Role::kDownBias, RankSplit::kHidden, hidden, 0}});

  matrix(LayerMatrix::kQkv,
         {{Role::kQWeight, RankSplit::kHeads, q, hidden},
          {Role::kKWeight, RankSplit::kKvHeads, kv, hidden},
          {Role::kVWeight, RankSplit::kKvHeads, kv, hidden}});
  matrix(LayerMatrix::kOut,
         {{Role::kOutWeight, RankSplit::kHidden, hidden, q}});
  if (spec.gated_mlp) {
    matrix(LayerMatrix::kUp,
           {{Role::kGateWeight, RankSplit::kInner, inner, hidden},
            {Role::kUpWeight, RankSplit::kInner, inner, hidden}});
  } else {
    matrix(LayerMatrix::kUp,
           {{Role::kUpWeight, RankSplit::kInner, inner, hidden}});
  }
  matrix(LayerMatrix::kDown,
         {{Role::kDownWeight, RankSplit::kHidden, hidden, inner}});
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
      return &codes->gate;
    case TensorRole::kUpWeight:
      return &codes->up;
    case TensorRole::kDownWeight:
      return &codes->down;
    default:
      return nullptr;
  }
}

const CodeFormat* CodesOf(const LayerCodes& codes, TensorRole role) {
  LayerCodes copy = codes;
  const CodeFormat** const found = CodesOf(&copy, role);
  return found == nullptr ? nullptr : *found;
}

int64_t LayerElements(const DecoderSpec& spec) {
  int64_t elements = 0;
  for (const LayerWeights::Matrix& matrix : WeightsOf(spec).matrices) {
    for (const WeightSlot& slot : matrix.slots) {
      elements += slot.rows * slot.columns;
    }
  }
  return elements;
}

}  // namespace sluice
