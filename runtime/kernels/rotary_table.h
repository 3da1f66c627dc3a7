#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Returns kInvalidArgument if more of a head would be rotated than it has, or
// an odd part, or by another number of angles.
inline absl::Status CheckRotaries(const DecoderSpec& spec) {
  for (const RotarySpec& rotary : spec.rotaries) {
    if (rotary.dim < 0 || rotary.dim > spec.head_dim || rotary.dim % 2 != 0 ||
        std::ssize(rotary.inv_freq) != rotary.dim / 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("a rotary embedding of ", rotary.dim,
                       " dimensions with ", rotary.inv_freq.size(),
                       " angles does not fit heads of ", spec.head_dim,
                       ": it takes an even part of them, and an angle for "
                       "each two"));
    }
  }
  return absl::OkStatus();
}

// Returns where the table of a model's rotary embedding begins, among the
// tables of all of them, in floats.
inline int64_t RotaryTableOffset(const DecoderSpec& spec, int32_t positions,
                                 size_t rotary) {
  int64_t at = 0;
  for (size_t i = 0; i < rotary; ++i) {
    at += int64_t{positions} * (spec.rotaries[i].dim / 2);
  }
  return at;
}

// Fills `table`, [positions, dim / 2], with the cosine or sine, as `function`
// says, of each position's angles, times the attention factor.
inline void FillRotaryTable(const RotarySpec& rotary, int32_t positions,
                            double (*function)(double), ComputePool& pool,
                            float* table) {
  const int32_t half = rotary.dim / 2;
  pool.ParallelFor(positions, [&](int position, int) {
    float* row = table + int64_t{1} * position * half;
    for (int32_t i = 0; i < half; ++i) {
      // The angle in float32, as the models were trained.
      const float angle = static_cast<float>(position) * rotary.inv_freq[i];
      row[i] = static_cast<float>(function(static_cast<double>(angle))) *
               rotary.attention_factor;
    }
  });
}

// Fills the tables of all of a model's rotary embeddings, one after the other.
inline void FillRotaryTables(const DecoderSpec& spec, int32_t positions,
                             double (*function)(double), ComputePool& pool,
                             float* tables) {
  for (size_t i = 0; i < spec.rotaries.size(); ++i) {
    FillRotaryTable(spec.rotaries[i], positions, function, pool,
                    tables + RotaryTableOffset(spec, positions, i));
  }
}

}  // namespace sluice
