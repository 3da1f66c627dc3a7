#include "runtime/exec/plan_check.h"

#include "common/status_macros.h"

namespace sluice {
namespace {

template <typename... What>
absl::Status SequenceError(SequenceId sequence, const What&... what) {
  return InvalidArgument("sequence ", sequence.value(), ": ", what...);
}

absl::Status CheckScores(const Segment& segment, const PlanLimits& limits) {
  if (segment.score_begin == segment.score_end) return absl::OkStatus();
  // Scores lie within what the segment's rows predict, the next token included.
  const int64_t next = int64_t{segment.start} + segment.num_tokens;
  if (segment.score_begin <= segment.start ||
      segment.score_end < segment.score_begin || segment.score_end > next + 1) {
    return SequenceError(segment.sequence, "a segment of positions ",
                         segment.start, " to ", next, " can't score positions ",
                         segment.score_begin, " to ", segment.score_end);
  }
  if (segment.score_end <= next) return absl::OkStatus();
  if (segment.sample) {
    return SequenceError(segment.sequence, "position ", next,
                         " is both scored and sampled");
  }
  if (segment.next_token < 0 || segment.next_token >= limits.vocab_size) {
    return SequenceError(segment.sequence, "token id ", segment.next_token,
                         " at position ", next, " is not in the vocabulary of ",
                         limits.vocab_size);
  }
  return absl::OkStatus();
}

}  // namespace

SegmentRows::SegmentRows(const MicroBatch& batch, bool packing) {
  if (!packing) {
    for (const Segment& segment : batch.segments) {
      min_ = std::max(min_, segment.num_tokens);
    }
  }
  for (const Segment& segment : batch.segments) {
    total_ += Of(segment.num_tokens);
  }
}

absl::Status CheckAdmission(const SequenceAdmission& admission,
                            const PlanLimits& limits) {
  if (admission.max_positions < 1 ||
      admission.max_positions > limits.max_model_len) {
    return SequenceError(admission.sequence, "max_positions of ",
                         admission.max_positions,
                         " is not between 1 and this stage's ",
                         limits.max_model_len, " positions per sequence");
  }
  if (admission.prompt_tokens < 0 ||
      admission.prompt_tokens > admission.max_positions) {
    return SequenceError(admission.sequence, "prompt_tokens of ",
                         admission.prompt_tokens,
                         " is not between 0 and max_positions");
  }
  if (admission.sampling.logprobs < -1 ||
      admission.sampling.logprobs > kMaxBeamCandidates) {
    return SequenceError(admission.sequence, "logprobs of ",
                         admission.sampling.logprobs, " is not between -1 and ",
                         kMaxBeamCandidates);
  }
  return absl::OkStatus();
}

absl::Status CheckMicroBatch(const MicroBatch& batch,
                             const PlanLimits& limits) {
  if (batch.segments.empty()) {
    return InvalidArgument("a micro-batch has no segments");
  }
  if (batch.tokens.size() > static_cast<size_t>(limits.max_step_tokens)) {
    return InvalidArgument("a micro-batch has ", batch.tokens.size(),
                           " tokens, but this stage takes ",
                           limits.max_step_tokens, " at most");
  }
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= limits.vocab_size) {
      return InvalidArgument("token id ", token,
                             " is not in the vocabulary of ",
                             limits.vocab_size);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSegment(const Segment& segment, const SequencePages* pages,
                          const PlanLimits& limits) {
  if (segment.num_tokens < 1) {
    return SequenceError(segment.sequence, "a segment of ", segment.num_tokens,
                         " tokens");
  }
  if (pages == nullptr) return SequenceError(segment.sequence, "not admitted");
  if (segment.start != pages->length) {
    return SequenceError(segment.sequence, "a segment starts at position ",
                         segment.start, ", but ", pages->length,
                         " positions have been computed");
  }
  if (segment.num_tokens > pages->capacity - pages->length) {
    return SequenceError(segment.sequence, "position ", segment.start, " and ",
                         segment.num_tokens, " more exceed the sequence's ",
                         pages->capacity);
  }
  return CheckScores(segment, limits);
}

absl::Status CheckRows(const MicroBatch& batch, size_t segment_tokens,
                       int64_t rows, const PlanLimits& limits) {
  if (segment_tokens != batch.tokens.size()) {
    return InvalidArgument("a micro-batch has ", batch.tokens.size(),
                           " tokens, but its segments ", segment_tokens);
  }
  if (rows > limits.max_step_tokens) {
    return InvalidArgument("a micro-batch has ", rows,
                           " rows with its padding, but this stage takes ",
                           limits.max_step_tokens, " at most");
  }
  return absl::OkStatus();
}

absl::Status CheckInputs(const StepInputs* inputs, const PlanLimits& limits) {
  if (limits.first == (inputs == nullptr)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the first stage takes tokens, the others hidden states");
}

absl::Status CheckInput(const ActivationBuffer* hidden, int64_t rows,
                        int64_t hidden_size) {
  if (hidden != nullptr && hidden->rows() == rows &&
      hidden->cols() == hidden_size) {
    return absl::OkStatus();
  }
  return InvalidArgument("hidden states are ",
                         hidden == nullptr ? 0 : hidden->rows(), " x ",
                         hidden == nullptr ? 0 : hidden->cols(), ", expected ",
                         rows, " x ", hidden_size);
}

}  // namespace sluice
