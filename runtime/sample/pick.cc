#include "runtime/sample/pick.h"

#include <limits>

#include "common/sampling_params.h"
#include "runtime/sample/distribution.h"

namespace sluice {

Pick PickToken(const PickRequest& request, std::span<const float> logits,
               SamplerScratch& scratch) {
  const Peak peak = FindPeak(logits, scratch);
  if (peak.token < 0) return {-1, std::numeric_limits<float>::quiet_NaN()};
  Pick pick{peak.token, 0};
  if (request.target >= 0) {
    pick.token = request.target;
  } else if (request.temperature > 0) {
    SamplingParams params;
    params.temperature = request.temperature;
    params.top_k = request.top_k;
    params.top_p = request.top_p;
    params.min_p = request.min_p;
    pick.token = SampleAt(params, logits, peak, request.uniform, scratch);
  }
  if (request.logprob != 0) {
    pick.logprob = static_cast<float>(logits[pick.token] -
                                      LogSumExp(logits, peak, scratch));
  }
  return pick;
}

}  // namespace sluice
