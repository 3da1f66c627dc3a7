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
#include "runtime/kv/kv_layout.h"
#include "scheduler/steps/usage_profile.h"

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
// * A running sequence never lacks a page. What a block claims is, with
//   Reserve::kProfile, the most pages that its sequences hold in any coming
//   step of the block, if all run on to max_tokens; with kMaximum, the sum of
//   what each needs for max_tokens. A sequence is admitted only if the claims
//   of all blocks together stay within kv_pages. (The proof is below.)
// * With kProfile and `refill`, admissions are paced at first, see below.
// * What a step admits has no more entries of logit_bias together than a plan
//   has room for: who is next in line then comes with the next step.
// * Blocks are balanced: one takes no more than
//   ceil((running + waiting) / num_blocks) sequences, nor claims more than its
//   even share of the pages unless no other block has fewer sequences; and a
//   micro-batch no more than its even share of the block's.
//
// Why pages suffice, with kProfile. In each step of a block every sequence that
// decodes moves on by exactly one position, for nothing holds up decoding; so
// how the pages of all of these develop together is known, and an early end
// only makes it less. Prefill depends on the tokens that others leave: between
// the earliest and the latest step in which it may be complete (max_step_tokens
// a step, or those less one for each sequence ahead), the sequence is counted
// with the positions of the earliest and the end of the latest. So a block's
// claim bounds what it holds at any time of its own, and never grows but by an
// admission. Blocks advance at unlike speeds, and one may wait while another
// runs many steps: whatever the order, together they hold no more than the sum
// of their claims. Ends are counted when they are sure: a sequence at
// max_tokens holds its pages until Finish, and its block waits for that.
//
// Pacing: the diagonal block schedule (FlexGen, appendix A.2.1). Sequences at
// evenly spaced positions need the average of their sizes, those that began
// together the greatest size of each, which is what a job's first admissions
// would come to, and with equal lengths all later ones too: a block would
// change between full and empty at once. So each step earns a block its share
// of the pages, and an admission costs the pages that the sequence is expected
// to hold, summed over its steps: admissions come as evenly as a full block's
// ends will. Done only where it pays for the slower start: if the pages saved
// by all sequences known (their greatest size less their average) are no fewer
// than there are, about 2.5 times what fits at once for n = 4 s. How far
// sequences get on their way to max_tokens is learned from those that ended.
//
// A decision costs O(sequences of the block + admissions), and with kProfile
// O(greatest max_tokens) for each admission or attempt. Deterministic.
// Thread-compatible.
class StepScheduler {
 public:
  // The number that the page check of an admission goes by.
  enum class Reserve {
    kMaximum,  // each sequence's pages for max_tokens
    kProfile,  // the future of all: for stages that take pages by need
  };

  struct Options {
    int32_t num_blocks = 1;             // in flight at once
    int32_t gbs = 64;                   // most sequences in a micro-batch
    int32_t num_microbatches = 1;       // of a block
    int32_t max_step_tokens = 2048;     // of one micro-batch in one step
    int64_t kv_pages = 0;               // shared by all sequences
    int32_t page_tokens = kPageTokens;  // positions in a page
    bool refill = true;  // admit into blocks whose sequences still run
    Reserve reserve = Reserve::kProfile;
    // If false, each prefill chunk of a micro-batch counts as much as the
    // longest, as if padded to it. Not with Reserve::kProfile.
    bool packing = true;
    // The room of one plan: entries of logit_bias, of the sequences that it
    // admits together; and releases.
    int64_t max_logit_biases = 1 << 20;
    int64_t max_releases = 1 << 20;

    // kInvalidArgument unless all sizes are positive,
    // max_step_tokens >= gbs, and packing is on with Reserve::kProfile.
    absl::Status Validate() const;
  };

  // The content of a step, in StepPlan's terms: first `release`, then `admit`,
  // then the computation. Micro-batches without segments are left out.
  struct StepDecision {
    std::vector<SequenceId> release;
    std::vector<SequenceId> admit;
    std::vector<std::vector<Segment>> micro_batches;
  };

  // Fails as options.Validate() does.
  static absl::StatusOr<StepScheduler> Create(const Options& options);

  // Puts a sequence at the end of the waiting queue. `known_tokens` are to be
  // prefilled (the prompt, on replay also what was generated). No position
  // beyond `max_tokens` is ever planned: a sequence that has got there waits
  // for its Finish, and its block with it.
  // `logit_biases` counts the entries of its logit_bias.
  // REQUIRES: `id` neither waits nor runs nor awaits its release;
  // 1 <= known_tokens <= max_tokens; Fits(max_tokens).
  void Enqueue(SequenceId id, int32_t known_tokens, int32_t max_tokens,
               int64_t logit_biases = 0);

  // Whether a sequence with so many positions could ever be admitted.
  bool Fits(int32_t max_tokens) const;

  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  // Returns up to `max` waiting sequences, the last ones, in their order.
  std::vector<SequenceId> LastWaiting(int64_t max) const;
  // Returns the number of sequences admitted and not finished.
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  // Returns the pages that all blocks claim: for the sequences that run, and
  // for finished ones whose last step is still in flight.
  int64_t pages_reserved() const;

  // The next step of `block`, which is then in flight until its OnStepDone.
  // nullopt if there is nothing to do for it now, or if it is in flight.
  //
  // Pending releases ride on the next step of any block. Only when no sequence
  // is left to run and no step is in flight, or when they are too many for one
  // plan, is there a step of its own for them, without micro-batches; it needs
  // its OnStepDone like any other.
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
    int64_t logit_biases;
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
    UsageProfile::Use use;

    bool ReachesKnownEnd() const {
      return cached_tokens + planned_tokens == known_tokens;
    }
  };

  struct Block {
    std::vector<std::vector<Running>> micro_batches;  // in order of admission
    UsageProfile profile;
    int64_t sequences = 0;
    int64_t maximum_pages = 0;  // of max_tokens of each
    double credit = 0;          // for admissions: pages x steps
    bool in_flight = false;
  };

  struct Place {
    int32_t block;
    int32_t micro_batch;
  };

  // The room that a step leaves for the prefill chunks of a micro-batch.
  class ChunkRoom {
   public:
    ChunkRoom(int32_t tokens, bool packing)
        : tokens_(tokens), packing_(packing) {}
    // Returns how much of `rest` tokens fits as the next chunk.
    int32_t Fit(int32_t rest) const;
    void Take(int32_t chunk);

   private:
    int32_t tokens_;
    bool packing_;
    int32_t chunks_ = 0;
    int32_t longest_ = 0;
  };

  explicit StepScheduler(const Options& options);

  int64_t PagesFor(int32_t max_tokens) const;
  int64_t Claim(const Block& block) const;
  // Whether a sequence has got to its maximum and was not finished.
  static bool AwaitsFinish(const Block& block);
  // Sets planned_tokens of the sequences; returns the room left.
  ChunkRoom PlanTokens(std::vector<Running>& micro_batch) const;
  static std::vector<Segment> Segments(const std::vector<Running>& micro_batch);
  void Admit(int32_t block_index, std::vector<ChunkRoom>& left,
             std::vector<SequenceId>& admitted);
  // Returns what the sequence may use if it is admitted now, `planned` of its
  // tokens in the present step, behind those of the micro-batch.
  UsageProfile::Use UseOf(const Waiting& sequence,
                          const std::vector<Running>& micro_batch,
                          int32_t planned, int64_t now) const;
  bool MayClaim(const Block& block, int64_t pages) const;
  // Returns the positions that the sequence is expected to come to.
  int32_t ExpectedEnd(const Waiting& sequence) const;
  // Whether pacing pays, with sequences like this one.
  bool Paces(const Waiting& sequence, int64_t block_limit) const;
  void LearnFrom(const Running& ended);
  void Release(Block& block, const Running& sequence);
  bool AnyInFlight() const;

  Options options_;
  std::vector<Block> blocks_;
  std::list<Waiting> waiting_;
  absl::flat_hash_map<SequenceId, std::list<Waiting>::iterator> waiting_index_;
  absl::flat_hash_map<SequenceId, Place> running_;
  std::vector<SequenceId> pending_release_;
  int64_t admissions_ = 0;
  // The decode steps that ended sequences ran, and that max_tokens allowed,
  // newer sequences weighing more.
  double steps_run_ = 0;
  double steps_allowed_ = 0;
};

}  // namespace sluice
