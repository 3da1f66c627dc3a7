#pragma once

#include <cstdint>

#include "runtime/memory/compute_pool.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Fills `table`, [positions, spec.rotary.dim / 2], with the cosine or sine, as
// `function` says, of each position's angles, times the attention factor.
inline void FillRotaryTable(const DecoderSpec& spec, int32_t positions,
                            double (*function)(double), ComputePool& pool,
                            float* table) {
  const int32_t half = spec.rotary.dim / 2;
  pool.ParallelFor(positions, [&](int position, int) {
    float* row = table + int64_t{1} * position * half;
    for (int32_t i = 0; i < half; ++i) {
      // The angle in float32, as the models were trained.
      const float angle =
          static_cast<float>(position) * spec.rotary.inv_freq[i];
      row[i] = static_cast<float>(function(static_cast<double>(angle))) *
               spec.rotary.attention_factor;
    }
  });
}

}  // namespace sluice
