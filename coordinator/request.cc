#include "coordinator/request.h"

#include <iterator>
#include <numeric>
#include <utility>

#include "common/status_macros.h"

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

absl::Status ForEachPart(
    absl::Span<const RequestPart> parts, absl::Span<const int32_t> prompt,
    absl::FunctionRef<void(const RequestPart&, absl::Span<const int32_t>)> fn) {
  absl::Span<const int32_t> own;
  bool whole = true;
  for (const RequestPart& part : parts) {
    const int64_t tokens = part.prompt_tokens;
    whole = tokens >= 0 && tokens <= std::ssize(prompt);
    if (!whole) break;
    if (tokens > 0) own = prompt.first(static_cast<size_t>(tokens));
    prompt.remove_prefix(static_cast<size_t>(tokens));
    whole = !own.empty();
    if (!whole) break;
    fn(part, own);
  }
  if (whole && prompt.empty()) return absl::OkStatus();
  return absl::DataLossError(
      "the line's parts do not have the tokens of its prompt");
}

absl::StatusOr<std::vector<Request>> SplitLine(Request line) {
  std::vector<Request> requests;
  if (line.parts.empty()) {
    requests.push_back(std::move(line));
    return requests;
  }
  const std::vector<RequestPart> parts = std::exchange(line.parts, {});
  const std::vector<int32_t> tokens = std::exchange(line.prompt, {});
  line.num_parts = static_cast<int32_t>(parts.size());
  int32_t next = 0;
  SLUICE_RETURN_IF_ERROR(ForEachPart(
      parts, tokens,
      [&](const RequestPart& part, absl::Span<const int32_t> prompt) {
        const int32_t number = next++;
        if (line.beams && number % line.candidates != 0) return;
        Request& request = requests.emplace_back(line);
        request.part = number;
        request.prompt.assign(prompt.begin(), prompt.end());
        request.max_tokens = part.max_tokens;
        request.sampling.seed = part.seed;
        request.prompt_text = part.prompt_text;
      }));
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
