#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "common/step_plan.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/memory/activation_buffer.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Limits that a stage's plans must keep.
struct PlanLimits {
  int32_t max_step_tokens = 0;
  int32_t max_model_len = 0;
  int32_t max_sequences = 0;
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  bool first = false;
  bool packing = true;  // see Policy
};

// Rows of x that the segments of a micro-batch take: their tokens; without
// packing, all but single tokens as many as the longest.
class SegmentRows {
 public:
  SegmentRows(const MicroBatch& batch, bool packing);
  int32_t Of(const Segment& segment) const {
    return segment.num_tokens == 1 ? 1 : std::max(segment.num_tokens, least_);
  }
  int64_t total() const { return total_; }

 private:
  int32_t least_ = 0;
  int64_t total_ = 0;
};

// kInvalidArgument if the admission is out of range.
absl::Status CheckAdmission(const SequenceAdmission& admission,
                            const PlanLimits& limits);

// Checks a micro-batch against the sequences, and moves their lengths on past
// its tokens, for which they get pages. kInvalidArgument says what does not
// fit; kResourceExhausted names a sequence for which no page is left.
absl::Status CheckMicroBatch(const MicroBatch& batch, const PlanLimits& limits,
                             PageTables* tables);

// Checks the inputs of a plan: none on the first stage, else one [tokens,
// hidden] for each micro-batch.
absl::Status CheckHidden(
    const StepPlan& plan,
    std::span<const std::shared_ptr<ActivationBuffer>> hidden,
    const PlanLimits& limits);

}  // namespace sluice
