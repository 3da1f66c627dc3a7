#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/step_plan.h"
#include "common/types.h"
#include "runtime/kv/kv_groups.h"
#include "runtime/kv/kv_layout.h"
#include "scheduler/steps/chunk_room.h"
#include "scheduler/steps/prefix_tree.h"
#include "scheduler/steps/usage_profile.h"
#include "scheduler/steps/waiting_queue.h"

namespace sluice {

// Decides which sequences run and what each step of each block computes. Knows
// token counts only, and the tokens with which sequences begin alike.
//
// The caller loops: FormNext() until there is nothing more to do now, run the
// steps, OnStepDone(b) for each in the order in which those of a block were
// formed, Finish() those sequences that ended, FormNext() again. What one block
// frees may be what another one waits for, so there may be more to do after
// every OnStepDone, Finish and Enqueue.
//
// Rules:
// * A step is mixed: in each micro-batch first one token for every sequence
//   that decodes, then prefill chunks in order of admission, up to
//   max_step_tokens. Since max_step_tokens >= gbs, decoding is never held up
//   by prefill, and every micro-batch with a sequence in prefill advances it.
// * A block has one such step in flight at a time. If these are too few to
//   keep the pipeline full, slices fill it: steps that hold prefill chunks only
//   and follow the ones in flight without waiting for them, since a chunk needs
//   no sampled token, only that the ones before it are computed first
//   (TeraPipe: "Token-Level Pipeline Parallelism", section 2.3.2). A sequence
//   whose first token is on its way sits out until it is back.
// * With `slice_context`, a chunk at a greater context, whose rows attend to
//   more, is shorter, so that all take about as long.
// * Waiting sequences are admitted strictly in their order (no overtaking but
//   for what waits for a prefix, so none starves), each to the micro-batch with
//   the fewest sequences, where it stays until it ends. At most gbs in a
//   micro-batch. Their order is WaitingQueue's: that of Enqueue, or the longest
//   first, but with `share_prefixes` those that begin alike go together.
// * With Order::kLongest, where the next one lacks room, the last ones, the
//   shortest, are admitted as long as their pages lie below what their block
//   claims anyway: long ones that began together leave such room until they are
//   at their ends. So these are not paced, unless all that wait are alike.
// * With `share_prefixes`, a sequence begins with what is kept of its tokens,
//   see below.
// * With `refill`, a sequence is admitted when the step has tokens left for
//   it, so that each admission comes with the sequence's first chunk. Without,
//   a block admits only when it is empty, and then all that it may hold.
// * A running sequence never lacks a page. What a block claims is, with
//   Reserve::kProfile, the most pages that its sequences hold in any coming
//   step of the block, if all run on to max_positions; with kMaximum, the sum
//   of what each needs for max_positions. A sequence is admitted only if the
//   claims of all blocks together stay within kv_pages. (The proof is below.)
// * With kProfile and `refill`, admissions are paced at first, see below.
// * Layers with a window may have pages of their own (Options::kv_window).
//   These are claimed likewise, and those claims stay within that room, too.
// * What a step admits has no more entries of logit_bias together than a plan
//   has room for: who is next in line then comes with the next step.
// * Blocks are balanced: one takes no more than
//   ceil((running + waiting) / num_blocks) sequences, nor claims more than its
//   even share of the pages unless no other block has fewer sequences; and a
//   micro-batch no more than its even share of the block's.
//
// Why pages suffice, with kProfile. A block's time counts its steps that are no
// slices. In each of them every sequence that decodes moves on by exactly one
// position, for nothing holds up decoding, and in slices none does; so how the
// pages of all of these develop together is known, and an early end only makes
// it less. Prefill depends on the tokens that others leave, and on slices:
// between the earliest and the latest step in which it may be complete, the
// sequence is counted with the positions of the earliest and the end of the
// latest. Earliest: max_step_tokens in the step and in each slice behind it, of
// which there are fewer than steps_in_flight, for none comes back before the
// step does. Latest: no slices, and the tokens of a step less one for each
// sequence ahead; and one step more if the last chunk is in a slice, which
// comes back behind the step before it and before the one after it, so that
// exactly that one may be formed without the sequence. So a block's claim
// bounds what it holds at any time of its own, and never grows but by an
// admission. Blocks advance at unlike speeds, and one may wait while another
// runs many steps: whatever the order, together they hold no more than the sum
// of their claims. Ends are counted when they are sure: a sequence at
// max_positions holds its pages until Finish, and its block waits for that.
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
// sequences get on their way to max_positions is learned from those that ended.
//
// Prefixes (PrefixTree). What running sequences compute is kept for those that
// wait and begin alike, from the first plan behind the one that computes it:
// stages carry out plans in order, so it is there when it is used. Kept pages
// are claimed beside the blocks, once, whoever shares them; a sequence claims
// its other pages. A sequence that is the first with a beginning that others
// wait for has these pages reserved as kept ones from its admission on, since
// it could end before those that share them, for which its own claim would not
// do. What becomes wanted later is kept if there is room. A sequence whose next
// pages are being computed waits for them, if all that wait save a step's
// tokens together, and is overtaken until they are there. Where an admission
// lacks room, kept pages go that nobody shares: those that nobody waits for,
// and if nothing runs, all others. So whatever is kept, what Fits is admitted.
// When nothing is left, all go.
//
// A decision costs O(sequences of the block + admissions), and with kProfile
// O(greatest max_positions) for each admission or attempt. Deterministic.
// Thread-compatible.
class StepScheduler {
 public:
  // The number that the page check of an admission goes by.
  enum class Reserve {
    kMaximum,  // each sequence's pages for max_positions
    kProfile,  // the future of all: for stages that take pages by need
  };

  struct Options {
    int32_t num_blocks = 1;          // in flight at once
    int32_t gbs = 64;                // most sequences in a micro-batch
    int32_t num_microbatches = 1;    // of a block
    int32_t max_step_tokens = 2048;  // of one micro-batch in one step
    // The number of steps in flight with which the pipeline is full: one for
    // each stage, and one more for what is on its way back. Slices are formed
    // while there are fewer, but none if all but one of these are steps, since
    // each costs a sweep over the weights that they would share. Up to 1: there
    // are no slices.
    int32_t steps_in_flight = 0;
    // The context at which attention makes a row cost twice as much as at none:
    // what a micro-batch prefills in a step costs no more than max_step_tokens
    // rows without context, its decoding rows counting as such. But one row is
    // always possible. 0: contexts don't count.
    int32_t slice_context = 0;
    int64_t kv_pages = 0;               // shared by all sequences
    int32_t page_tokens = kPageTokens;  // positions in a page
    WindowRoom kv_window;               // beside them
    bool refill = true;  // admit into blocks whose sequences still run
    Reserve reserve = Reserve::kProfile;
    // If false, each prefill chunk of a micro-batch counts as much as the
    // longest, as if padded to it. Not with Reserve::kProfile.
    bool packing = true;
    // Whether sequences share the pages of what they begin with. Not without
    // refill, nor with windows' pages: other values count as false.
    bool share_prefixes = false;
    Order order = Order::kArrival;
    // The room of one plan: entries of logit_bias, of the sequences that it
    // admits together; releases; and kept prefixes.
    int64_t max_logit_biases = 1 << 20;
    int64_t max_releases = 1 << 20;
    int64_t max_keeps = 1 << 18;

    // kInvalidArgument unless all sizes are positive, those of slices in range,
    // a window's room that of a sequence at least,
    // max_step_tokens >= gbs, and packing is on with Reserve::kProfile and with
    // slice_context.
    absl::Status Validate() const;
  };

  // The content of a step, in StepPlan's terms: first `keep`, then `release`,
  // then `admit`, then the computation. Micro-batches without segments are left
  // out.
  struct StepDecision {
    std::vector<KeptPrefix> keep;
    std::vector<SequenceId> release;
    std::vector<SequenceId> admit;
    std::vector<SharedPrefix> prefixes;  // of those admitted, parallel
    std::vector<std::vector<Segment>> micro_batches;
  };

  // Fails as options.Validate() does.
  static absl::StatusOr<StepScheduler> Create(const Options& options);

  // Puts a sequence into the waiting queue, where it may overtake others.
  // `known_tokens` are to be prefilled (the prompt, on replay also what was
  // generated). No position beyond `max_positions` is ever planned: a sequence
  // that has got there waits for its Finish, and its block with it.
  // `logit_biases` counts the entries of its logit_bias. It may share the whole
  // pages of `shared_tokens`, which are its first ones. `turn` counts with
  // Order::kLongest.
  // REQUIRES: `id` is not below 0, and neither waits nor runs nor awaits its
  // release; shared_tokens.size() < known_tokens;
  // 1 <= known_tokens <= max_positions; Fits(max_positions).
  void Enqueue(SequenceId id, int32_t known_tokens, int32_t max_positions,
               int64_t logit_biases = 0,
               std::span<const int32_t> shared_tokens = {},
               const Turn& turn = {});

  // Keeps what running sequences have computed of the whole pages of `tokens`,
  // as if `id`, which is no sequence's, waited for it. Until Unwant(id), which
  // has no effect on an unknown id.
  void Want(SequenceId id, std::span<const int32_t> tokens);
  void Unwant(SequenceId id) { prefixes_.Remove(id); }

  // Whether a sequence with so many positions could ever be admitted.
  bool Fits(int32_t max_positions) const;

  int64_t waiting() const { return waiting_.size(); }
  // Returns up to `max` waiting sequences, the last ones, in their order.
  std::vector<SequenceId> LastWaiting(int64_t max) const {
    return waiting_.Last(max);
  }
  // Returns the number of sequences admitted and not finished.
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  // Returns the pages that all blocks claim: for the sequences that run, and
  // for finished ones whose last step is still in flight.
  int64_t pages_reserved() const;
  // Returns the pages of kept prefixes, which are claimed beside these.
  int64_t prefix_pages() const { return prefixes_.pages(); }
  // Returns how many of the tokens sequences here begin with, in whole pages.
  int64_t KnownTokens(std::span<const int32_t> tokens) const {
    return prefixes_.Known(tokens);
  }
  // Likewise, of the window's pages.
  int64_t window_pages_reserved() const;

  struct NextStep {
    BlockId block;
    StepDecision decision;
    bool slice = false;
  };
  // The step to be sent next, of any block: FormStep of the first one that has
  // one, or FormSlice of the one with the fewest steps in flight. nullopt if
  // there is nothing to do now. So all callers send the same steps.
  std::optional<NextStep> FormNext();

  // The next step of `block`, which is then in flight until its OnStepDone.
  // nullopt if there is nothing to do for it now, or if it is in flight.
  //
  // Pending releases ride on the next step of any block. Only when no sequence
  // is left to run and no step is in flight, or when they are too many for one
  // plan, is there a step of its own for them, without micro-batches; it needs
  // its OnStepDone like any other.
  std::optional<StepDecision> FormStep(BlockId block);

  // The next slice of `block`, in flight until its OnStepDone. nullopt if the
  // pipeline is full, nothing of the block is in flight, or it has nothing to
  // prefill now. REQUIRES: FormStep(block) would return nullopt.
  std::optional<StepDecision> FormSlice(BlockId block);

  // The step or slice of `block` that was formed first came back: its sequences
  // stand behind their segments, and one whose segment had `sample` knows one
  // more token, to be fed in the next step unless Finish is called. No effect
  // if nothing is in flight.
  void OnStepDone(BlockId block);

  // The sequence ended. If it runs, its slot and pages are free from now on
  // and its id is in `release` of the next step formed. If steps in flight name
  // it (a cancellation), that happens at the OnStepDone of the last of these,
  // so that no plan in flight names a released sequence. If it waits, it is
  // forgotten. No effect on an unknown id.
  void Finish(SequenceId id);

  // Forgets everything, steps in flight and pending releases included, for a
  // new plan epoch. Returns the sequences that were not finished: those that
  // ran in order of admission, then those that waited in their order.
  std::vector<SequenceId> Clear();

 private:
  using Waiting = WaitingSequence;

  struct Running {
    SequenceId id;
    int32_t known_tokens = 0;
    int32_t max_positions = 0;
    int64_t admission = 0;      // ordinal
    int32_t cached_tokens = 0;  // behind it, of steps that came back
    int32_t flight_tokens = 0;  // in all steps in flight
    int32_t step_tokens = 0;    // of these, in the step that is no slice
    int32_t new_tokens = 0;     // in the step being formed
    bool decoding = false;      // a token was sampled
    bool finished = false;      // while steps in flight named it
    UsageProfile::Use use;      // with kMaximum only what is shared

    // Known tokens in no step yet.
    int32_t rest() const {
      return known_tokens - cached_tokens - flight_tokens - new_tokens;
    }
  };

  struct SliceSegment {
    int32_t micro_batch;
    SequenceId sequence;
    int32_t tokens;
  };
  // A step or slice in flight.
  struct Flight {
    bool slice = false;
    std::vector<SliceSegment> segments;  // of a slice
  };

  struct Block {
    std::vector<std::vector<Running>> micro_batches;  // in order of admission
    UsageProfile profile, window_profile;
    int64_t sequences = 0;
    // Of max_positions of each.
    int64_t maximum_pages = 0, maximum_window_pages = 0;
    double credit = 0;  // for admissions: pages x steps
    std::deque<Flight> flights;
    bool step_in_flight = false;  // one that is no slice
    bool may_slice = true;        // it would not be behind a mere release
    bool prefills = false;        // some prompt may not be all in steps yet
  };

  struct Place {
    int32_t block;
    int32_t micro_batch;
  };

  // The room of a step without packing: all chunks count as much as the
  // longest.
  class PaddedRoom {
   public:
    explicit PaddedRoom(int32_t tokens) : tokens_(tokens) {}
    int32_t Fit(int32_t rest) const;
    int32_t Take(int32_t rest);

   private:
    int32_t tokens_;
    int32_t chunks_ = 0;
    int32_t longest_ = 0;
  };
  // One or the other, as options.packing says.
  class Room {
   public:
    Room(const Options& options, int32_t decoding)
        : packing_(options.packing),
          packed_(options.max_step_tokens, options.slice_context, decoding),
          padded_(options.max_step_tokens - decoding) {}
    int32_t Fit(int32_t context, int32_t rest) const {
      return packing_ ? packed_.Fit(context, rest) : padded_.Fit(rest);
    }
    int32_t Take(int32_t context, int32_t rest) {
      return packing_ ? packed_.Take(context, rest) : padded_.Take(rest);
    }

   private:
    bool packing_;
    ChunkRoom packed_;
    PaddedRoom padded_;
  };

  explicit StepScheduler(const Options& options);

  int64_t PagesFor(int32_t max_positions) const;
  int64_t WindowPagesFor(int32_t max_positions) const {
    return options_.kv_window.Claim(PagesFor(max_positions));
  }
  int64_t Claim(const Block& block) const;
  int64_t WindowClaim(const Block& block) const;
  // Whether a sequence has got to its maximum and was not finished.
  static bool AwaitsFinish(const Block& block);
  // Sets new_tokens of the sequences; returns the room left.
  // Whether no sequence is left to run, and no step in flight.
  bool IsIdle() const { return running_.empty() && in_flight_ == 0; }
  Room PlanTokens(std::vector<Running>& micro_batch, bool slice) const;
  bool PipelineIsFull() const;
  static bool AnyPlanned(const Block& block);
  // Puts the new_tokens of the block's sequences, and of those admitted to the
  // room that is left, in flight. `slice` gets the segments of a slice; null
  // for a step.
  StepDecision Compose(int32_t block_index, std::vector<Room> left,
                       std::vector<SliceSegment>* slice);
  static std::vector<Segment> Segments(const std::vector<Running>& micro_batch);
  // The tokens that a step prefills at least, of prompts of up to `known`
  // tokens, with `ahead` other sequences in its micro-batch.
  int64_t LeastPrefill(int64_t known, int64_t ahead) const;
  void OnComputed(Block& block, Running& sequence, int32_t tokens);
  // Releases those that no step in flight names any more.
  void DropFinished(Block& block, std::vector<Running>& micro_batch);
  void Admit(int32_t block_index, std::vector<Room>& left,
             StepDecision* decision);
  // What the admissions of one step share.
  struct Admissions {
    int32_t block;
    int64_t block_limit, micro_batch_limit;  // sequences
    int64_t biases_left;
    std::vector<Room>& left;
    StepDecision& decision;
  };
  // Admits a sequence that waits, if it is its turn and there is room.
  bool AdmitOne(const Waiting& head, bool fills, Admissions* admissions);
  // Whether the sequence should wait for what another one computes.
  bool WaitsForPrefix(const PrefixTree::Match& match) const {
    return match.coming_tokens >= options_.max_step_tokens;
  }
  // Claims the pages of a sequence that is to be admitted, after kept ones were
  // given up where need be; returns false if there is no room, or it is not its
  // turn. Sets `use`. If it only `fills`, the block may claim no more for it.
  bool ClaimFor(const Waiting& sequence, const PrefixTree::Match& match,
                int64_t block_limit, const std::vector<Running>& micro_batch,
                int32_t planned, bool fills, Block* block,
                UsageProfile::Use* use);
  // Returns what the sequence may use if it is admitted now, `shared` of its
  // pages there, and `planned` of its tokens in the present step, behind those
  // of the micro-batch.
  UsageProfile::Use UseOf(const Waiting& sequence,
                          const PrefixTree::Match& match,
                          const std::vector<Running>& micro_batch,
                          int32_t planned, int64_t now) const;
  // Whether the block may claim so many pages, and prefixes so many more.
  bool HasRoom(const Block& block, int64_t pages, int64_t window_pages,
               int64_t prefix_pages) const;
  // Whether that is no more than the block's share.
  bool IsShare(const Block& block, int64_t pages) const;
  // Keeps what running sequences have computed, of the candidates.
  void KeepPrefixes(const std::vector<PrefixTree::Candidate>& candidates);
  // Makes the sequence's next pages those of prefixes, if there is room.
  bool GiveToPrefixes(Block* block, Running* sequence, int32_t pages);
  // Returns the positions that the sequence is expected to come to.
  int32_t ExpectedEnd(const Waiting& sequence) const;
  // Whether pacing pays, with sequences like this one.
  bool Paces(const Waiting& sequence, int64_t block_limit,
             int32_t shared_pages) const;
  void LearnFrom(const Running& ended);
  // Puts what is kept and released since the last plan into this one.
  void TakeReleases(StepDecision* decision);
  void CollectReleases();
  void Release(Block& block, const Running& sequence);

  Options options_;
  std::vector<Block> blocks_;
  PrefixTree prefixes_;
  WaitingQueue waiting_;
  absl::flat_hash_map<SequenceId, Place> running_;
  std::vector<SequenceId> pending_release_;
  int64_t admissions_ = 0;
  int64_t in_flight_ = 0;         // steps and slices of all blocks
  int64_t slices_in_flight_ = 0;  // of these
  // The decode steps that ended sequences ran, and that max_positions allowed,
  // newer sequences weighing more.
  double steps_run_ = 0;
  double steps_allowed_ = 0;
};

}  // namespace sluice
