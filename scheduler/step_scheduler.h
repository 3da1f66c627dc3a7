#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/step_plan.h"
#include "common/types.h"

namespace sluice {

// Decides which sequences run and what each step of each block computes. Knows
// token counts only, never the tokens.
//
// The caller loops: FormStep(b) for each idle block b, run the plan,
// OnStepDone(b), Finish() those sequences that ended, FormStep(b) again. What
// one block frees may be what another one waits for, so after every
// OnStepDone, Finish and Enqueue each idle block is worth a FormStep.
//
// Rules:
// * A step is mixed: in each micro-batch first one token for every sequence
//   that decodes, then prefill chunks in order of admission, up to
//   max_step_tokens. Since max_step_tokens >= gbs, decoding is never held up
//   by prefill, and every micro-batch with a sequence in prefill advances it.
// * Waiting sequences are admitted strictly in order of Enqueue (no
//   overtaking, so none starves), each to the micro-batch with the fewest
//   sequences, where it stays until it ends. At most gbs in a micro-batch.
// * With `refill`, a sequence is admitted when the step has tokens left for
//   it, so that each admission comes with the sequence's first chunk. Without,
//   a block admits only when it is empty, and then all that it may hold.
// * Pages for max_tokens positions are reserved at admission.
// * Blocks are balanced: one takes no more than
//   ceil((running + waiting) / num_blocks) sequences, nor more than its even
//   share of the pages unless no other block has fewer sequences; and a
//   micro-batch no more than its even share of the block's.
//
// A decision costs O(sequences of the block + admissions). Deterministic.
// Thread-compatible.
class StepScheduler {
 public:
  struct Options {
    int32_t num_blocks = 1;          // in flight at once
    int32_t gbs = 64;                // most sequences in a micro-batch
    int32_t num_microbatches = 1;    // of a block
    int32_t max_step_tokens = 2048;  // of one micro-batch in one step
    int64_t kv_pages = 0;            // shared by all sequences
    int32_t page_tokens = 32;        // positions in a page
    bool refill = true;  // admit into blocks whose sequences still run

    // kInvalidArgument unless all sizes are positive and
    // max_step_tokens >= gbs.
    absl::Status Validate() const;
  };

  // What a step does, in StepPlan's terms: first `release`, then `admit`, then
  // the computation. Micro-batches without segments are left out.
  struct StepDecision {
    std::vector<SequenceId> release;
    std::vector<SequenceId> admit;
    std::vector<std::vector<Segment>> micro_batches;
  };

  // Fails as options.Validate() does.
  static absl::StatusOr<StepScheduler> Create(const Options& options);

  // Puts a sequence at the end of the waiting queue. `known_tokens` are to be
  // prefilled (the prompt, on replay also what was generated); `max_tokens`
  // positions are reserved in all, and none beyond them is ever planned: a
  // sequence that has got there waits for its Finish.
  // REQUIRES: `id` neither waits nor runs nor awaits its release;
  // 1 <= known_tokens <= max_tokens; Fits(max_tokens).
  void Enqueue(SequenceId id, int32_t known_tokens, int32_t max_tokens);

  // Whether a sequence with so many positions could ever be admitted.
  bool Fits(int32_t max_tokens) const;

  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  // Admitted and not finished.
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  // Pages of the sequences that run, and of finished ones whose last step is
  // still in flight.
  int64_t pages_reserved() const { return pages_reserved_; }

  // The next step of `block`, which is then in flight until its OnStepDone.
  // nullopt if there is nothing to do for it now, or if it is in flight.
  //
  // Pending releases ride on the next step of any block. Only when no sequence
  // is left to run and no step is in flight is there a step of its own for
  // them, without micro-batches; it needs its OnStepDone like any other.
  std::optional<StepDecision> FormStep(BlockId block);

  // The step of `block` came back: its sequences stand behind their segments,
  // and one whose segment had `sample` knows one more token, to be fed in the
  // next step unless Finish is called. No effect if no step is in flight.
  void OnStepDone(BlockId block);

  // The sequence ended. If it runs, its slot and pages are free from now on
  // and its id is in `release` of the next step formed. If its block has a
  // step in flight (a cancellation), that happens at the block's OnStepDone,
  // so that no plan in flight names a released sequence. If it waits, it is
  // forgotten. No effect on an unknown id.
  void Finish(SequenceId id);

  // Forgets everything, steps in flight and pending releases included, for a
  // new plan epoch. Returns the sequences that were not finished: those that
  // ran in order of admission, then those that waited in their order.
  std::vector<SequenceId> Clear();

 private:
  struct Waiting {
    SequenceId id;
    int32_t known_tokens;
    int32_t max_tokens;
  };

  struct Running {
    SequenceId id;
    int32_t known_tokens = 0;
    int32_t max_tokens = 0;
    int64_t admission = 0;       // ordinal
    int32_t cached_tokens = 0;   // behind it, the step in flight excluded
    int32_t planned_tokens = 0;  // in the step in flight
    bool decoding = false;       // a token was sampled
    bool finished = false;       // since the step in flight was formed

    bool ReachesKnownEnd() const {
      return cached_tokens + planned_tokens == known_tokens;
    }
  };

  struct Block {
    std::vector<std::vector<Running>> micro_batches;  // in order of admission
    int64_t sequences = 0;
    int64_t pages = 0;
    bool in_flight = false;
  };

  struct Place {
    int32_t block;
    int32_t micro_batch;
  };

  explicit StepScheduler(const Options& options);

  int64_t PagesFor(int32_t max_tokens) const;
  // Sets planned_tokens of the sequences; returns the tokens left to plan.
  int32_t PlanTokens(std::vector<Running>& micro_batch) const;
  static std::vector<Segment> Segments(const std::vector<Running>& micro_batch);
  void Admit(int32_t block_index, std::vector<int32_t>& left,
             std::vector<SequenceId>& admitted);
  bool MayTakePages(const Block& block, int64_t pages) const;
  void Release(Block& block, const Running& sequence);
  bool AnyInFlight() const;

  Options options_;
  std::vector<Block> blocks_;
  std::list<Waiting> waiting_;
  absl::flat_hash_map<SequenceId, std::list<Waiting>::iterator> waiting_index_;
  absl::flat_hash_map<SequenceId, Place> running_;
  std::vector<SequenceId> pending_release_;
  int64_t pages_reserved_ = 0;
  int64_t admissions_ = 0;
};

}  // namespace sluice
