#include "runtime/sample/sample_token.h"

#include <limits>

#include "common/sampling_params.h"
#include "runtime/sample/distribution.h"

namespace sluice {

TokenSample SampleToken(const SampleRequest& request,
                        std::span<const float> logits,
                        SamplerScratch& scratch) {
  const Peak peak = FindPeak(logits, scratch);
  if (peak.token < 0) return {-1, std::numeric_limits<float>::quiet_NaN()};
  TokenSample sample{peak.token, 0};
  if (request.target >= 0) {
    sample.token = request.target;
  } else if (request.temperature > 0) {
    SamplingParams params;
    params.temperature = request.temperature;
    params.top_k = request.top_k;
    params.top_p = request.top_p;
    params.min_p = request.min_p;
    sample.token = SampleAt(params, logits, peak, request.uniform, scratch);
  }
  if (request.logprob != 0) {
    sample.logprob = static_cast<float>(logits[sample.token] -
                                        LogSumExp(logits, peak, scratch));
  }
  return sample;
}

}  // namespace sluice
