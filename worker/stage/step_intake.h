#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/step_plan.h"
#include "runtime/memory/activation_buffer.h"
#include "worker/link/link.h"

namespace sluice {

// Calls a function once, when destroyed: a frame's credit goes back on every
// path. Move-only.
class OnceOnExit {
 public:
  OnceOnExit() = default;
  explicit OnceOnExit(std::function<void()> call) : call_(std::move(call)) {}
  OnceOnExit(OnceOnExit&& other) noexcept
      : call_(std::exchange(other.call_, nullptr)) {}
  OnceOnExit& operator=(OnceOnExit&& other) noexcept {
    if (this != &other) {
      if (call_) call_();
      call_ = std::exchange(other.call_, nullptr);
    }
    return *this;
  }
  ~OnceOnExit() {
    if (call_) call_();
  }

 private:
  std::function<void()> call_;
};

struct ArrivedFrame {
  ActivationFrame frame;
  OnceOnExit consumed;
};

// Takes the frames of one epoch and gives their contents to the steps that they
// belong to. Sees to their order: the micro-batches of a step follow each
// other, and the steps of a block ascend. A step begins with its first frame,
// before the others have arrived, and ends by End(). Thread-compatible.
class StepIntake {
 public:
  // Begins a step of a plan, as steps come to the first stage.
  // kInvalidArgument: a step that is repeated or out of order.
  absl::Status Begin(std::shared_ptr<const StepPlan> plan);
  // Begins a step by the frame of its micro-batch 0, or goes on with it.
  // kInvalidArgument: a frame that is missing, repeated, or does not fit its
  // plan.
  absl::Status Add(ArrivedFrame arrived);

  // Returns the plan of the step that has begun and not ended; null if none.
  const std::shared_ptr<const StepPlan>& plan() const { return plan_; }
  // Returns how many of its micro-batches have arrived.
  int32_t arrived() const { return static_cast<int32_t>(hidden_.size()); }
  // Gives the input of micro-batch k, once. REQUIRES: k < arrived().
  std::shared_ptr<ActivationBuffer> Take(int32_t k) {
    return std::move(hidden_[static_cast<size_t>(k)]);
  }
  // Ends the step: the slots of its frames are free.
  void End();

 private:
  absl::Status CheckOrder(const StepPlan& plan);

  std::shared_ptr<const StepPlan> plan_;
  std::vector<std::shared_ptr<ActivationBuffer>> hidden_;  // of micro-batches
  std::vector<OnceOnExit> consumed_;
  absl::flat_hash_map<BlockId, int64_t> last_steps_;
};

}  // namespace sluice
