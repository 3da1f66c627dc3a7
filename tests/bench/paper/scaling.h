#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/plan/plan.h"
#include "tests/bench/paper/paper_case.h"

// FlexGen's table 3: one T4, and four machines of one T4 each as a pipeline
// (section 4.4), prompts of 512 tokens and 32 generated.

namespace sluice {

// Tokens a second: of the whole run, and of decoding alone, "assuming the
// prefill is done".
struct ScalingFigures {
  double generation = 0;
  double decoding = 0;
};

// A model's two rows.
struct ScalingCase {
  PublishedRun one;  // without tokens_per_second
  PublishedRun four;
  bool pageable = false;  // the four leave their weights unpinned
  ScalingFigures published_one;
  ScalingFigures published_four;
};

// The policies of four GPUs are those of FlexGen's benchmark scripts
// (benchmark/flexgen/bench_*_4x1.sh); each has four blocks in flight.
std::vector<ScalingCase> ScalingCases();

struct ScalingPrediction {
  ScalingFigures figures;
  double busy = 0;  // share of the job's time, mean of the stages
};

// FlexGen's run on so many machines: its placements and its schedule, one round
// of blocks that start together, in the simulator. With `pageable`, weights
// come from memory that is not pinned, at the rate that was fitted for KV,
// which does.
absl::StatusOr<ScalingPrediction> PredictScaling(const PublishedRun& run,
                                                 int machines,
                                                 bool pageable = false);

// What Sluice plans for a long job of the same requests on so many of these
// machines, by its own runtime's cost model, KV and weights in 16 bits.
absl::StatusOr<Plan> PlanScaling(const PublishedRun& run, int machines);

}  // namespace sluice
