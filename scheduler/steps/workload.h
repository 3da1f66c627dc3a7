#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// The requests of a job, by length.
struct LengthClass {
  int32_t prompt = 0;  // tokens
  int32_t output = 0;  // tokens that are generated, on average
  int64_t count = 0;   // requests
  // Tokens of the prompt, its first ones, that other requests compute, on
  // average.
  int32_t shared = 0;
  friend bool operator==(const LengthClass&, const LengthClass&) = default;
};

// Classes in the order in which the requests come, evenly mixed.
struct Workload {
  std::vector<LengthClass> classes;

  int64_t requests() const;
  double prompt_tokens() const;
  double shared_tokens() const;  // of these, computed by other requests
  double output_tokens() const;
  int32_t longest() const;  // positions: prompt and output of one request

  // kInvalidArgument: no requests; a class without prompt or output tokens.
  absl::Status Check() const;
};

// The part of the workload's requests that one of several pipelines takes:
// `share` of each class, but at least one request of each. REQUIRES:
// 0 < share <= 1.
Workload ShareOf(Workload workload, double share);

// The steps of one kind that a job takes, all blocks together: averages of one
// block's step. What is prefilled and what is decoded share steps.
struct StepShape {
  double count = 0;  // steps of this kind in the whole job
  // Steps in the pipeline together where it comes; 0: one of each block.
  double in_flight = 0;
  double micro_batches = 1;   // with rows in them
  double prefill_rows = 0;    // in all micro-batches
  double prefill_chunks = 0;  // prompts, or parts of them, that these rows are
  double prefill_pairs = 0;   // positions attended, summed over those rows
  double decode_rows = 0;
  double decode_positions = 0;  // attended, summed over those rows
  // Positions that were there before the step, of all sequences in it: what is
  // read of KV that has to come from elsewhere.
  double read_positions = 0;
  double head_rows = 0;  // rows that get logits
};

// The order of a workload's requests: classes evenly mixed. Request j of a
// class of n is due at (j + 1/2) / n of the job. REQUIRES: no more Pops than
// requests.
class RequestOrder {
 public:
  explicit RequestOrder(const Workload& workload) {
    for (const LengthClass& c : workload.classes) {
      if (c.count > 0) due_.push_back({0.5 / static_cast<double>(c.count), &c});
    }
    std::make_heap(due_.begin(), due_.end(), Later);
  }
  // The class of the next request.
  const LengthClass& Head() const { return *due_.front().of; }
  void Pop() {
    std::pop_heap(due_.begin(), due_.end(), Later);
    Due& last = due_.back();
    const auto count = static_cast<double>(last.of->count);
    last.at = (++last.taken + 0.5) / count;
    if (last.taken >= count) {
      due_.pop_back();
    } else {
      std::push_heap(due_.begin(), due_.end(), Later);
    }
  }

 private:
  struct Due {
    double at = 0;
    const LengthClass* of = nullptr;
    double taken = 0;
  };
  // The order of the classes decides between equals.
  static bool Later(const Due& a, const Due& b) {
    return a.at != b.at ? a.at > b.at : a.of > b.of;
  }
  std::vector<Due> due_;
};

// The shape of a block, and how it is refilled.
struct BlockShape {
  int32_t gbs = 0;
  int32_t num_microbatches = 1;
  int32_t num_blocks = 1;
  int32_t max_step_tokens = 2048;
  // As StepScheduler::Options has them. Only with refill.
  int32_t steps_in_flight = 0;
  int32_t slice_context = 0;
  bool refill = true;
};

// The steps of a whole job, as StepScheduler would form them: those with like
// contents are merged, into at most `max_kinds`. Jobs of more requests than
// some blocks' worth are followed through their start, as long as it takes to
// be steady, and their end; what lies between is multiplied. Deterministic.
// REQUIRES: workload.Check() is OK and block's sizes are positive.
std::vector<StepShape> StepsOf(const Workload& workload,
                               const BlockShape& block, int max_kinds);

// FlexGen's two kinds (section 4.2): one prefill of whole prompts, then
// output - 1 decode steps, for blocks that are started together; no refill.
std::vector<StepShape> BlockSteps(const Workload& workload,
                                  const BlockShape& block);

}  // namespace sluice
