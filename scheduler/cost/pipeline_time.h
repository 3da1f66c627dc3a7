#pragma once

#include <vector>

#include "absl/types/span.h"

// The time that blocks in flight take through a pipeline, in closed form.
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
double RoundSeconds(absl::Span<const PipelineStage> stages, double num_blocks,
                    double step_seconds);

// Returns what filling and draining the pipeline adds to a job's rounds: the
// first block's way to the busiest machine and the last one's from there, or,
// if one block's way decides, how much the last block starts behind the first.
double FillSeconds(absl::Span<const PipelineStage> stages, double num_blocks);

// Seconds of a job's rounds of several kinds: `rounds[k]` of kind k, in which
// stage s takes seconds[s][k].
//
// Which kinds meet in the pipeline matters: a quick step behind a slow one
// takes as long. With `mixing` 0 all blocks do steps of the same kind at a
// time, as blocks do that start together with requests of one length. With 1
// kinds come at random: of n blocks' steps, the chance that the slowest is of
// kind k is F(k)^n - F(k - 1)^n, F being the share of steps of kinds up to k by
// their time; that step goes through all stages at its pace while the others,
// each of the average of kinds up to k, wait behind it. In between, the
// geometric mean.
//
// `in_flight[k]` is the number of steps that are in the pipeline together where
// kind k comes, and a round of kind k is so many steps; num_blocks of each kind
// if it is empty.
double JobSeconds(const std::vector<PipelineStage>& stages,
                  const std::vector<std::vector<double>>& seconds,
                  const std::vector<double>& rounds, int num_blocks,
                  double step_seconds, double mixing = 0,
                  const std::vector<double>& in_flight = {});

}  // namespace sluice
