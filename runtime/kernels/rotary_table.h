#pragma once

#include <cstdint>

#include "runtime/memory/compute_pool.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Fills `table`, [positions, spec.rotary.dim / 2], with the cosine or sine, as
// `function` says, of each position's angles, times the attention factor.
void FillRotaryTable(const DecoderSpec& spec, int32_t positions,
                     double (*function)(double), ComputePool& pool,
                     float* table);

}  // namespace sluice
