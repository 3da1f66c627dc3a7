#include "runtime/weights/packed_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kMinHeadSection = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::Create(
    const DecoderSpec& spec, const Options& options,
    std::unique_ptr<MatrixPacker> matrices, ComputePool* pool,
    MemoryBudget* budget) {
  std::unique_ptr<PackedWeights> self(
      new PackedWeights(spec, options, std::move(matrices), pool, budget));
  SLUICE_RETURN_IF_ERROR(self->MakeLayouts());
  return self;
}

absl::Status PackedWeights::MakeLayouts() {
  SLUICE_ASSIGN_OR_RETURN(layer_,
                          MakeLayerLayout(spec_, options_.format, *matrices_));
  if (options_.format != WeightFormat::kFull) {
    SLUICE_ASSIGN_OR_RETURN(
        expanded_, MakeLayerLayout(spec_, WeightFormat::kFull, *matrices_));
  }
  if (options_.layers.begin == 0) {
    SLUICE_ASSIGN_OR_RETURN(
        embedding_, MakeEmbeddingLayout(spec_, PositionRows(), *matrices_));
  }
  if (options_.layers.end == spec_.num_layers) {
    SLUICE_ASSIGN_OR_RETURN(
        head_,
        MakeHeadLayout(spec_, options_.format,
                       std::max(layer_.bytes, kMinHeadSection), *matrices_));
  }
  return absl::OkStatus();
}

std::string PackedWeights::ImageKey() const {
  std::string key = absl::StrCat(matrices_->PackingKey(),
                                 ";weights=", WeightFormatName(options_.format),
                                 ";positions=", PositionRows());
  if (matrices_->table_dtype() != matrices_->dtype()) {
    absl::StrAppend(&key, ";tables=", DTypeName(matrices_->table_dtype()));
  }
  // All that any stage packs, so that all find the same images.
  for (const MatrixLayout* matrix : layer_.matrices()) {
    if (matrix->packing == 0) continue;
    absl::StrAppend(&key, ";", absl::Hex(matrix->packing));
  }
  return key;
}

}  // namespace sluice
