#include "runtime/model/checkpoint/tensor_names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

TensorRef Bind(const DecoderSpec& spec, TensorRole role, int layer,
               std::vector<int64_t> shape, int expert = -1) {
  const Family* const known = FindFamily(spec.model_type);
  // Models that no config.json describes, as those of probes, have its names.
  const Family& family =
      known != nullptr && (expert < 0 || known->bind_expert != nullptr) ? *known
      : expert < 0 ? LlamaFamily()
                   : Qwen3MoeFamily();
  TensorSlice slice = expert < 0
                          ? family.bind(spec, role, layer)
                          : family.bind_expert(spec, role, layer, expert);
  // Factors of the model are factors of weights.
  switch (role) {
    case TensorRole::kEmbedding:
      slice.scale *= spec.embedding_scale;
      break;
    case TensorRole::kOutWeight:
    case TensorRole::kOutBias:
    case TensorRole::kDownWeight:
    case TensorRole::kDownBias:
    case TensorRole::kSharedDownWeight:
    case TensorRole::kExpertDownWeight:
    case TensorRole::kExpertDownBias:
      slice.scale *= spec.residual_scale;
      break;
    case TensorRole::kHead:
    case TensorRole::kHeadBias:
      slice.scale *= spec.logit_scale;
      break;
    default:
      break;
  }
  return {std::move(slice), role, std::move(shape), layer, std::max(0, expert)};
}

}  // namespace

std::vector<TensorRef> TensorRef::Tensors() const {
  if (!tensor_each_head) return {*this};
  std::vector<TensorRef> heads;
  for (int64_t head = 0; head < shape[0] / head_rows; ++head) {
    TensorRef& ref = heads.emplace_back(*this);
    ref.name = absl::StrCat(name, ".", head, ".weight");
    ref.tensor_each_head = false;
    ref.shape = {head_rows};
  }
  return heads;
}

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
    case TensorRole::kEmbedNormBias:
    case TensorRole::kFinalNormBias:
    case TensorRole::kHeadBias:
    case TensorRole::kRouterBias:
    case TensorRole::kExpertGateBias:
    case TensorRole::kExpertUpBias:
    case TensorRole::kExpertDownBias:
      return true;
    default:
      return false;
  }
}

std::vector<TensorRef> LayerTensors(const DecoderSpec& spec, int layer) {
  return LayerTensors(spec, layer, 0, spec.mixture.experts);
}

std::vector<TensorRef> LayerTensors(const DecoderSpec& spec, int layer,
                                    int first_expert, int end_expert) {
  const LayerWeights weights = WeightsOf(spec, spec.layer(layer));
  std::vector<TensorRef> tensors;
  const auto add = [&](const auto& parts, int expert) {
    for (const auto& part : parts) {
      for (const WeightSlot& slot : part.slots) {
        std::vector<int64_t> shape = {slot.rows};
        if (slot.columns > 0) shape.push_back(slot.columns);
        tensors.push_back(
            Bind(spec, slot.role, layer, std::move(shape), expert));
      }
    }
  };
  add(weights.vectors, -1);
  add(weights.matrices, -1);
  end_expert = std::min(end_expert, weights.experts);
  for (int expert = first_expert; expert < end_expert; ++expert) {
    add(weights.expert_vectors, expert);
    add(weights.expert_matrices, expert);
  }
  return tensors;
}

std::vector<TensorRef> EmbeddingTensors(const DecoderSpec& spec) {
  std::vector<TensorRef> tensors = {
      Bind(spec, TensorRole::kEmbedding, 0, {spec.vocab_size, spec.embed_dim})};
  if (spec.positions == PositionKind::kLearned) {
    tensors.push_back(Bind(spec, TensorRole::kPositionEmbedding, 0,
                           {int64_t{spec.max_positions} + spec.position_offset,
                            spec.hidden_size}));
  }
  if (spec.embed_dim != spec.hidden_size) {
    tensors.push_back(Bind(spec, TensorRole::kProjectIn, 0,
                           {spec.hidden_size, spec.embed_dim}));
  }
  if (spec.embed_norm) {
    if (spec.has_norm_weight()) {
      tensors.push_back(
          Bind(spec, TensorRole::kEmbedNormWeight, 0, {spec.hidden_size}));
    }
    if (spec.has_norm_bias()) {
      tensors.push_back(
          Bind(spec, TensorRole::kEmbedNormBias, 0, {spec.hidden_size}));
    }
  }
  return tensors;
}

std::vector<TensorRef> HeadTensors(const DecoderSpec& spec) {
  std::vector<TensorRef> tensors;
  const auto add = [&](TensorRole role, std::vector<int64_t> shape) {
    tensors.push_back(Bind(spec, role, 0, std::move(shape)));
  };
  if (spec.final_norm && spec.has_norm_weight()) {
    add(TensorRole::kFinalNormWeight, {spec.hidden_size});
  }
  if (spec.final_norm && spec.has_norm_bias()) {
    add(TensorRole::kFinalNormBias, {spec.hidden_size});
  }
  if (spec.embed_dim != spec.hidden_size) {
    add(TensorRole::kProjectOut, {spec.embed_dim, spec.hidden_size});
  }
  add(TensorRole::kHead, {spec.vocab_size, spec.embed_dim});
  if (spec.head_bias) add(TensorRole::kHeadBias, {spec.vocab_size});
  return tensors;
}

std::string BindingText(const DecoderSpec& spec) {
  std::string text;
  std::vector<std::vector<TensorRef>> all = {EmbeddingTensors(spec)};
  // A layer of each kind.
  for (const bool mixture : {false, true}) {
    for (int layer = 0; layer < spec.num_layers; ++layer) {
      if (spec.layer(layer).mixture != mixture) continue;
      all.push_back(LayerTensors(spec, layer));
      break;
    }
  }
  all.push_back(HeadTensors(spec));
  for (const std::vector<TensorRef>& tensors : all) {
    for (const TensorRef& ref : tensors) {
      absl::StrAppend(&text, static_cast<int>(ref.role), ":", ref.name, "[",
                      ref.first_row, "+", ref.shape[0], "]*", ref.scale, "+",
                      ref.add);
      if (ref.block_rows > 0) {
        absl::StrAppend(&text, "b", ref.block_rows, "/", ref.block_stride);
      }
      if (ref.interleaved > 0) {
        absl::StrAppend(&text, "i", ref.interleaved, "/", ref.head_rows);
      }
      if (ref.tensor_each_head) absl::StrAppend(&text, "h", ref.head_rows);
      if (ref.stack > 0) absl::StrAppend(&text, "s", ref.stack);
      absl::StrAppend(&text, ref.transposed ? "t;" : ";");
    }
  }
  return text;
}

}  // namespace sluice
