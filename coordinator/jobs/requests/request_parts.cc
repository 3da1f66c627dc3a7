// The part of RequestParser that makes parts of a line: of each of its prompts,
// as many as it has answers.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/text.h"
#include "coordinator/jobs/requests/request_body.h"
#include "coordinator/jobs/requests/request_parser.h"

namespace sluice {
namespace {

// Output `n` (from 0) of the splitmix64 generator (Steele, Lea, Flood 2014)
// with this seed.
uint64_t SplitMix64(uint64_t seed, uint64_t n) {
  uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Returns the key of the random numbers of a request with a seed of its own:
// equal prompts have equal keys, others do not share one, though a seed may be
// that of all lines.
uint64_t MixWithPrompt(uint64_t seed, const std::vector<int32_t>& prompt) {
  for (const int32_t token : prompt) {
    seed = SplitMix64(seed ^ static_cast<uint32_t>(token), 0);
  }
  return seed;
}

}  // namespace

std::optional<LineError> RequestParser::SetBeams(const RequestBody& body,
                                                 Request* request) const {
  if (!request->stop.empty()) {
    return LineError{
        "unsupported",
        absl::StrCat("\"stop\" has ", QuoteForMessage(request->stop.front()),
                     ", which is no special token; a beam search ends answers "
                     "at tokens only: leave it out, and cut the answers there"),
        "stop"};
  }
  SamplingParams& sampling = request->sampling;
  if (sampling.repetition_penalty != 1) {
    return LineError{"unsupported",
                     absl::StrCat("the model's generation_config.json has a "
                                  "repetition_penalty of ",
                                  sampling.repetition_penalty,
                                  ", which a beam search does not heed; say "
                                  "\"repetition_penalty\": 1 to have none"),
                     "use_beam_search"};
  }
  sampling = {};
  if (body.candidates > 1) request->beams = body.beams;  // else it is greedy
  return std::nullopt;
}

std::optional<LineError> RequestParser::SetChoices(
    const RequestBody& body, const std::vector<Prompt>& prompts,
    Request* request) const {
  request->choices = body.choices;
  request->candidates = body.candidates;
  if (body.beams) {
    if (auto error = SetBeams(body, request)) return error;
  } else if (body.candidates > body.choices && body.logprobs < 0) {
    request->sampling.logprobs = 0;
    request->hides_logprobs = true;
  }
  if (body.candidates == 1) return std::nullopt;
  const std::string field = body.candidates > body.choices ? "best_of" : "n";
  const auto wrong = [&](std::string message) {
    return LineError{"invalid_request", std::move(message), field};
  };
  if (prompts.size() * body.candidates > kMaxLinePrompts) {
    return wrong(absl::StrCat(
        "\"", field, "\" is ", body.candidates, ", and \"prompt\" has ",
        prompts.size(), " prompts; a line takes at most ", kMaxLinePrompts,
        " answers: divide it into several lines"));
  }
  int64_t tokens = 0;
  for (const Prompt& prompt : prompts) tokens += std::ssize(prompt.tokens);
  if (tokens * body.candidates > kMaxLineTokens) {
    return wrong(absl::StrCat("\"", field, "\" is ", body.candidates,
                              ", too many for prompts of ", tokens,
                              " tokens: the tokens of all answers' prompts may "
                              "be ",
                              kMaxLineTokens, "; ask for at most ",
                              std::max<int64_t>(1, kMaxLineTokens / tokens),
                              ", and for more in other lines"));
  }
  return std::nullopt;
}

std::optional<LineError> RequestParser::AddPrompts(const RequestBody& body,
                                                   std::vector<Prompt> prompts,
                                                   Request* request) const {
  const uint64_t own_seed =
      SplitMix64(defaults_.seed(), static_cast<uint64_t>(request->index));
  for (Prompt& prompt : prompts) {
    RequestPart part;
    part.prompt_tokens = static_cast<int32_t>(prompt.tokens.size());
    if (!request->pools()) {
      if (auto error = SetMaxTokens(body, prompt, request, &part)) return error;
    }
    if (request->echo || request->score.documents) {
      part.prompt_text = std::move(prompt.text);
    }
    request->prompt.insert(request->prompt.end(), prompt.tokens.begin(),
                           prompt.tokens.end());
    for (int32_t k = 0; k < request->candidates; ++k) {
      const size_t p = request->parts.size();
      if (!request->pools()) {
        part.seed = body.seed ? MixWithPrompt(*body.seed + k, prompt.tokens)
                    : p == 0  ? own_seed
                              : SplitMix64(own_seed, p);
      }
      request->parts.push_back(part);
      part.prompt_tokens = 0;  // the others have the same
    }
  }
  if (request->parts.size() > 1) return std::nullopt;
  request->max_tokens = request->parts[0].max_tokens;
  request->sampling.seed = request->parts[0].seed;
  request->prompt_text = std::move(request->parts[0].prompt_text);
  request->parts.clear();
  return std::nullopt;
}

}  // namespace sluice
