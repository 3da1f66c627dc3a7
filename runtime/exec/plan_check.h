#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "common/step_plan.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/memory/activation_buffer.h"

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
  // Returns the rows of a segment of so many tokens.
  int32_t Of(int32_t num_tokens) const {
    return num_tokens == 1 ? 1 : std::max(num_tokens, min_);
  }
  int64_t total() const { return total_; }

 private:
  int32_t min_ = 0;
  int64_t total_ = 0;
};

// kInvalidArgument if the admission is out of range.
absl::Status CheckAdmission(const SequenceAdmission& admission,
                            const PlanLimits& limits);

// None of the checks takes or changes anything; kInvalidArgument says what does
// not fit. See StepWork::Admit.
//
// Checks that a micro-batch has segments, and no more tokens than a step may
// have, all of them in the vocabulary.
absl::Status CheckMicroBatch(const MicroBatch& batch, const PlanLimits& limits);
// Checks that a segment goes on where its sequence ends and stays within what
// that may come to. `pages` is null for a sequence that was not admitted.
absl::Status CheckSegment(const Segment& segment, const SequencePages* pages,
                          const PlanLimits& limits);
// Checks that a micro-batch has as many tokens as its segments, and that its
// `rows` fit (SegmentRows::total()).
absl::Status CheckRows(const MicroBatch& batch, size_t segment_tokens,
                       int64_t rows, const PlanLimits& limits);

// Checks that only the first stage has no inputs: it takes tokens.
absl::Status CheckInputs(const StepInputs* inputs, const PlanLimits& limits);

// Checks a micro-batch's input, which must be [rows, hidden].
absl::Status CheckInput(const ActivationBuffer* hidden, int64_t rows,
                        int64_t hidden_size);

}  // namespace sluice
