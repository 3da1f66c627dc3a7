#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Numbers of pieces, ascending, by the file's name.
using PiecesByFile = std::map<std::string, std::vector<uint64_t>>;

// Returns the pieces of a model's files that hold what a stage of `layers`
// loads: its tensors, and all files' headers. Only the headers need be here.
// Errors as SafetensorsSource::Check.
absl::StatusOr<PiecesByFile> StagePieces(const DecoderSpec& spec,
                                         LayerRange layers,
                                         const SafetensorsSource& source);

}  // namespace sluice
