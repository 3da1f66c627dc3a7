#pragma once

#include <vector>

#include "absl/types/span.h"

// How long blocks in flight take through a pipeline: in closed form.
// simulator.h follows the same pipeline event by event.

namespace sluice {

struct PipelineStage {
  int machine = 0;         // stages of one machine work one at a time
  double seconds = 0;      // of a step of one block
  double hop_seconds = 0;  // until the next stage has it
};

// Seconds in which each of `num_blocks` blocks does one step, the pipeline
// being full. A stage does one block's step at a time, and a block's next step
// begins `step_seconds` after its last left the last stage:
//
//   max(num_blocks x the busiest machine's seconds,
//       one block's way through all stages and back)
//
// FlexGen's pipeline of stages (section 4.4) with any number of blocks.
double RoundSeconds(absl::Span<const PipelineStage> stages, int num_blocks,
                    double step_seconds);

// What filling and draining the pipeline adds to a job's rounds: the first
// block's way to the busiest machine and the last one's from there, or, if one
// block's way decides, how much the last block starts behind the first.
double FillSeconds(absl::Span<const PipelineStage> stages, int num_blocks);

// Seconds of a job's rounds of several kinds: `rounds[k]` of kind k, in which
// stage s takes seconds[s][k].
double JobSeconds(const std::vector<PipelineStage>& stages,
                  const std::vector<std::vector<double>>& seconds,
                  const std::vector<double>& rounds, int num_blocks,
                  double step_seconds);

}  // namespace sluice
