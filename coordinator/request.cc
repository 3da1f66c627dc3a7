#include "coordinator/request.h"

#include <numeric>
#include <utility>

namespace sluice {

int64_t MemoryBytes(const FinishedRequest& finished) {
  const Request& request = finished.request;
  const Generation& generation = finished.generation;
  size_t bytes =
      sizeof(finished) + request.custom_id.size() + request.prompt_text.size() +
      generation.text.size() +
      (request.prompt.size() + generation.tokens.size()) * sizeof(int32_t) +
      (generation.prompt_scores.logprobs.size() + generation.pooled.size()) *
          sizeof(float) +
      generation.prompt_scores.top.size() * sizeof(TokenLogprob);
  for (const SampledToken& token : generation.logprobs) {
    bytes += sizeof(token) + token.top.size() * sizeof(TokenLogprob);
  }
  return static_cast<int64_t>(bytes);
}

int64_t MemoryBytes(const FinishedLine& line) {
  return std::accumulate(line.begin(), line.end(), int64_t{0},
                         [](int64_t sum, const FinishedRequest& part) {
                           return sum + MemoryBytes(part);
                         });
}

absl::StatusOr<std::vector<Request>> SplitLine(Request line) {
  std::vector<Request> requests;
  if (line.parts.empty()) {
    requests.push_back(std::move(line));
    return requests;
  }
  std::vector<RequestPart> parts = std::exchange(line.parts, {});
  const std::vector<int32_t> tokens = std::exchange(line.prompt, {});
  line.num_parts = static_cast<int32_t>(parts.size());
  size_t begin = 0;
  for (RequestPart& part : parts) {
    const auto left = static_cast<int64_t>(tokens.size() - begin);
    if (part.prompt_tokens < 1 || part.prompt_tokens > left) break;
    Request& request = requests.emplace_back(line);
    request.part = static_cast<int32_t>(requests.size()) - 1;
    const auto from = tokens.begin() + static_cast<int64_t>(begin);
    request.prompt.assign(from, from + part.prompt_tokens);
    request.max_tokens = part.max_tokens;
    request.sampling.seed = part.seed;
    request.prompt_text = std::move(part.prompt_text);
    begin += part.prompt_tokens;
  }
  if (requests.size() < parts.size() || begin < tokens.size()) {
    return absl::DataLossError(
        "the line's parts do not have the tokens of its prompt");
  }
  return requests;
}

int64_t MaxTokensOfLine(const Request& line) {
  if (line.parts.empty()) return line.max_tokens;
  return std::accumulate(line.parts.begin(), line.parts.end(), int64_t{0},
                         [](int64_t sum, const RequestPart& part) {
                           return sum + part.max_tokens;
                         });
}

}  // namespace sluice
