#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sampling_params.h"
#include "common/step_plan.h"
#include "tests/parity/stage_chain.h"

namespace sluice {

// Greedy, drawn and truncated tokens, with and without log-probabilities,
// likeliest tokens, penalties and biases.
std::vector<SamplingParams> SamplingKinds();

// Returns what a chain gives for steps in which sequences with each of these
// sample, and others score their prompts, in two micro-batches: more rows than
// go through the head at a time. The sequences' tokens are given, whatever was
// sampled, so that results of chains can be compared token by token. Leaves no
// sequences.
absl::StatusOr<std::vector<StepResult>> RunSamplingKinds(
    StageChain& chain, const std::vector<SamplingParams>& kinds, int32_t vocab);

}  // namespace sluice
