#pragma once

#include <span>
#include <vector>

#include "runtime/sample/sample_token.h"
#include "tests/cuda/support/parity.h"

// These judge whether a device samples as the host does.

namespace sluice {

// Requests of all kinds, extreme ones among them, for rows of `vocab` logits.
SampleRequest RandomRequest(Random& random, int vocab);

class SampleJudge {
 public:
  // Fails the test unless `got` is the host's answer. A token that was drawn
  // may be another if the uniform number lies within 1e-5 of probability of a
  // border between the two, or would if top-p were 4e-6 more or less.
  void Expect(const SampleRequest& request, std::span<const float> logits,
              const TokenSample& got);

  // Tokens that were drawn, and those that were others than the host's.
  int drawn() const { return drawn_; }
  int others() const { return others_; }

 private:
  bool MayDraw(const SampleRequest& request, std::span<const float> logits,
               int32_t token);

  SamplerScratch scratch_;
  int drawn_ = 0;
  int others_ = 0;
};

}  // namespace sluice
