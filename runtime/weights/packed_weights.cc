#include "runtime/weights/packed_weights.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/memory/checksum.h"
#include "runtime/model/checkpoint/tensor_names.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::Create(
    const DecoderSpec& spec, const BackendShape& shape,
    std::unique_ptr<MatrixPacker> matrices, ComputePool* pool,
    MemoryBudget* budget) {
  std::unique_ptr<PackedWeights> self(
      new PackedWeights(spec, shape, std::move(matrices), pool, budget));
  SLUICE_RETURN_IF_ERROR(self->layouts_.ForEachMatrix(
      [&](MatrixLayout* w) { return self->matrices_->Prepare(w); }));
  return self;
}

std::string PackedWeights::PackedKey() const {
  // Rows of the position table that may be looked up. Other models' files do
  // for sequences of any length.
  const int64_t positions =
      spec_.positions == PositionKind::kLearned
          ? int64_t{shape_.max_model_len} + spec_.position_offset
          : 0;
  std::string key =
      absl::StrCat(matrices_->PackingKey(),
                   ";weights=", WeightFormatName(shape_.weight_format),
                   ";positions=", positions);
  const std::string binding = BindingText(spec_);
  absl::StrAppend(&key, ";binding=",
                  absl::Hex(BlockChecksum(std::as_bytes(std::span(binding)))));
  const DType tables = matrices_->rules().table_dtype;
  if (tables != matrices_->dtype()) {
    absl::StrAppend(&key, ";tables=", DTypeName(tables));
  }
  if (embedding().codes != nullptr) {
    absl::StrAppend(&key, ";rows=", embedding().codes->name);
  }
  if (shape_.tensor.ranks > 1) {
    absl::StrAppend(&key, ";rank=", shape_.tensor.rank, "of",
                    shape_.tensor.ranks);
  }
  // The key depends on all layer matrices, so that all stages find the same
  // files; there may be many kinds of layers.
  std::vector<uint64_t> packings;
  const auto add = [&](const MatrixLayout& matrix) {
    if (matrix.packing != 0) packings.push_back(matrix.packing);
  };
  for (const LayerLayout& layer : layouts_.layers) {
    for (const MatrixLayout* matrix : layer.matrices()) add(*matrix);
    add(layer.expert.up);
    add(layer.expert.down);
  }
  absl::StrAppend(&key, ";layers=",
                  absl::Hex(BlockChecksum(
                      std::as_bytes(std::span<const uint64_t>(packings)))));
  return key;
}

}  // namespace sluice
