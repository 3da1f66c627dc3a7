#include "scheduler/plan/slice_choice.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_format.h"
#include "scheduler/cost/slicing.h"
#include "scheduler/plan/plan_candidates.h"
#include "scheduler/plan/stage_case.h"

namespace sluice {
namespace {

// Slices are multiples of this, or of the longest prompt's 128th part.
constexpr int32_t kUnit = 16;
constexpr int32_t kUnits = 128;
// Plans that differ less are as fast.
constexpr double kNoGain = 1.005;

// What a slice of a prompt in each micro-batch takes of the slowest stage.
class SliceCost {
 public:
  SliceCost(const PlanRequest& request, const Plan& plan,
            absl::Span<const StepShape> steps) {
    StepShape all;
    for (const StepShape& step : steps) {
      all.count += step.count;
      all.decode_rows += step.count * step.decode_rows;
      all.decode_positions += step.count * step.decode_positions;
    }
    step_.micro_batches = plan.block.num_microbatches;
    step_.decode_rows = all.decode_rows / all.count;
    step_.decode_positions = all.decode_positions / all.count;
    step_.read_positions = step_.decode_positions - step_.decode_rows;
    step_.head_rows = step_.decode_rows;
    for (const StagePlan& stage : plan.stages) {
      Stage& s = stages_.emplace_back();
      s.of = MakeStageCase(request, stage.machine, stage.layers, stage.policy,
                           plan.block);
      s.of.ranks = s.of.Ranks();
      s.fractions = FractionsOf(stage.policy);
    }
  }

  double operator()(int32_t length, int32_t context) const {
    StepShape step = step_;
    const double prompts = step.micro_batches;
    const double rows = length;
    step.prefill_rows = prompts * rows;
    step.prefill_chunks = prompts;
    step.prefill_pairs = prompts * (rows * context + rows * (rows + 1) / 2);
    step.read_positions += prompts * context;
    double slowest = 0;
    for (const Stage& stage : stages_) {
      slowest = std::max(slowest, StepSeconds(stage.of, step, stage.fractions));
    }
    return slowest;
  }

 private:
  struct Stage {
    StageCase of;
    Fractions fractions = {};
  };
  StepShape step_;
  std::vector<Stage> stages_;
};

// The longest multiple of `unit` up to `most` that takes no longer than `max`
// behind so many positions.
int32_t LongestSlice(const SliceCost& cost, int32_t context, int32_t unit,
                     int32_t most, double max) {
  int32_t length = unit;
  while (length + unit <= most && cost(length + unit, context) <= max) {
    length += unit;
  }
  return length;
}

// The block with slices as the dynamic programme has them.
BlockShape Sliced(const PlanRequest& request, const Plan& plan,
                  absl::Span<const StepShape> steps) {
  BlockShape block = plan.block;
  block.steps_in_flight =
      StepsInFlight(true, static_cast<int>(plan.stages.size()));
  int32_t longest = 0;
  const auto requests = static_cast<double>(request.workload.requests());
  const double groups = std::min(1.0 * block.gbs * block.num_blocks,
                                 std::ceil(requests / block.num_microbatches));
  std::vector<SlicedPrompts> prompts;
  for (const LengthClass& c : request.workload.classes) {
    if (c.count == 0) continue;
    longest = std::max(longest, c.prompt);
    prompts.push_back(
        {c.prompt, groups * static_cast<double>(c.count) / requests});
  }
  const int32_t unit = kUnit * std::max(1, longest / (kUnit * kUnits));
  const SliceCost cost(request, plan, steps);
  const Slicing best =
      BestSlicing(prompts, unit, static_cast<int>(plan.stages.size()), cost);
  // Rounding must not make a difference.
  const double max = best.max_seconds * (1 + 1e-9);
  const int32_t first = LongestSlice(cost, 0, unit, longest, max);
  const int32_t last =
      LongestSlice(cost, longest - best.lengths.back(), unit, first, max);
  block.max_step_tokens = std::max(first, block.gbs);
  block.slice_context = request.choices.slice_context.value_or(0);
  if (!request.choices.slice_context.has_value() && last < first) {
    // Both have the same room: see ChunkRoom.
    const double behind = longest - best.lengths.back() + 0.5 * last;
    const double context =
        (last * behind - 0.5 * first * first) / (first - last);
    block.slice_context = static_cast<int32_t>(
        std::clamp(context, 0.0, static_cast<double>(kMaxSliceContext)));
  }
  return block;
}

}  // namespace

std::vector<BlockShape> OtherSlicings(const PlanRequest& request,
                                      const Plan& plan,
                                      absl::Span<const StepShape> steps) {
  std::vector<BlockShape> others;
  if (!MaySlice(request) || plan.stages.size() < 2) return others;
  const PolicyChoices& choices = request.choices;
  if (plan.block.steps_in_flight > 0 && !choices.slicing.value_or(false)) {
    BlockShape whole = plan.block;
    whole.steps_in_flight = whole.slice_context = 0;
    others.push_back(whole);
  }
  if (choices.slicing.value_or(true) && choices.max_step_tokens.empty()) {
    const BlockShape sliced = Sliced(request, plan, steps);
    const bool same = plan.block.steps_in_flight == sliced.steps_in_flight &&
                      plan.block.max_step_tokens == sliced.max_step_tokens &&
                      plan.block.slice_context == sliced.slice_context;
    if (!same && IsSensible(request, sliced)) others.push_back(sliced);
  }
  return others;
}

std::string SlicingReason(const Plan& plan, const Plan& other) {
  const auto busy = [](const Plan& p) {
    double share = 0;
    for (const StagePlan& stage : p.stages) share += stage.seconds;
    return p.seconds > 0 ? 100 * share / (p.seconds * p.stages.size()) : 0;
  };
  const bool slices = plan.block.steps_in_flight > 0;
  const double gain = other.seconds / plan.seconds;
  if (gain < kNoGain) {
    return absl::StrFormat(
        "prompts cut into slices that follow each other make no difference: "
        "%.4g steps keep the stages busy for %.0f %% of the time",
        plan.steps, busy(plan));
  }
  const Plan& with = slices ? plan : other;
  const Plan& without = slices ? other : plan;
  return absl::StrFormat(
      "%s: with slices of up to %d tokens, %.4g steps keep the stages busy for "
      "%.0f %% of the time; without, %.4g steps of up to %d for %.0f %%, which "
      "is %.3g times as %s",
      slices ? "prompts are cut into slices that follow each other"
             : "prompts' chunks do not follow each other",
      with.block.max_step_tokens, with.steps, busy(with), without.steps,
      without.block.max_step_tokens, busy(without), gain,
      slices ? "slow" : "fast");
}

}  // namespace sluice
