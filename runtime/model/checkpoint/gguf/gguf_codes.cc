#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/code_format.h"

namespace sluice {

const CodeFormat* SafetensorsSource::KeptCodes(
    const TensorRef& described) const {
  const TensorRef ref = AsStored(described);
  // Others are changed on the way, or are no rows.
  const bool as_it_is =
      (ref.scale == 1 || ref.role == TensorRole::kEmbedding) && ref.add == 0 &&
      !ref.transposed && ref.shape.size() == 2;
  if (!naming_ || !as_it_is) return nullptr;
  const auto location = Find(ref);
  if (!location.ok() || location->file == nullptr) return nullptr;
  const CodeFormat* const format = FindCodeFormat(location->entry->dtype);
  return format != nullptr && ref.shape[1] % format->block == 0 ? format
                                                                : nullptr;
}

void SafetensorsSource::SetCodes(DecoderSpec* spec) const {
  if (!naming_) return;
  spec->layers.resize(spec->num_layers);
  for (int layer = 0; layer < spec->num_layers; ++layer) {
    for (const TensorRef& ref : LayerTensors(*spec, layer)) {
      if (const CodeFormat** const codes =
              CodesOf(&spec->layers[layer].codes, ref.role)) {
        *codes = KeptCodes(ref);
      }
    }
  }
  for (const TensorRef& ref : EmbeddingTensors(*spec)) {
    if (ref.role == TensorRole::kEmbedding &&
        (ref.scale == 1 || ref.scale == spec->embedding_scale)) {
      spec->embedding_codes = KeptCodes(ref);
    }
  }
  for (const TensorRef& ref : HeadTensors(*spec)) {
    if (ref.role == TensorRole::kHead) spec->head_codes = KeptCodes(ref);
  }
}

absl::Status SafetensorsSource::ReadCodes(const TensorRef& described,
                                          int64_t row_begin, int64_t row_end,
                                          std::byte* out) const {
  const CodeFormat* const format = KeptCodes(described);
  if (format == nullptr) {
    return Internal("tensor ", described.name,
                    " has no codes that can be kept");
  }
  const TensorRef ref = AsStored(described);
  SLUICE_ASSIGN_OR_RETURN(const Location at, Find(ref));
  const File& file = *at.file;
  if (row_begin < 0 || row_begin > row_end || row_end > ref.shape[0]) {
    return InvalidArgument(file.path, ": ", ref.name, ": rows [", row_begin,
                           ", ", row_end, ") of ", ref.shape[0]);
  }
  const size_t row_bytes = format->row_bytes(ref.shape[1]);
  for (int64_t row = row_begin; row < row_end;) {
    const int64_t first = ref.StoredRow(row);
    const int64_t from = row++;
    while (row < row_end && ref.StoredRow(row) == first + (row - from)) ++row;
    const uint64_t begin = file.data_offset + at.entry->begin +
                           static_cast<uint64_t>(first) * row_bytes;
    SLUICE_RETURN_IF_ERROR(Annotate(
        Read(file, begin, begin + static_cast<uint64_t>(row - from) * row_bytes,
             file.data_offset + at.entry->end,
             [&](absl::string_view part) {
               std::memcpy(out, part.data(), part.size());
               out += part.size();
             }),
        absl::StrCat("tensor ", ref.name)));
  }
  return absl::OkStatus();
}

}  // namespace sluice
