#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/step_plan.h"
#include "common/threads/clock.h"
#include "coordinator/dispatch/busy_time.h"
#include "coordinator/dispatch/sequence_state.h"
#include "coordinator/dispatch/trace_log.h"
#include "coordinator/planning/phase_rows.h"
#include "coordinator/request_queue.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "scheduler/steps/step_scheduler.h"

namespace sluice {

// Generates requests over consecutive plan epochs: keeps their tokens, forms
// the steps of all blocks and takes their sampled tokens. No threads, no I/O:
// the caller fetches plans and ended requests. Thread-compatible.
class BlockDriver {
 public:
  struct Options {
    const Tokenizer* tokenizer = nullptr;  // must outlive the driver
    int32_t vocab_size = 0;                // of the model
    int32_t hidden_size = 0;               // of the model
    std::vector<int32_t> eos_tokens;
    const Clock* clock = nullptr;
    // Of all drivers that compute beside this one; must outlive them. Null:
    // there are no others.
    BusyTime* busy_time = nullptr;
    // Gets the steps that come back, as those of this pipeline; must outlive
    // the driver. May be null.
    TraceLog* trace = nullptr;
    int32_t pipeline = 0;
  };

  // Observations since the last TakeStats.
  struct Stats {
    int64_t steps = 0;
    int64_t prompt_tokens = 0;  // in the KV cache for the first time
    // Of prompts of requests admitted for the first time, and of these computed
    // by another request.
    int64_t admitted_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t tokens = 0;  // sampled
    int64_t replays = 0;
    std::vector<double> step_seconds;  // from plan to result
    // Seconds of requests from the job's acceptance to their admission to a
    // block, and to their end.
    std::vector<double> queue_seconds;
    std::vector<double> latency_seconds;
  };

  // Wall time with a step in flight, its share of it while others have some
  // (see BusyTime). The time between two results is divided between prefill and
  // decode by the tokens of the step that ended.
  struct PhaseSeconds {
    double prefill = 0;
    double decode = 0;
  };

  explicit BlockDriver(Options options);

  // Takes charge of a request until it comes out of TakeFinished.
  void Add(Request request);
  // Ends all requests of the job with kCancelled.
  void Cancel(JobId job);

  // -- Requests that go from one driver to another; all must have the same
  // options and live equally long.

  // Gives up at most `max` of the requests that wait for an epoch, of those
  // that are `wanted`, in the order in which they are to go on.
  std::vector<SequenceState> Release(
      int64_t max, absl::FunctionRef<bool(const SequenceState&)> wanted);
  // Returns how many of the requests that wait for an epoch are `wanted`.
  int64_t CountPending(
      absl::FunctionRef<bool(const SequenceState&)> wanted) const;
  // Gives up at most `max` requests that are not admitted to a block, those
  // that would be last.
  std::vector<SequenceState> ReleaseWaiting(int64_t max);
  // Gives up the requests that were never admitted to a block.
  std::vector<Request> ReleaseNotBegun();
  // Gives up requests that this epoch's KV cache could never hold. Without
  // SetKeepsUnfit(true), they end with an error instead.
  std::vector<SequenceState> TakeUnfit();
  void SetKeepsUnfit(bool keeps) { keeps_unfit_ = keeps; }
  // Whether this epoch's KV cache can hold the request. REQUIRES: epoch().
  bool Fits(const SequenceState& sequence) const {
    return scheduler_->Fits(sequence.most_positions());
  }
  // Returns how many tokens of the prompt requests here begin with, which it
  // can share.
  int64_t KnownTokens(const Request& request) const {
    return scheduler_ && !request.pools() && !request.scores_prompt()
               ? scheduler_->KnownTokens(request.prompt)
               : 0;
  }
  // Takes charge of a request that another driver gave up.
  void Adopt(SequenceState sequence);

  // Requests in charge go on in this epoch: those that had begun first, from
  // the tokens known so far. Ends any epoch before.
  absl::Status StartEpoch(PlanEpoch epoch,
                          const StepScheduler::Options& options);
  // Ends the epoch; steps in flight are forgotten.
  void StopEpoch();

  // Takes in the result of a step, or a part of it. kFailedPrecondition for
  // another epoch's (nothing happens); kInternal for one that answers no step
  // in flight or does not match it: the sender is broken, the epoch must end.
  absl::Status OnResult(StepResult result);

  // Returns plans for all that can be computed now, to be sent in this order;
  // they are in flight from now on.
  std::vector<StepPlan> TakePlans();

  std::vector<FinishedRequest> TakeFinished();
  // Adds the tokens of requests here since the last call, to be stored.
  void TakeNewTokens(std::vector<NewTokens>* tokens);
  Stats TakeStats();
  // Returns the progress of jobs since the last call.
  absl::flat_hash_map<JobId, JobProgress> TakeProgress();

  // The number of requests here, and of those admitted to a block.
  int64_t live() const { return static_cast<int64_t>(sequences_.size()); }
  // The requests here and the tokens of their prompts, where a beam search has
  // as many as it may come to.
  struct Load {
    int64_t requests = 0;
    int64_t prompt_tokens = 0;
  };
  Load ExpectedLoad() const;
  int64_t running() const { return scheduler_ ? scheduler_->running() : 0; }
  int64_t waiting() const { return live() - running(); }
  int64_t blocks_in_flight() const;
  // The step in flight that was sent first. Steps are numbered in the order in
  // which they are sent.
  std::optional<int64_t> oldest_step() const;
  PhaseSeconds phase_seconds() const { return phase_seconds_; }
  // Wall time with a step in flight, whatever others do.
  double busy_seconds() const { return busy_seconds_; }
  // Rows of all steps that came back: tokens prefilled and decoded.
  PhaseRows rows() const { return rows_; }
  // Rows of steps in flight.
  int64_t rows_in_flight() const;
  // Returns the positions of requests here that were computed: what goes with
  // an epoch, and is computed again in the next one.
  int64_t held_rows() const;
  // The share of their max_tokens that ended requests generated; 1 as long as
  // too few have ended.
  double output_share() const { return lengths_.share(); }
  std::optional<PlanEpoch> epoch() const { return epoch_; }

 private:
  // A step in flight.
  struct Flight {
    int64_t step = 0;
    std::vector<SequenceId> sampled;   // sequences with a token in the result
    std::vector<SampledToken> tokens;  // tokens that arrived so far
    std::vector<SequenceId> pooling;   // sequences with a vector in the result
    std::vector<PooledVector> pooled;  // vectors that arrived so far
    // Sequences with scores in the result, and their end positions.
    std::vector<std::pair<SequenceId, int32_t>> scored;
    // Sequences whose prompts it computes, and their end positions.
    std::vector<std::pair<SequenceId, int32_t>> prefilled;
    absl::Duration sent_at;
    int64_t prefill_tokens = 0;
    int64_t decode_tokens = 0;
  };

  // What ended answers of a job generated, of what they were allowed.
  struct Lengths {
    int64_t ended = 0;
    int64_t generated = 0;
    int64_t allowed = 0;
    double share() const;
  };

  absl::Status CheckTokens(const Request& request) const;
  SequenceState& Insert(SequenceId id, SequenceState sequence);
  Turn TurnOf(const SequenceState& sequence) const;
  // Learns from an answer that ended.
  void LearnFrom(const FinishedRequest& finished);
  void Enqueue(SequenceId id);
  SequenceState Extract(SequenceId id);
  void CountPrompt(SequenceState* sequence, int32_t end);
  double SecondsSince(absl::Time accepted, absl::Duration taken_at) const;
  double SecondsSinceAccepted(const SequenceState& sequence) const {
    return SecondsSince(sequence.request().accepted, sequence.taken_at());
  }
  void Trace(BlockId block, const Flight& flight, absl::Duration now) const;
  void CountPhases(const Flight& flight, absl::Duration now);
  BusyTime& busy_time() {
    return options_.busy_time != nullptr ? *options_.busy_time : own_time_;
  }
  // Ends a sequence, whose state has the result.
  void Finish(SequenceId id);
  void AddBeams(Request request);
  void AddBeam(const std::shared_ptr<BeamGroup>& group, int32_t beam);
  void FinishBeam(SequenceId id);
  static void ReleaseKept(BeamGroup* group);
  void EndBeams(BeamGroup& group, absl::Status status);
  StepPlan ToPlan(BlockId block, StepScheduler::StepDecision decision);
  absl::Status Check(const StepResult& result) const;
  bool HasLikeliest(const SampledToken& token) const;
  absl::Status CheckPooled(const StepResult& result) const;
  // Checks and takes in the result's scores; sequences that end with them are
  // finished.
  absl::Status AddScores(const StepResult& result);
  static void SetScores(const SequenceState& sequence, Segment* segment);

  const Options options_;
  const absl::flat_hash_set<int32_t> eos_tokens_;
  std::optional<PlanEpoch> epoch_;
  std::optional<StepScheduler> scheduler_;  // while there is an epoch
  // Of each block, in the order in which they were sent and come back.
  std::vector<std::deque<Flight>> flights_;
  absl::flat_hash_map<SequenceId, SequenceState> sequences_;
  std::vector<SequenceId> pending_;  // to be enqueued in the next epoch
  bool keeps_unfit_ = false;
  std::vector<SequenceId> unfit_;
  std::vector<FinishedRequest> finished_;
  Stats stats_;
  absl::flat_hash_map<JobId, JobProgress> jobs_;
  PhaseSeconds phase_seconds_;
  double busy_seconds_ = 0;
  BusyTime own_time_;
  PhaseRows rows_;
  Lengths lengths_;  // of all
  absl::flat_hash_map<JobId, Lengths> job_lengths_;
  // While a step is in flight: until when its time is counted, and that time
  // by busy_time().
  absl::Duration counted_until_;
  double counted_seconds_ = 0;
  int64_t next_sequence_ = 1;
  int64_t next_step_ = 1;
};

}  // namespace sluice
