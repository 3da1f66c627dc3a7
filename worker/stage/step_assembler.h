#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
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

// All that a stage needs to compute one step.
struct StageStep {
  std::shared_ptr<const StepPlan> plan;
  std::vector<std::shared_ptr<ActivationBuffer>> hidden;  // of each micro-batch
  std::vector<OnceOnExit> consumed;  // to be dropped after the step
};

// Puts the frames of one epoch together to steps and sees to their order: the
// micro-batches of a step follow each other, and the steps of a block ascend.
// Thread-compatible.
class StepAssembler {
 public:
  // Returns the step that `arrived` completes, if any. kInvalidArgument: a
  // frame that is missing, repeated, or does not fit its plan.
  absl::StatusOr<std::optional<StageStep>> Add(ArrivedFrame arrived);

  // Makes a step of a plan, as steps come to the first stage.
  absl::StatusOr<StageStep> Add(std::shared_ptr<const StepPlan> plan);

  // Whether some frames of a step have arrived, and others have not.
  bool partial() const { return step_.plan != nullptr; }

 private:
  absl::Status CheckOrder(const StepPlan& plan);

  StageStep step_;  // in the making
  absl::flat_hash_map<BlockId, int64_t> last_steps_;
};

}  // namespace sluice
