#pragma once

#include <cstdint>

namespace sluice {

// What the last stage makes of a sequence instead of a token: a vector of the
// hidden states h[0..n) of its prompt's positions after the final norm, as the
// poolings of sentence-transformers are. Sums are float64, position by position
// from the first one on, so that their bits do not depend on how a prompt is
// cut into chunks.
enum class Pooling : uint8_t {
  kNone,          // it samples tokens
  kLastToken,     // h[n - 1]
  kFirstToken,    // h[0], called "cls"
  kMean,          // sum of h[i], divided by n
  kMeanSqrtLen,   // sum of h[i], divided by sqrt(n)
  kWeightedMean,  // sum of (i + 1) h[i], divided by the sum of (i + 1)
  kMax,           // the greatest of each element
};
inline constexpr Pooling kLastPooling = Pooling::kMax;

}  // namespace sluice
