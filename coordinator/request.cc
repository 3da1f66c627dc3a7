#include "coordinator/request.h"

namespace sluice {

int64_t MemoryBytes(const FinishedRequest& finished) {
  const Request& request = finished.request;
  const Generation& generation = finished.generation;
  size_t bytes =
      sizeof(finished) + request.custom_id.size() + request.prompt_text.size() +
      generation.text.size() +
      (request.prompt.size() + generation.tokens.size()) * sizeof(int32_t) +
      generation.prompt_scores.logprobs.size() * sizeof(float) +
      generation.prompt_scores.top.size() * sizeof(TokenLogprob);
  for (const SampledToken& token : generation.logprobs) {
    bytes += sizeof(token) + token.top.size() * sizeof(TokenLogprob);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace sluice
