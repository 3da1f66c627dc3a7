// SafetensorsSource's files, and where in them weights are.

#include "common/status_macros.h"
#include "runtime/model/checkpoint/safetensors_source.h"

namespace sluice {

std::vector<SafetensorsSource::FileInfo> SafetensorsSource::Files() const {
  std::vector<FileInfo> files;
  for (const auto& file : files_) {
    files.push_back({file->name, file->path, file->fd, file->bytes});
  }
  return files;
}

SafetensorsSource::Extent SafetensorsSource::ExtentOf(
    const Location& at) const {
  return {at.file->name, at.file->data_offset + at.entry->begin,
          at.file->data_offset + at.entry->end};
}

absl::StatusOr<std::vector<SafetensorsSource::Extent>>
SafetensorsSource::Locate(const TensorRef& described) const {
  const TensorRef ref = AsStored(described);
  std::vector<Extent> extents;
  if (const std::optional<WeightPlace> place = QuantizedPlace(ref)) {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<QuantizedWeight> weight,
                            quantized_->Open(*place));
    if (weight != nullptr) {
      for (const std::string& part : weight->parts()) {
        extents.push_back(ExtentOf(FindName(part)));
      }
      return extents;
    }
  }
  for (const TensorRef& tensor : ref.Tensors()) {
    SLUICE_ASSIGN_OR_RETURN(const Location at, Find(tensor));
    if (at.file != nullptr) extents.push_back(ExtentOf(at));
  }
  return extents;
}

std::vector<SafetensorsSource::Extent> SafetensorsSource::Headers() const {
  std::vector<Extent> headers;
  for (const auto& file : files_) {
    headers.push_back({file->name, 0, file->data_offset});
  }
  return headers;
}

}  // namespace sluice
