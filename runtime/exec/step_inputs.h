#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "runtime/memory/activation_buffer.h"

namespace sluice {

// The inputs of a step's micro-batches at a stage that is not the first one.
// They may still be on their way when the step begins.
class StepInputs {
 public:
  virtual ~StepInputs() = default;
  // Whether Take would not wait for this micro-batch.
  virtual bool ready(int32_t micro_batch) = 0;
  // Gives a micro-batch's input, [tokens, hidden], once it is there. Each is
  // taken once, in order. An error ends the step: the input will not come.
  virtual absl::StatusOr<std::shared_ptr<ActivationBuffer>> Take(
      int32_t micro_batch) = 0;
};

// Inputs all of which are there.
class HeldInputs : public StepInputs {
 public:
  explicit HeldInputs(std::vector<std::shared_ptr<ActivationBuffer>> inputs)
      : inputs_(std::move(inputs)) {}
  bool ready(int32_t micro_batch) override { return true; }
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> Take(
      int32_t micro_batch) override {
    if (static_cast<size_t>(micro_batch) >= inputs_.size()) {
      return InvalidArgument("there is no input of micro-batch ", micro_batch);
    }
    return std::move(inputs_[static_cast<size_t>(micro_batch)]);
  }

 private:
  std::vector<std::shared_ptr<ActivationBuffer>> inputs_;
};

}  // namespace sluice
