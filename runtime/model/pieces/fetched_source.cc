#include "runtime/model/pieces/fetched_source.h"

#include <vector>

#include "runtime/model/checkpoint/safetensors_source.h"

namespace sluice {

absl::StatusOr<std::string> FetchedSource::ContentId(const std::string&,
                                                     Progress) const {
  std::vector<std::string> hashes;
  for (const ModelContent::File& file : content_.files) {
    if (file.name != "config.json") hashes.push_back(file.hash);
  }
  return SafetensorsSource::IdOf(hashes);
}

}  // namespace sluice
