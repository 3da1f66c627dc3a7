#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/checkpoint/safetensors_source.h"

namespace sluice {

// Returns the text of the config.json that a GGUF file's model would have,
// made of its metadata, as llama.cpp's converters write it, and of which
// tensors there are. kInvalidArgument names the key that is missing or wrong;
// kUnimplemented names an architecture, or a feature of one, that does not run.
// REQUIRES: tensors.gguf() is not null.
absl::StatusOr<std::string> ConfigOfGguf(const SafetensorsSource& tensors);

}  // namespace sluice
