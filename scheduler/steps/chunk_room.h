#pragma once

#include <algorithm>
#include <cstdint>

#include "common/policy.h"

namespace sluice {

// The room that a step leaves for the prefill chunks of a micro-batch, which
// are taken in order: the first that does not fit whole is cut, and is the
// last.
//
// With a slice context, the room is that of max_step_tokens rows without
// context, of which each decoding sequence takes one, and a chunk's rows each
// take 1 + the positions behind it / slice_context: TeraPipe's linear model of
// what context adds (section 2.3.3, equation 2.9), of which the product of both
// lengths is what counts. The first chunk has one row at least, if there is
// any.
class ChunkRoom {
 public:
  // REQUIRES: decoding <= max_step_tokens; 0 <= slice_context <=
  // kMaxSliceContext. 0: context takes no room.
  ChunkRoom(int32_t max_step_tokens, int32_t slice_context, int32_t decoding)
      : tokens_(max_step_tokens - decoding),
        slice_context_(slice_context),
        units_(Units(0, max_step_tokens) -
               2 * int64_t{slice_context} * decoding) {}

  // Returns how much of `rest` tokens behind `context` fits as the next chunk.
  int32_t Fit(int32_t context, int32_t rest) const {
    int32_t most = std::min(rest, tokens_);
    if (slice_context_ == 0 || Units(context, most) <= units_) return most;
    int32_t fits = is_empty_ ? 1 : 0;
    while (fits + 1 < most) {
      const int32_t middle = fits + (most - fits) / 2;
      (Units(context, middle) <= units_ ? fits : most) = middle;
    }
    return fits;
  }

  // Takes the chunk that fits; returns its tokens.
  int32_t Take(int32_t context, int32_t rest) {
    const int32_t chunk = Fit(context, rest);
    if (rest > 0) is_empty_ = false;
    tokens_ = chunk < rest ? 0 : tokens_ - chunk;
    units_ -= Units(context, chunk);
    return chunk;
  }

 private:
  // The room of a chunk, in 1 / (2 slice_context) of a row's.
  int64_t Units(int64_t context, int64_t chunk) const {
    return chunk * (2 * int64_t{slice_context_} + 2 * context + chunk);
  }

  int32_t tokens_;
  int32_t slice_context_;
  int64_t units_;
  bool is_empty_ = true;
};

}  // namespace sluice
