#include "worker/stage/step_assembler.h"

#include <utility>

#include "common/status_macros.h"

namespace sluice {
namespace {

std::string Describe(BlockId block, int64_t step) {
  return absl::StrCat("block ", block.value(), " step ", step);
}

}  // namespace

absl::Status StepAssembler::CheckOrder(const StepPlan& plan) {
  auto [it, is_new] = last_steps_.try_emplace(plan.block, plan.step);
  if (!is_new && plan.step <= it->second) {
    return InvalidArgument(Describe(plan.block, plan.step), " came after step ",
                           it->second, ": steps are repeated or out of order");
  }
  it->second = plan.step;
  return absl::OkStatus();
}

absl::StatusOr<StageStep> StepAssembler::Add(
    std::shared_ptr<const StepPlan> plan) {
  SLUICE_RETURN_IF_ERROR(CheckOrder(*plan));
  StageStep step;
  step.plan = std::move(plan);
  return step;
}

absl::StatusOr<std::optional<StageStep>> StepAssembler::Add(
    ArrivedFrame arrived) {
  ActivationFrame& frame = arrived.frame;
  const std::string name = Describe(frame.block, frame.step);
  if (frame.micro_batch == 0) {
    if (partial()) {
      return InvalidArgument(name, " came before ",
                             Describe(step_.plan->block, step_.plan->step),
                             " was complete");
    }
    if (frame.plan == nullptr) {
      return InvalidArgument(name, " has no plan");
    }
    SLUICE_RETURN_IF_ERROR(CheckOrder(*frame.plan));
    step_.plan = frame.plan;
  } else if (!partial() || step_.plan->block != frame.block ||
             step_.plan->step != frame.step ||
             static_cast<size_t>(frame.micro_batch) != step_.hidden.size()) {
    return InvalidArgument(name, ": micro-batch ", frame.micro_batch,
                           " is repeated or out of order");
  }
  const std::vector<MicroBatch>& batches = step_.plan->micro_batches;
  if (!batches.empty()) {
    // The executor checks whether their shape fits.
    if (frame.hidden == nullptr) {
      return InvalidArgument(name, ": micro-batch ", frame.micro_batch,
                             " has no activations");
    }
    step_.hidden.push_back(std::move(frame.hidden));
  }
  step_.consumed.push_back(std::move(arrived.consumed));
  if (step_.hidden.size() < batches.size()) return std::nullopt;
  return std::optional<StageStep>(std::exchange(step_, StageStep()));
}

}  // namespace sluice
