#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace sluice {

// A type of tensors in GGUF files (ggml.h, enum ggml_type): a row is cut into
// blocks of so many elements, each of which takes so many bytes.
struct GgufType {
  uint32_t number = 0;
  absl::string_view name;  // "Q4_K"
  int32_t block_elements = 0;
  int32_t block_bytes = 0;
  bool runs = false;  // gguf_blocks.h makes floats of it
};

// Return null for a type that is not known.
const GgufType* FindGgufType(uint32_t number);
const GgufType* FindGgufType(absl::string_view name);

}  // namespace sluice
