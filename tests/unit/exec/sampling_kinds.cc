#include "tests/unit/exec/sampling_kinds.h"

#include <utility>

#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int kSteps = 6;

}  // namespace

std::vector<SamplingParams> SamplingKinds() {
  return {
      {},
      {.logprobs = 0},
      {.temperature = 1, .seed = 1},
      {.logprobs = 3},
      {.temperature = 0.7f, .top_k = 20, .top_p = 0.9f, .seed = 2},
      {.repetition_penalty = 1.5f},
      {.temperature = 1.3f, .min_p = 0.05f, .seed = 3, .logprobs = 0},
      {.temperature = 1, .presence_penalty = 1, .seed = 4},
      {.logit_bias = {{3, 5.0f}, {9, -100.0f}}, .logprobs = 0},
      {.temperature = 2, .top_p = 0.5f, .seed = 5},
      {.temperature = 1, .top_k = 1, .seed = 6},
      {.temperature = 1, .top_k = 5, .seed = 7, .logprobs = 2},
  };
}

absl::StatusOr<std::vector<StepResult>> RunSamplingKinds(
    StageChain& chain, const std::vector<SamplingParams>& kinds,
    int32_t vocab) {
  std::vector<StepResult> results;
  const auto count = static_cast<int>(kinds.size());
  const auto token = [&](int sequence, int position) {
    return (31 * sequence + 17 * position + 5) % vocab;
  };
  for (int step = 0; step < kSteps; ++step) {
    StepPlan plan;
    plan.step = step;
    plan.micro_batches.resize(2);
    for (int i = 0; i < 2 * count; ++i) {
      // Each kind samples once, and scores once.
      const bool scores = i >= count;
      const SequenceId id(i);
      const int32_t prompt = 3 + i % 5;
      // A sequence has its prompt in the first step, then a token in each, or
      // as many as its prompt if they are scored.
      const int32_t chunk = scores ? prompt : 1;
      const int32_t start = step == 0 ? 0 : prompt + (step - 1) * chunk;
      const int32_t tokens = step == 0 ? prompt : chunk;
      if (step == 0) {
        plan.admit.push_back(
            {id, prompt, prompt + kSteps * chunk + 1, kinds[i % count]});
      }
      Segment segment{id, start, tokens, !scores};
      if (scores) {
        segment.score_begin = start + 1;
        segment.score_end = start + tokens + 1;
        segment.next_token = token(i, start + tokens);
      } else if (step == 0) {
        // A prompt that is sampled from is scored, too.
        segment.score_begin = 2;
        segment.score_end = tokens;
      }
      MicroBatch& batch = plan.micro_batches[i % 2];
      batch.segments.push_back(segment);
      for (int32_t p = start; p < start + tokens; ++p) {
        batch.tokens.push_back(token(i, p));
      }
    }
    SLUICE_RETURN_IF_ERROR(chain.RunStep(plan, &results.emplace_back()));
  }
  StepPlan last;
  last.step = kSteps;
  for (int i = 0; i < 2 * count; ++i) last.release.push_back(SequenceId(i));
  StepResult nothing;
  SLUICE_RETURN_IF_ERROR(chain.RunStep(last, &nothing));
  return results;
}

}  // namespace sluice
