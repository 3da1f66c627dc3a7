#include "scheduler/plan/plan_candidates.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace sluice {
namespace {

using Values = std::vector<int32_t>;

// FlexGen's multiples of 4 (section 4.3) and what small jobs need.
Values GbsValues(GridSize size) {
  if (size == GridSize::kCoarse) return {1, 4, 16, 64, 256, 1024};
  return {1,  2,  4,   8,   12,  16,  24,  32,  48,
          64, 96, 128, 192, 256, 384, 512, 768, 1024};
}

// FlexGen has no more than 20 micro-batches (section 4.3).
Values MicroBatchValues(GridSize size) {
  if (size == GridSize::kCoarse) return {1, 4, 16};
  return {1, 2, 3, 4, 6, 8, 12, 16, 20};
}

Values StepTokenValues(GridSize size) {
  if (size == GridSize::kCoarse) return {512, 2048, 8192};
  return {16, 64, 128, 256, 384, 512, 768, 1024, 2048, 4096, 8192};
}

Values Sorted(Values values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Values Choose(const Values& own, const Values& chosen) {
  return Sorted(chosen.empty() ? own : chosen);
}

constexpr int kDimensions = 4;

std::array<int32_t*, kDimensions> FieldsOf(BlockShape& block) {
  return {&block.gbs, &block.num_microbatches, &block.num_blocks,
          &block.max_step_tokens};
}

bool SameShape(const BlockShape& a, const BlockShape& b) {
  return a.gbs == b.gbs && a.num_microbatches == b.num_microbatches &&
         a.num_blocks == b.num_blocks &&
         a.max_step_tokens == b.max_step_tokens &&
         a.steps_in_flight == b.steps_in_flight &&
         a.slice_context == b.slice_context;
}

}  // namespace

std::vector<std::string> NamesOf(const Candidate& c) {
  return {absl::StrCat("gbs=", c.block.gbs),
          absl::StrCat("num-microbatches=", c.block.num_microbatches),
          absl::StrCat("blocks=", c.block.num_blocks),
          absl::StrCat("max-step-tokens=", c.block.max_step_tokens),
          absl::StrCat("slicing=", c.block.steps_in_flight > 0 ? "on" : "off"),
          absl::StrCat("compress-weights=", WeightFormatName(c.weights)),
          absl::StrCat("compress-kv=", WeightFormatName(c.kv))};
}

int NumStages(const PlanRequest& request) {
  return std::min<int>(request.model.num_layers,
                       static_cast<int>(request.machines.size()));
}

Grid MakeGrid(const PlanRequest& request, GridSize size) {
  const PolicyChoices& choices = request.choices;
  const auto max = static_cast<int32_t>(
      std::min<int64_t>(request.workload.requests(), GbsValues(size).back()));
  Values gbs = {max};
  for (const int32_t value : GbsValues(size)) {
    if (value < max) gbs.push_back(value);
  }
  // With fewer blocks than stages some stage always waits; one more keeps the
  // last one busy while a step is on its way back.
  const int32_t stages = NumStages(request);
  return {.gbs = Choose(gbs, choices.gbs),
          .num_microbatches =
              Choose(MicroBatchValues(size), choices.num_microbatches),
          .num_blocks =
              Choose({1, stages, stages + 1, 2 * stages}, choices.num_blocks),
          .max_step_tokens =
              Choose(StepTokenValues(size), choices.max_step_tokens)};
}

bool IsSensible(const PlanRequest& request, const BlockShape& block) {
  if (block.max_step_tokens < block.gbs) return false;
  // No link could carry such a micro-batch.
  if (int64_t{block.max_step_tokens} * request.model.hidden_size * 4 >
      kMaxActivationBytes) {
    return false;
  }
  const int64_t slots =
      int64_t{block.gbs} * block.num_microbatches * block.num_blocks;
  return slots < 2 * request.workload.requests();
}

bool MaySlice(const PlanRequest& request) {
  const std::string& first = request.machines.front().machine;
  const bool one_machine =
      !first.empty() &&
      std::all_of(request.machines.begin(), request.machines.end(),
                  [&](const MachineProfile& m) { return m.machine == first; });
  return request.refill && NumStages(request) > 1 && !one_machine;
}

int32_t SliceSteps(const PlanRequest& request) {
  return StepsInFlight(
      MaySlice(request) && request.choices.slicing.value_or(true),
      NumStages(request));
}

BlockShape SmallestBlock(const PlanRequest& request) {
  const Grid grid = MakeGrid(request, GridSize::kFine);
  return {.gbs = grid.gbs.front(),
          .num_microbatches = grid.num_microbatches.front(),
          .num_blocks = grid.num_blocks.front(),
          .max_step_tokens =
              std::max(grid.max_step_tokens.front(), grid.gbs.front()),
          .steps_in_flight = SliceSteps(request),
          .slice_context = request.choices.slice_context.value_or(0),
          .refill = request.refill};
}

std::vector<BlockShape> BlocksOf(const PlanRequest& request, const Grid& grid) {
  std::vector<BlockShape> blocks = {SmallestBlock(request)};
  for (const int32_t gbs : grid.gbs) {
    for (const int32_t micro_batches : grid.num_microbatches) {
      for (const int32_t num_blocks : grid.num_blocks) {
        for (const int32_t tokens : grid.max_step_tokens) {
          const BlockShape block = {
              .gbs = gbs,
              .num_microbatches = micro_batches,
              .num_blocks = num_blocks,
              .max_step_tokens = tokens,
              .steps_in_flight = SliceSteps(request),
              .slice_context = request.choices.slice_context.value_or(0),
              .refill = request.refill};
          if (IsSensible(request, block) && !SameShape(block, blocks.front())) {
            blocks.push_back(block);
          }
        }
      }
    }
  }
  return blocks;
}

std::vector<BlockShape> NeighboursOf(const PlanRequest& request,
                                     const Grid& grid,
                                     const BlockShape& block) {
  using Move = std::array<int, kDimensions>;
  // The last four keep the number of sequences about what it is.
  static constexpr Move kMoves[] = {
      {1, 0, 0, 0},  {-1, 0, 0, 0}, {0, 1, 0, 0},  {0, -1, 0, 0},
      {0, 0, 1, 0},  {0, 0, -1, 0}, {0, 0, 0, 1},  {0, 0, 0, -1},
      {1, -1, 0, 0}, {-1, 1, 0, 0}, {1, 0, -1, 0}, {-1, 0, 1, 0}};
  const std::array<const Values*, kDimensions> values = {
      &grid.gbs, &grid.num_microbatches, &grid.num_blocks,
      &grid.max_step_tokens};
  std::vector<BlockShape> neighbours;
  for (const Move& move : kMoves) {
    BlockShape next = block;
    bool inside = true;
    for (int d = 0; d < kDimensions && inside; ++d) {
      if (move[d] == 0) continue;
      int32_t& field = *FieldsOf(next)[d];
      // A value beside the grid counts as the one below it.
      const auto above =
          std::upper_bound(values[d]->begin(), values[d]->end(), field);
      const int64_t place = (above - values[d]->begin()) - 1 + move[d];
      inside = place >= 0 && place < static_cast<int64_t>(values[d]->size());
      if (inside) field = (*values[d])[place];
    }
    if (inside && IsSensible(request, next)) neighbours.push_back(next);
  }
  return neighbours;
}

}  // namespace sluice
