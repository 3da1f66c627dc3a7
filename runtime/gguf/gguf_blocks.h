#pragma once

#include <cstdint>

#include "runtime/gguf/gguf_types.h"

namespace sluice {

// Makes floats of consecutive blocks: `out` gets blocks * type.block_elements
// numbers, the ones that ggml's reference gives (gguf-py, quants.py), bit for
// bit, on every instruction set. `in` has blocks * type.block_bytes bytes, of
// any alignment. REQUIRES: type.runs.
void DequantizeGguf(const GgufType& type, const char* in, int64_t blocks,
                    float* out);

}  // namespace sluice
