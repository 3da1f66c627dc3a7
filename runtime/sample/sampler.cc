#include "runtime/sample/sampler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/sample/distribution.h"
#include "runtime/sample/philox.h"

namespace sluice {
namespace {

// Puts the tokens with kToldTokenBias, if there are any, in place of the top
// ones.
void TellTokens(const SamplingParams& params, std::span<const float> logits,
                double log_sum_exp, std::vector<TokenLogprob>* top) {
  if (params.logprobs <= 0) return;
  bool told = false;
  for (const auto& [token, bias] : params.logit_bias) {
    if (bias != kToldTokenBias) continue;
    if (!std::exchange(told, true)) top->clear();
    top->push_back({token, static_cast<float>(logits[token] - log_sum_exp)});
  }
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, int32_t prompt_tokens)
    : params_(params), prompt_tokens_(prompt_tokens) {}

void Sampler::Observe(int32_t start, std::span<const int32_t> tokens) {
  if (!PenaltiesNeedCounts(params_)) return;
  for (size_t i = 0; i < tokens.size(); ++i) {
    TokenCount& count = counts_[tokens[i]];
    const int64_t position = start + static_cast<int64_t>(i);
    ++(position < prompt_tokens_ ? count.prompt : count.generated);
  }
}

std::optional<SampleRequest> Sampler::Request(int32_t position) const {
  if (PenaltiesNeedCounts(params_) || !params_.logit_bias.empty() ||
      params_.logprobs > 0) {
    return std::nullopt;
  }
  SampleRequest request;
  request.logprob = params_.logprobs == 0 ? 1 : 0;
  if (params_.temperature > 0) {
    request.uniform = UniformAt(params_.seed, position);
    request.temperature = params_.temperature;
    request.top_k = params_.top_k;
    request.top_p = params_.top_p;
    request.min_p = params_.min_p;
  }
  return request;
}

std::optional<SampleRequest> Sampler::ScoreRequest(int32_t target) const {
  if (num_top() > 0) return std::nullopt;
  SampleRequest request;
  request.target = target;
  request.logprob = 1;
  return request;
}

SampledToken Sampler::Accept(const TokenSample& sample) const {
  SampledToken result;
  result.token = sample.token;
  if (params_.logprobs >= 0 && sample.token >= 0) {
    result.logprob = sample.logprob;
  }
  return result;
}

SampledToken Sampler::Sample(std::span<float> logits, int32_t position,
                             SamplerScratch& scratch) const {
  if (const std::optional<SampleRequest> request = Request(position)) {
    return Accept(SampleToken(*request, logits, scratch));
  }
  SampledToken result;
  result.token = -1;
  double log_sum_exp = 0;
  if (params_.logprobs >= 0) {
    const Peak peak = FindPeak(logits, scratch);
    if (peak.token < 0) return result;
    log_sum_exp = LogSumExp(logits, peak, scratch);
    if (params_.logprobs > 0) {
      result.top = TopLogprobs(logits, params_.logprobs, log_sum_exp, scratch);
    }
    TellTokens(params_, logits, log_sum_exp, &result.top);
  }

  scratch.changed.clear();
  ApplyPenalties(params_, counts_, logits, scratch.changed);
  const Peak peak = FindPeak(logits, scratch);
  if (peak.token < 0) {
    result.top.clear();
    return result;
  }
  result.token = params_.temperature > 0
                     ? SampleAt(params_, logits, peak,
                                UniformAt(params_.seed, position), scratch)
                     : peak.token;

  if (params_.logprobs >= 0) {
    const auto changed = std::find_if(
        scratch.changed.begin(), scratch.changed.end(),
        [&](const auto& change) { return change.first == result.token; });
    const float logit = changed != scratch.changed.end() ? changed->second
                                                         : logits[result.token];
    result.logprob = static_cast<float>(logit - log_sum_exp);
  }
  return result;
}

}  // namespace sluice
