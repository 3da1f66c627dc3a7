#pragma once

#include <cstdint>

#include "runtime/model/decoder_spec.h"

namespace sluice {

// A Llama of made-up size for the probes: a fourth as many KV heads as heads
// (at least one), a gated MLP. REQUIRES: hidden is a multiple of head_dim.
DecoderSpec ProbeModel(int32_t layers, int32_t hidden, int32_t head_dim,
                       int32_t intermediate, int32_t vocab);

}  // namespace sluice
