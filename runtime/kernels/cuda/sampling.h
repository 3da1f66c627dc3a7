#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/placement/gpu_limits.h"
#include "runtime/sample/sample_token.h"

// Sampling on the device: it answers requests for rows of logits.

namespace sluice {

// A request for a row among those that have logits.
struct RowSample {
  SampleRequest request;
  int32_t row = 0;
};
static_assert(sizeof(RowSample) == GpuLimits::kRowSampleBytes &&
              sizeof(TokenSample) == GpuLimits::kTokenSampleBytes);

// out[i] = the answer to samples[i], of logits[row * vocab, + vocab): what the
// host's SampleToken gives. Logits are compared as they are, and weights (the
// exponentials) have the host's bits; sums are of integers, so that they do not
// depend on the order. What hangs on a sum may differ from the host's by
// rounding, some 1e-7 of all probability: where one token ends and the next
// begins, and the last token that top-p keeps. A token whose probability is
// below that of 2^-40 of the likeliest's or so is not drawn.
//
// A row is read once for the likeliest token; once more for a log-probability;
// and for drawing once more with a top-k of up to 512, else once, three times
// more for a larger top-k, and three or four times more for a top-p.
// kInvalidArgument: an empty vocabulary, or one beyond 2^30.
absl::Status SampleTokens(const float* logits, int32_t vocab,
                          const RowSample* samples, int32_t count,
                          TokenSample* out, cudaStream_t stream);

}  // namespace sluice
