#pragma once

#include <cstddef>
#include <span>

// The passes over a whole vocabulary. Each has a variant per instruction set,
// all of which give the same bits: sums have 16 partial sums whatever the
// vector width, and products are not fused. A seeded result thus does not
// depend on the machine as long as the logits do not.

namespace sluice::vector_ops {

// Elements that share one block maximum.
inline constexpr size_t kMaxBlock = 64;
// The maximum of elements in one call of ExpSum.
inline constexpr size_t kSumBlock = 512;

// Sets maxima[b] (ceil(size / kMaxBlock) of them) to the largest of the
// elements [b * kMaxBlock, (b + 1) * kMaxBlock), NaN left out; -inf if all are.
// Returns whether an element is NaN.
bool BlockMaxima(std::span<const float> x, float* maxima);

// Sets weights[i] = exp((x[i] - max) / temperature), flushing to 0 values below
// exp(-86), for x.size() <= kSumBlock elements, none above `max`; returns their
// sum. Relative error of a weight below 3e-7 plus that of its argument.
// `weights` may be x.
float ExpSum(std::span<const float> x, float max, float temperature,
             float* weights);

// The variants that this machine can run, the first being the portable one, for
// tests.
struct Variant {
  const char* name;
  bool (*block_maxima)(std::span<const float>, float*);
  float (*exp_sum)(std::span<const float>, float, float, float*);
};
std::span<const Variant> Variants();

}  // namespace sluice::vector_ops
