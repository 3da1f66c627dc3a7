// SafetensorsSource's files, and where in them weights are.

#include "common/content_hash.h"
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

std::string SafetensorsSource::Fingerprint(absl::string_view config) const {
  Sha256 digest;
  digest.AddField(config);
  // Files are opened in order of name.
  for (const auto& file : files_) {
    digest.AddField(file->name);
    digest.AddField(file->header_digest);
  }
  if (!copies_.empty()) digest.AddField(copies_);
  return digest.Hex();
}

}  // namespace sluice
