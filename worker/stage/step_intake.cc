#include "worker/stage/step_intake.h"

#include <utility>

#include "common/status_macros.h"

namespace sluice {
namespace {

std::string Describe(BlockId block, int64_t step) {
  return absl::StrCat("block ", block.value(), " step ", step);
}

}  // namespace

absl::Status StepIntake::CheckOrder(const StepPlan& plan) {
  auto [it, is_new] = last_steps_.try_emplace(plan.block, plan.step);
  if (!is_new && plan.step <= it->second) {
    return InvalidArgument(Describe(plan.block, plan.step), " came after step ",
                           it->second, ": steps are repeated or out of order");
  }
  it->second = plan.step;
  return absl::OkStatus();
}

absl::Status StepIntake::Begin(std::shared_ptr<const StepPlan> plan) {
  SLUICE_RETURN_IF_ERROR(CheckOrder(*plan));
  plan_ = std::move(plan);
  return absl::OkStatus();
}

absl::Status StepIntake::Add(ArrivedFrame arrived) {
  ActivationFrame& frame = arrived.frame;
  const std::string name = Describe(frame.block, frame.step);
  if (frame.micro_batch == 0) {
    if (plan_ != nullptr) {
      return InvalidArgument(name, " came before ",
                             Describe(plan_->block, plan_->step),
                             " was complete");
    }
    if (frame.plan == nullptr) return InvalidArgument(name, " has no plan");
    SLUICE_RETURN_IF_ERROR(Begin(frame.plan));
  } else if (plan_ == nullptr || plan_->block != frame.block ||
             plan_->step != frame.step ||
             frame.micro_batch != this->arrived()) {
    return InvalidArgument(name, ": micro-batch ", frame.micro_batch,
                           " is repeated or out of order");
  }
  consumed_.push_back(std::move(arrived.consumed));
  if (plan_->micro_batches.empty()) return absl::OkStatus();
  if (static_cast<size_t>(frame.micro_batch) >= plan_->micro_batches.size()) {
    return InvalidArgument(name, ": micro-batch ", frame.micro_batch,
                           " is one more than its plan has");
  }
  // The executor checks whether their shape fits.
  if (frame.hidden == nullptr) {
    return InvalidArgument(name, ": micro-batch ", frame.micro_batch,
                           " has no activations");
  }
  hidden_.push_back(std::move(frame.hidden));
  return absl::OkStatus();
}

void StepIntake::End() {
  plan_.reset();
  hidden_.clear();
  consumed_.clear();
}

}  // namespace sluice
