#include "coordinator/request.h"

namespace sluice {

int64_t MemoryBytes(const Generation& generation) {
  size_t bytes = sizeof(generation) + generation.text.size() +
                 generation.tokens.size() * sizeof(int32_t) +
                 generation.prompt_scores.logprobs.size() * sizeof(float) +
                 generation.prompt_scores.top.size() * sizeof(TokenLogprob);
  for (const SampledToken& token : generation.logprobs) {
    bytes += sizeof(token) + token.top.size() * sizeof(TokenLogprob);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace sluice
