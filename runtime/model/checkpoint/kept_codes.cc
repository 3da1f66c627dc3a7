// SafetensorsSource's weights that stay in the codes of the files.

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/code_format.h"

namespace sluice {
namespace {

// Whether each strip of the weight's rows is one of the tensor's.
bool StripsAreStored(const TensorRef& ref) {
  for (int64_t row = 0; row < ref.shape[0]; row += kStripColumns) {
    const int64_t stored = ref.StoredRow(row);
    const int64_t last = std::min(row + kStripColumns, ref.shape[0]) - 1;
    if (stored % kStripColumns != 0 || stored > ref.StoredRow(last) ||
        ref.StoredRow(last) - stored != last - row) {
      return false;
    }
  }
  return true;
}

// Calls take(codes, ref) for each weight that may be kept in codes.
template <typename Take>
void ForCoded(DecoderSpec* spec, Take take) {
  for (int layer = 0; layer < spec->num_layers; ++layer) {
    for (const TensorRef& ref : LayerTensors(*spec, layer)) {
      const CodeFormat** const codes =
          CodesOf(&spec->layers[layer].codes, ref.role);
      if (codes != nullptr) take(codes, ref);
    }
  }
  for (const TensorRef& ref : EmbeddingTensors(*spec)) {
    if (ref.role == TensorRole::kEmbedding) take(&spec->embedding_codes, ref);
  }
  for (const TensorRef& ref : HeadTensors(*spec)) {
    if (ref.role == TensorRole::kHead) take(&spec->head_codes, ref);
  }
}

// The matrix of which a weight is all or, with others, a part.
struct MatrixId {
  int layer;
  int expert;
  TensorRole first;  // the first part's
  friend bool operator==(const MatrixId&, const MatrixId&) = default;
};

MatrixId MatrixOf(const TensorRef& ref) {
  TensorRole first = ref.role;
  switch (ref.role) {
    case TensorRole::kKWeight:
    case TensorRole::kVWeight:
      first = TensorRole::kQWeight;
      break;
    case TensorRole::kUpWeight:
      first = TensorRole::kGateWeight;
      break;
    case TensorRole::kSharedUpWeight:
      first = TensorRole::kSharedGateWeight;
      break;
    case TensorRole::kExpertUpWeight:
      first = TensorRole::kExpertGateWeight;
      break;
    default:
      break;
  }
  return {ref.layer, ref.expert, first};
}

}  // namespace

absl::Status SafetensorsSource::ForRuns(
    const TensorRef& ref, int64_t begin, int64_t end,
    absl::FunctionRef<absl::Status(int64_t, int64_t, int64_t)> take) {
  for (int64_t row = begin; row < end;) {
    const int64_t first = ref.StoredRow(row);
    const int64_t from = row++;
    while (row < end && ref.StoredRow(row) == first + (row - from)) ++row;
    SLUICE_RETURN_IF_ERROR(take(from, first, row - from));
  }
  return absl::OkStatus();
}

const CodeFormat* SafetensorsSource::KeptCodes(
    const TensorRef& described) const {
  const TensorRef ref = AsStored(described);
  if (ref.add != 0 || ref.shape.size() != 2) return nullptr;
  return naming_ ? GgufCodes(ref) : QuantizedCodes(ref);
}

const CodeFormat* SafetensorsSource::GgufCodes(const TensorRef& ref) const {
  // A row of the embedding is multiplied as it is read.
  const bool as_it_is = ref.scale == 1 || ref.role == TensorRole::kEmbedding;
  if (!as_it_is || ref.transposed) return nullptr;
  const auto location = Find(ref);
  if (!location.ok() || location->file == nullptr) return nullptr;
  const CodeFormat* const format = FindCodeFormat(location->entry->dtype);
  return format != nullptr && format->Fits(ref.shape[1]) ? format : nullptr;
}

const CodeFormat* SafetensorsSource::QuantizedCodes(
    const TensorRef& ref) const {
  const std::optional<WeightPlace> place = QuantizedPlace(ref);
  if (!place || ref.scale != 1 || ref.role == TensorRole::kEmbedding) {
    return nullptr;
  }
  // What is wrong with it, loading tells.
  const auto weight = quantized_->Open(*place);
  if (!weight.ok() || *weight == nullptr) return nullptr;
  const auto format = (*weight)->FindFormat(stored_);
  if (!format.ok() || *format == nullptr) return nullptr;
  return (*format)->scaled == nullptr || !(*format)->scaled->shared ||
                 StripsAreStored(ref)
             ? *format
             : nullptr;
}

std::vector<int32_t> SafetensorsSource::OrderOf(
    const TensorRef& described) const {
  const std::optional<WeightPlace> place = QuantizedPlace(AsStored(described));
  if (!place) return {};
  const auto weight = quantized_->Open(*place);
  if (!weight.ok() || *weight == nullptr || (*weight)->order_name().empty()) {
    return {};
  }
  auto order = ReadIntegers<int32_t>(stored_, (*weight)->order_name());
  return order.ok() ? *std::move(order) : std::vector<int32_t>();
}

void SafetensorsSource::SetCodes(DecoderSpec* spec) const {
  if (!naming_ && !quantization().quantized()) {
    for (LayerSpec& layer : spec->layers) layer.codes = {};
    spec->head_codes = spec->embedding_codes = nullptr;
    return;
  }
  spec->layers.resize(spec->num_layers);
  // A matrix has one order of inputs (MatrixLayout::order_bytes): its parts,
  // which have the same inputs, were quantized in the same one. A checkpoint
  // where they were not is read as numbers.
  std::optional<MatrixId> matrix;
  std::vector<int32_t> order;
  ForCoded(spec, [&](const CodeFormat** codes, const TensorRef& ref) {
    const bool embedding = ref.role == TensorRole::kEmbedding;
    const CodeFormat* const kept =
        !embedding || ref.scale == 1 || ref.scale == spec->embedding_scale
            ? KeptCodes(ref)
            : nullptr;
    // A layer's experts are alike.
    *codes = ref.expert == 0 || *codes == kept ? kept : nullptr;
    if (kept == nullptr || kept->scaled == nullptr ||
        !kept->scaled->any_order) {
      return;
    }
    std::vector<int32_t> own = OrderOf(ref);
    if (matrix != MatrixOf(ref)) {
      matrix = MatrixOf(ref);
      order = std::move(own);
    } else if (own != order) {
      *codes = nullptr;
    }
  });
}

absl::Status SafetensorsSource::ReadCodes(const TensorRef& described,
                                          const CodeFormat& format,
                                          int64_t row_begin, int64_t row_end,
                                          std::byte* out) const {
  const TensorRef ref = AsStored(described);
  std::shared_ptr<const QuantizedWeight> quantized;
  const CodeFormat* found = nullptr;
  Location at;
  if (naming_) {
    found = KeptCodes(described);
    if (found != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(at, Find(ref));
    }
  } else if (const std::optional<WeightPlace> place = QuantizedPlace(ref)) {
    SLUICE_ASSIGN_OR_RETURN(quantized, quantized_->Get(*place));
    if (quantized != nullptr) {
      found = quantized->format();
      at = FindName(quantized->parts()[0]);
    }
  }
  if (found != &format) {
    return Internal("tensor ", ref.name, " has no codes of ", format.name);
  }
  const File& file = *at.file;
  if (row_begin < 0 || row_begin > row_end || row_end > ref.shape[0]) {
    return InvalidArgument(file.path, ": ", ref.name, ": rows [", row_begin,
                           ", ", row_end, ") of ", ref.shape[0]);
  }
  const size_t row_bytes = format.row_bytes(ref.shape[1]);
  const int64_t base =
      quantized != nullptr ? 0 : ref.first_element() / ref.shape[1];
  const auto read = [&](int64_t row, int64_t first, int64_t count) {
    std::byte* to = out + static_cast<size_t>(row - row_begin) * row_bytes;
    if (quantized != nullptr) {
      return quantized->ReadCodes(stored_, first, first + count, to);
    }
    const uint64_t begin = file.data_offset + at.entry->begin +
                           static_cast<uint64_t>(base + first) * row_bytes;
    return Read(file, begin, begin + static_cast<uint64_t>(count) * row_bytes,
                file.data_offset + at.entry->end, [&](absl::string_view part) {
                  std::memcpy(to, part.data(), part.size());
                  to += part.size();
                });
  };
  return Annotate(ForRuns(ref, row_begin, row_end, read),
                  absl::StrCat("tensor ", ref.name));
}

std::map<std::string, uint64_t> SafetensorsSource::BytesByType(
    const DecoderSpec* spec) const {
  std::map<const SafetensorsEntry*, std::string> formats;
  const auto take = [&](const CodeFormat** codes, const TensorRef& described) {
    const auto place = QuantizedPlace(AsStored(described));
    if (*codes == nullptr || !place) return;
    const auto weight = quantized_->Open(*place);
    if (!weight.ok() || *weight == nullptr) return;
    for (const std::string& part : (*weight)->parts()) {
      formats[FindName(part).entry] = std::string((*codes)->name);
    }
  };
  if (spec != nullptr) {
    DecoderSpec coded = *spec;
    coded.layers.resize(coded.num_layers);
    ForCoded(&coded, take);
  }
  std::map<std::string, uint64_t> bytes;
  for (const auto& [name, at] : tensors_) {
    const auto format = formats.find(at.entry);
    bytes[format == formats.end() ? at.entry->dtype : format->second] +=
        at.entry->end - at.entry->begin;
  }
  return bytes;
}

}  // namespace sluice
