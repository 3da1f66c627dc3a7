#include "runtime/exec/plan_check.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

absl::Status SegmentError(const Segment& segment, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("sequence ", segment.sequence.value(), ": ", what));
}

absl::Status CheckScores(const Segment& segment, const PlanLimits& limits) {
  if (segment.score_begin == segment.score_end) return absl::OkStatus();
  // Within what its rows predict, the next token included.
  const int64_t next = int64_t{segment.start} + segment.num_tokens;
  if (segment.score_begin <= segment.start ||
      segment.score_end < segment.score_begin || segment.score_end > next + 1) {
    return SegmentError(
        segment, absl::StrCat("a segment of positions ", segment.start, " to ",
                              next, " can't score positions ",
                              segment.score_begin, " to ", segment.score_end));
  }
  if (segment.score_end <= next) return absl::OkStatus();
  if (segment.sample) {
    return SegmentError(segment, absl::StrCat("position ", next,
                                              " is both scored and sampled"));
  }
  if (segment.next_token < 0 || segment.next_token >= limits.vocab_size) {
    return SegmentError(
        segment,
        absl::StrCat("token id ", segment.next_token, " at position ", next,
                     " is not in the vocabulary of ", limits.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

SegmentRows::SegmentRows(const MicroBatch& batch, bool packing) {
  if (!packing) {
    for (const Segment& segment : batch.segments) {
      least_ = std::max(least_, segment.num_tokens);
    }
  }
  for (const Segment& segment : batch.segments) total_ += Of(segment);
}

absl::Status CheckAdmission(const SequenceAdmission& admission,
                            const PlanLimits& limits) {
  if (admission.max_tokens < 1 || admission.max_tokens > limits.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence ", admission.sequence.value(), ": max_tokens of ",
        admission.max_tokens, " is not between 1 and this stage's ",
        limits.max_model_len, " positions per sequence"));
  }
  if (admission.prompt_tokens < 0 ||
      admission.prompt_tokens > admission.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence ", admission.sequence.value(), ": prompt_tokens of ",
        admission.prompt_tokens, " is not between 0 and max_tokens"));
  }
  if (admission.sampling.logprobs < -1 ||
      admission.sampling.logprobs > kMaxTopLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence ", admission.sequence.value(), ": logprobs of ",
                     admission.sampling.logprobs, " is not between -1 and ",
                     kMaxTopLogprobs));
  }
  return absl::OkStatus();
}

absl::Status CheckMicroBatch(const MicroBatch& batch, const PlanLimits& limits,
                             PageTables* tables) {
  if (batch.segments.empty()) {
    return absl::InvalidArgumentError("a micro-batch has no segments");
  }
  if (batch.tokens.size() > static_cast<size_t>(limits.max_step_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch has ", batch.tokens.size(),
        " tokens, but this stage takes ", limits.max_step_tokens, " at most"));
  }
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= limits.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, " is not in the vocabulary of ",
                       limits.vocab_size));
    }
  }
  int64_t rows = 0;
  for (const Segment& segment : batch.segments) {
    if (segment.num_tokens < 1) {
      return SegmentError(segment, absl::StrCat("a segment of ",
                                                segment.num_tokens, " tokens"));
    }
    SequencePages* pages = tables->Find(segment.sequence);
    if (pages == nullptr) return SegmentError(segment, "not admitted");
    if (segment.start != pages->length) {
      return SegmentError(
          segment,
          absl::StrCat("a segment starts at position ", segment.start, ", but ",
                       pages->length, " positions have been computed"));
    }
    if (segment.num_tokens > pages->capacity - pages->length) {
      return SegmentError(
          segment,
          absl::StrCat("position ", segment.start, " and ", segment.num_tokens,
                       " more exceed the sequence's ", pages->capacity));
    }
    SLUICE_RETURN_IF_ERROR(CheckScores(segment, limits));
    SLUICE_RETURN_IF_ERROR(
        Annotate(tables->Grow(pages, segment.start + segment.num_tokens),
                 absl::StrCat("sequence ", segment.sequence.value())));
    pages->length += segment.num_tokens;
    rows += segment.num_tokens;
  }
  if (rows != static_cast<int64_t>(batch.tokens.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a micro-batch has ", batch.tokens.size(),
                     " tokens, but its segments ", rows));
  }
  const int64_t padded = SegmentRows(batch, limits.packing).total();
  if (padded > limits.max_step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch has ", padded, " rows with its padding, but this stage ",
        "takes ", limits.max_step_tokens, " at most"));
  }
  return absl::OkStatus();
}

absl::Status CheckHidden(
    const StepPlan& plan,
    std::span<const std::shared_ptr<ActivationBuffer>> hidden,
    const PlanLimits& limits) {
  if (limits.first) {
    if (hidden.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "the first stage takes tokens, not hidden states");
  }
  if (hidden.size() != plan.micro_batches.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan has ", plan.micro_batches.size(),
        " micro-batches, but there are hidden states of ", hidden.size()));
  }
  for (size_t k = 0; k < hidden.size(); ++k) {
    const int64_t rows =
        SegmentRows(plan.micro_batches[k], limits.packing).total();
    if (hidden[k] == nullptr || hidden[k]->rows() != rows ||
        hidden[k]->cols() != limits.hidden_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("micro-batch ", k, ": hidden states are ",
                       hidden[k] == nullptr ? 0 : hidden[k]->rows(), " x ",
                       hidden[k] == nullptr ? 0 : hidden[k]->cols(),
                       ", expected ", rows, " x ", limits.hidden_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
