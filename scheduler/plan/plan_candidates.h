#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/plan/plan.h"

// The choices that the planner enumerates outside the linear programs.

namespace sluice {

// A block shape and the formats of weights and KV.
struct Candidate {
  BlockShape block;
  WeightFormat weights = WeightFormat::kFull;
  WeightFormat kv = WeightFormat::kFull;

  // Puts smaller blocks first.
  auto Key() const {
    return std::make_tuple(
        static_cast<int>(weights), static_cast<int>(kv),
        int64_t{block.gbs} * block.num_microbatches * block.num_blocks,
        block.num_blocks, block.num_microbatches, block.max_step_tokens,
        block.steps_in_flight, block.slice_context);
  }
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.Key() < b.Key();
  }
};

// "gbs=16", "num-microbatches=4" and so on: one for each dimension, in order.
std::vector<std::string> NamesOf(const Candidate& candidate);

// Values of the dimensions of a block shape, each in ascending order.
struct Grid {
  std::vector<int32_t> gbs;
  std::vector<int32_t> num_microbatches;
  std::vector<int32_t> num_blocks;
  std::vector<int32_t> max_step_tokens;
};

// The values that request.choices leaves open: some of each dimension that span
// all of what pays, or all that are worth trying.
enum class GridSize { kCoarse, kFine };
Grid MakeGrid(const PlanRequest& request, GridSize size);

// Whether a micro-batch's sequences can decode in one step, and there are no
// more slots than requests (but for what comes next to it).
bool IsSensible(const PlanRequest& request, const BlockShape& block);

// Returns the sensible block shapes of a grid, and the smallest in any case.
std::vector<BlockShape> BlocksOf(const PlanRequest& request, const Grid& grid);

// The smallest block that request.choices allows.
BlockShape SmallestBlock(const PlanRequest& request);

// Block shapes next to one in the grid: one place further in a dimension, or in
// two against each other.
std::vector<BlockShape> NeighboursOf(const PlanRequest& request,
                                     const Grid& grid, const BlockShape& block);

// Returns as many stages as there are machines, but no more than layers.
int NumStages(const PlanRequest& request);

// Whether there is a pipeline that slices might fill: stages of one machine
// take turns anyway.
bool MaySlice(const PlanRequest& request);

// BlockShape::steps_in_flight of the candidates that are searched: with slices,
// unless request.choices or MaySlice() rule them out.
int32_t SliceSteps(const PlanRequest& request);

// kResourceExhausted that says what FindShortage() found.
absl::Status ShortageError(const PlanRequest& request);

}  // namespace sluice
