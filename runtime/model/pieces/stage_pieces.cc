#include "runtime/model/pieces/stage_pieces.h"

#include <set>
#include <utility>

#include "common/piece_list.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr char kHeadName[] = "lm_head.weight";

std::vector<TensorRef> StageTensors(const DecoderSpec& spec, LayerRange layers,
                                    const SafetensorsSource& source) {
  std::vector<TensorRef> tensors;
  const auto add = [&](const std::vector<TensorRef>& more) {
    tensors.insert(tensors.end(), more.begin(), more.end());
  };
  if (layers.begin == 0) add(EmbeddingTensors(spec));
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    add(LayerTensors(spec, layer));
  }
  if (layers.end != spec.num_layers) return tensors;
  add(HeadTensors(spec));
  // Of a tied pair with two tensors, the last stage finds out whether they are
  // one (ModelDir::Open).
  if (!spec.tied_embeddings || !source.HasHead()) return tensors;
  for (TensorRef& tensor : HeadTensors(spec)) {
    if (tensor.role != TensorRole::kHead) continue;
    tensor.name = kHeadName;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

absl::StatusOr<PiecesByFile> StagePieces(const DecoderSpec& spec,
                                         LayerRange layers,
                                         const SafetensorsSource& source) {
  std::map<std::string, std::set<uint64_t>> found;
  const auto add = [&](const SafetensorsSource::Extent& extent) {
    std::set<uint64_t>& pieces = found[extent.file];
    for (uint64_t i = extent.begin / kPieceBytes; i < NumPieces(extent.end);
         ++i) {
      pieces.insert(pieces.end(), i);
    }
  };
  for (const SafetensorsSource::Extent& header : source.Headers()) add(header);
  DecoderSpec as_found = spec;
  if (!spec.tied_embeddings) {
    SLUICE_ASSIGN_OR_RETURN(as_found, source.HeadAsFound(spec));
  }
  for (const TensorRef& tensor : StageTensors(as_found, layers, source)) {
    SLUICE_ASSIGN_OR_RETURN(
        const std::vector<SafetensorsSource::Extent> extents,
        source.Locate(tensor));
    for (const SafetensorsSource::Extent& extent : extents) {
      if (extent.end > extent.begin) add(extent);
    }
  }
  PiecesByFile result;
  for (const auto& [name, pieces] : found) {
    result[name].assign(pieces.begin(), pieces.end());
  }
  return result;
}

}  // namespace sluice
