#include "coordinator/dispatch/block_driver.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "common/status_macros.h"

namespace sluice {

BlockDriver::BlockDriver(Options options)
    : options_(std::move(options)),
      eos_tokens_(options_.eos_tokens.begin(), options_.eos_tokens.end()) {}

void BlockDriver::Add(Request request) {
  if (request.beams) {
    AddBeams(std::move(request));
    return;
  }
  const SequenceId id(next_sequence_++);
  SequenceState& sequence = Insert(
      id, SequenceState(std::move(request), &eos_tokens_, options_.tokenizer,
                        options_.clock->Monotonic()));
  const Request& r = sequence.request();
  if (absl::Status status = CheckTokens(r); !status.ok()) {
    sequence.Fail(std::move(status));
    Finish(id);
  } else if (sequence.needs_nothing()) {
    sequence.EndNow();
    Finish(id);
  } else if (scheduler_) {
    Enqueue(id);
  } else {
    pending_.push_back(id);
  }
}

SequenceState& BlockDriver::Insert(SequenceId id, SequenceState sequence) {
  return sequences_.try_emplace(id, std::move(sequence)).first->second;
}

// Tokens that no worker can compute must not reach one: they would fail again
// and again, together with all other requests.
BlockDriver::Load BlockDriver::ExpectedLoad() const {
  Load load;
  for (const auto& [id, sequence] : sequences_) {
    const int64_t count = sequence.beams == nullptr ? 1
                          : sequence.beam == 0
                              ? sequence.beams->request.candidates
                              : 0;
    load.requests += count;
    load.prompt_tokens += count * std::ssize(sequence.request().prompt);
  }
  return load;
}

absl::Status BlockDriver::CheckTokens(const Request& request) const {
  if (request.prompt.empty()) {
    return absl::InvalidArgumentError("the prompt has no tokens");
  }
  for (int32_t token : request.prompt) {
    if (token < 0 || token >= options_.vocab_size) {
      return InvalidArgument("the prompt has the token ", token,
                             ", but the model's vocabulary has ",
                             options_.vocab_size, " tokens");
    }
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    if (token < 0 || token >= options_.vocab_size) {
      return InvalidArgument("logit_bias names the token ", token,
                             ", but the model's vocabulary has ",
                             options_.vocab_size, " tokens");
    }
  }
  return absl::OkStatus();
}

void BlockDriver::Enqueue(SequenceId id) {
  SequenceState& sequence = sequences_.at(id);
  if (!Fits(sequence) && keeps_unfit_) {
    unfit_.push_back(id);
    return;
  }
  if (!Fits(sequence)) {
    sequence.Fail(ResourceExhausted(
        "the request needs room for ", sequence.most_positions(),
        " tokens (prompt ", sequence.whole().prompt.size(), ", max_tokens ",
        sequence.whole().max_tokens,
        "), more than the workers' KV cache holds; give the workers more "
        "memory, add workers, or ask for fewer tokens"));
    Finish(id);
    return;
  }
  scheduler_->Enqueue(
      id, sequence.known_tokens(), sequence.max_positions(),
      static_cast<int64_t>(sequence.request().sampling.logit_bias.size()),
      sequence.SharedTokens(), TurnOf(sequence));
}

// Those that had begun go first, in their order.
Turn BlockDriver::TurnOf(const SequenceState& sequence) const {
  const Request& request = sequence.request();
  const int64_t left =
      sequence.most_positions() - std::ssize(sequence.tokens());
  if (sequence.was_admitted || left < sequence.whole().max_tokens) {
    return {.rank = Turn::kBegun};
  }
  const auto learned = job_lengths_.find(request.job);
  const double share =
      learned == job_lengths_.end() ? 1 : learned->second.share();
  return {.rank = request.priority,
          .expected = static_cast<int64_t>(share * static_cast<double>(left)),
          .prefill = sequence.known_tokens()};
}

void BlockDriver::Finish(SequenceId id) {
  const auto it = sequences_.find(id);
  SequenceState& sequence = it->second;
  if (sequence.beams != nullptr) {
    FinishBeam(id);
    return;
  }
  if (scheduler_) scheduler_->Finish(id);
  if (sequence.admitted) --jobs_[sequence.request().job].running;
  stats_.latency_seconds.push_back(SecondsSinceAccepted(sequence));
  finished_.push_back(sequence.TakeFinished());
  const Generation& generation = finished_.back().generation;
  const auto prompt =
      static_cast<int64_t>(finished_.back().request.prompt.size());
  // An answer counts its whole prompt, even though the last token of a prompt
  // that is only scored was not computed; an error counts nothing of it.
  if (finished_.back().request.counts_prompt()) {
    jobs_[finished_.back().request.job].prompt_tokens +=
        (generation.status.ok() ? prompt : 0) - sequence.prefilled;
    if (generation.status.ok()) {
      stats_.prompt_tokens += prompt - sequence.prefilled;
    }
  }
  LearnFrom(finished_.back());
  sequences_.erase(it);
}

void BlockDriver::LearnFrom(const FinishedRequest& finished) {
  if (!finished.generation.status.ok()) return;
  // More jobs than that are forgotten, and learned anew.
  constexpr size_t kMaxJobs = 256;
  if (job_lengths_.size() >= kMaxJobs &&
      !job_lengths_.contains(finished.request.job)) {
    job_lengths_.clear();
  }
  for (Lengths* lengths : {&lengths_, &job_lengths_[finished.request.job]}) {
    ++lengths->ended;
    lengths->generated += finished.generation.generated;
    lengths->allowed += finished.request.max_tokens;
  }
}

double BlockDriver::Lengths::share() const {
  constexpr int64_t kEnough = 32;
  if (ended < kEnough || allowed == 0) return 1;
  return static_cast<double>(generated) / static_cast<double>(allowed);
}

int64_t BlockDriver::rows_in_flight() const {
  int64_t rows = 0;
  for (const std::deque<Flight>& of_block : flights_) {
    for (const Flight& flight : of_block) {
      rows += flight.prefill_tokens + flight.decode_tokens;
    }
  }
  return rows;
}

int64_t BlockDriver::held_rows() const {
  int64_t rows = 0;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence.admitted) continue;
    const int64_t prompt = std::ssize(sequence.request().prompt);
    const int64_t made = std::ssize(sequence.tokens()) - prompt;
    // The last token is still to be computed.
    rows += sequence.prefilled + std::max<int64_t>(0, made - 1);
  }
  return rows;
}

void BlockDriver::Cancel(JobId job) {
  std::vector<SequenceId> ids;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.request().job == job) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (SequenceId id : ids) {
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) continue;  // its request's other beams ended it
    it->second.Fail(absl::CancelledError("the job was cancelled"));
    Finish(id);
  }
}

// -- From one driver to another.

SequenceState BlockDriver::Extract(SequenceId id) {
  const auto it = sequences_.find(id);
  if (scheduler_) scheduler_->Finish(id);
  SequenceState sequence = std::move(it->second);
  sequences_.erase(it);
  return sequence;
}

std::vector<SequenceState> BlockDriver::Release(
    int64_t max, absl::FunctionRef<bool(const SequenceState&)> wanted) {
  std::vector<SequenceState> released;
  std::vector<SequenceId> kept;
  for (const SequenceId id : pending_) {
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) continue;  // it has ended
    if (static_cast<int64_t>(released.size()) < max && wanted(it->second)) {
      released.push_back(Extract(id));
    } else {
      kept.push_back(id);
    }
  }
  pending_ = std::move(kept);
  return released;
}

int64_t BlockDriver::CountPending(
    absl::FunctionRef<bool(const SequenceState&)> wanted) const {
  return std::count_if(pending_.begin(), pending_.end(), [&](SequenceId id) {
    const auto it = sequences_.find(id);
    return it != sequences_.end() && wanted(it->second);
  });
}

std::vector<SequenceState> BlockDriver::ReleaseWaiting(int64_t max) {
  std::vector<SequenceState> released;
  if (!scheduler_) return released;
  for (const SequenceId id : scheduler_->LastWaiting(max)) {
    // Beams stay where the ones before were.
    if (sequences_.at(id).begins()) released.push_back(Extract(id));
  }
  return released;
}

std::vector<Request> BlockDriver::ReleaseNotBegun() {
  std::vector<SequenceState> waiting =
      scheduler_ ? ReleaseWaiting(this->waiting())
                 : Release(live(), [](const SequenceState&) { return true; });
  std::vector<Request> released;
  for (SequenceState& sequence : waiting) {
    if (sequence.was_admitted) {
      Adopt(std::move(sequence));
    } else {
      released.push_back(sequence.TakeRequest());
    }
  }
  return released;
}

std::vector<SequenceState> BlockDriver::TakeUnfit() {
  std::vector<SequenceState> taken;
  for (const SequenceId id : std::exchange(unfit_, {})) {
    if (sequences_.contains(id)) taken.push_back(Extract(id));
  }
  return taken;
}

void BlockDriver::Adopt(SequenceState sequence) {
  const SequenceId id(next_sequence_++);
  Insert(id, std::move(sequence));
  if (scheduler_) {
    Enqueue(id);
  } else {
    pending_.push_back(id);
  }
}

absl::Status BlockDriver::StartEpoch(PlanEpoch epoch,
                                     const StepScheduler::Options& options) {
  StopEpoch();
  absl::StatusOr<StepScheduler> scheduler = StepScheduler::Create(options);
  if (!scheduler.ok()) return scheduler.status();
  scheduler_.emplace(*std::move(scheduler));
  epoch_ = epoch;
  flights_.assign(options.num_blocks, {});
  for (SequenceId id : std::exchange(pending_, {})) {
    if (sequences_.contains(id)) Enqueue(id);
  }
  return absl::OkStatus();
}

void BlockDriver::StopEpoch() {
  if (!epoch_) return;
  if (blocks_in_flight() > 0) busy_time().End(options_.clock->Monotonic());
  std::vector<SequenceId> order = scheduler_->Clear();
  for (SequenceId id : order) {
    SequenceState& sequence = sequences_.at(id);
    if (!sequence.admitted) continue;
    sequence.admitted = false;
    JobProgress& job = jobs_[sequence.request().job];
    if (sequence.beam == 0) --job.running;
    ++job.replays;
    ++stats_.replays;
  }
  pending_.insert(pending_.begin(), order.begin(), order.end());
  pending_.insert(pending_.end(), unfit_.begin(), unfit_.end());
  unfit_.clear();
  scheduler_.reset();
  epoch_.reset();
  flights_.clear();
}

absl::Status BlockDriver::Check(const StepResult& result) const {
  const int32_t b = result.block.value();
  if (b < 0 || b >= static_cast<int32_t>(flights_.size()) ||
      flights_[b].empty() || flights_[b].front().step != result.step) {
    return Internal("a result for step ", result.step, " of block ", b,
                    ", which is not in flight or not the block's next");
  }
  const Flight& flight = flights_[b].front();
  const std::vector<SequenceId>& expected = flight.sampled;
  const size_t before = flight.tokens.size();
  const size_t left = expected.size() - before;
  bool matches = result.more
                     ? result.tokens.empty() || result.tokens.size() < left
                     : result.tokens.size() == left;
  for (size_t i = 0; matches && i < result.tokens.size(); ++i) {
    matches = result.tokens[i].sequence == expected[before + i] &&
              result.tokens[i].token >= -1 &&
              result.tokens[i].token < options_.vocab_size &&
              HasLikeliest(result.tokens[i]);
  }
  if (!matches) {
    return Internal("the result of step ", result.step, " of block ", b,
                    " does not hold a token for each of its ", expected.size(),
                    " sequences that sample");
  }
  return CheckPooled(result);
}

// Whether a token's likeliest ones are some that there are, and no more than
// were asked for: a beam search goes on with them.
bool BlockDriver::HasLikeliest(const SampledToken& token) const {
  const auto it = sequences_.find(token.sequence);
  if (it == sequences_.end()) return true;  // cancelled under way, or failed
  return std::ssize(token.top) <=
             std::max(0, it->second.request().sampling.logprobs) &&
         std::all_of(
             token.top.begin(), token.top.end(), [&](const TokenLogprob& top) {
               return top.token >= 0 && top.token < options_.vocab_size &&
                      !std::isnan(top.logprob);
             });
}

absl::Status BlockDriver::CheckPooled(const StepResult& result) const {
  const Flight& flight = flights_[result.block.value()].front();
  const size_t before = flight.pooled.size();
  const size_t left = flight.pooling.size() - before;
  bool matches =
      result.more ? result.pooled.size() <= left : result.pooled.size() == left;
  for (size_t i = 0; matches && i < result.pooled.size(); ++i) {
    matches = result.pooled[i].sequence == flight.pooling[before + i] &&
              std::ssize(result.pooled[i].values) == options_.hidden_size;
  }
  if (matches) return absl::OkStatus();
  return Internal("the result of step ", result.step, " of block ",
                  result.block.value(), " does not hold a vector of ",
                  options_.hidden_size, " for each of its ",
                  flight.pooling.size(), " sequences that are pooled");
}

absl::Status BlockDriver::AddScores(const StepResult& result) {
  const auto wrong = [&](SequenceId id, absl::string_view what) {
    return Internal("the scores of sequence ", id.value(), " in step ",
                    result.step, " of block ", result.block.value(), what);
  };
  const Flight& flight = flights_[result.block.value()].front();
  for (const TokenScores& scores : result.scores) {
    const auto expected = std::find_if(
        flight.scored.begin(), flight.scored.end(),
        [&](const auto& entry) { return entry.first == scores.sequence; });
    if (expected == flight.scored.end()) {
      return wrong(scores.sequence, " were not asked for");
    }
    const auto it = sequences_.find(scores.sequence);
    if (it == sequences_.end()) continue;  // cancelled under way, or failed
    const SequenceState& sequence = it->second;
    const auto size = static_cast<int64_t>(scores.logprobs.size());
    if (scores.begin != sequence.scored_until() || size == 0 ||
        scores.begin + size > expected->second ||
        scores.num_top != sequence.request().sampling.logprobs ||
        static_cast<int64_t>(scores.top.size()) != size * scores.num_top) {
      return wrong(scores.sequence, " do not fit what was asked for");
    }
    for (const TokenLogprob& top : scores.top) {
      if (top.token < -1 || top.token >= options_.vocab_size) {
        return wrong(scores.sequence, " name a token that does not exist");
      }
    }
    if (it->second.AddScores(scores)) Finish(scores.sequence);
  }
  if (result.more) return absl::OkStatus();
  for (const auto& [id, end] : flight.scored) {
    const auto it = sequences_.find(id);
    if (it != sequences_.end() && it->second.scored_until() < end) {
      return wrong(id, " are not complete");
    }
  }
  return absl::OkStatus();
}

absl::Status BlockDriver::OnResult(StepResult result) {
  if (!epoch_ || result.epoch != *epoch_) {
    return absl::FailedPreconditionError("a result of another epoch");
  }
  if (absl::Status status = Check(result); !status.ok()) return status;
  if (absl::Status status = AddScores(result); !status.ok()) return status;
  std::deque<Flight>& flights = flights_[result.block.value()];
  std::move(result.tokens.begin(), result.tokens.end(),
            std::back_inserter(flights.front().tokens));
  std::move(result.pooled.begin(), result.pooled.end(),
            std::back_inserter(flights.front().pooled));
  if (result.more) return absl::OkStatus();
  Flight flight = std::move(flights.front());
  flights.pop_front();
  ++stats_.steps;
  const absl::Duration now = options_.clock->Monotonic();
  stats_.step_seconds.push_back(absl::ToDoubleSeconds(now - flight.sent_at));
  Trace(result.block, flight, now);
  CountPhases(flight, now);
  scheduler_->OnStepDone(result.block);
  for (const auto& [id, end] : flight.prefilled) {
    const auto it = sequences_.find(id);
    if (it != sequences_.end()) CountPrompt(&it->second, end);
  }
  for (SampledToken& token : flight.tokens) {
    const SequenceId id = token.sequence;
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) continue;  // cancelled under way
    if (it->second.beams == nullptr) {
      ++stats_.tokens;
      ++jobs_[it->second.request().job].new_tokens;
    }
    if (it->second.Append(std::move(token))) Finish(id);
  }
  for (PooledVector& pooled : flight.pooled) {
    const auto it = sequences_.find(pooled.sequence);
    if (it == sequences_.end()) continue;  // cancelled under way
    it->second.SetPooled(std::move(pooled.values));
    Finish(pooled.sequence);
  }
  return absl::OkStatus();
}

void BlockDriver::Trace(BlockId block, const Flight& flight,
                        absl::Duration now) const {
  if (options_.trace == nullptr) return;
  v1::Span step;
  step.set_epoch(epoch_->value());
  step.set_pipeline(options_.pipeline);
  step.set_block(block.value());
  step.set_step(flight.step);
  step.set_tokens(flight.prefill_tokens + flight.decode_tokens);
  step.set_prompt_tokens(flight.prefill_tokens);
  options_.trace->AddStep(std::move(step), flight.sent_at, now);
}

void BlockDriver::CountPrompt(SequenceState* sequence, int32_t end) {
  if (!sequence->begins()) return;
  const int64_t before = sequence->prefilled;
  sequence->prefilled = std::max(sequence->prefilled, end);
  if (!sequence->request().counts_prompt()) return;
  jobs_[sequence->request().job].prompt_tokens += sequence->prefilled - before;
  stats_.prompt_tokens += sequence->prefilled - before;
}

// A wall clock that was set back gives 0; a request without an acceptance time
// counts from its arrival here.
double BlockDriver::SecondsSince(absl::Time accepted,
                                 absl::Duration taken_at) const {
  const absl::Duration passed = accepted == absl::InfiniteFuture()
                                    ? options_.clock->Monotonic() - taken_at
                                    : options_.clock->Now() - accepted;
  return std::max(0.0, absl::ToDoubleSeconds(passed));
}

void BlockDriver::CountPhases(const Flight& flight, absl::Duration now) {
  const int64_t tokens = flight.prefill_tokens + flight.decode_tokens;
  rows_.prompt += static_cast<double>(flight.prefill_tokens);
  rows_.answer += static_cast<double>(flight.decode_tokens);
  const double all = busy_time().Seconds(now);
  if (tokens > 0) {
    busy_seconds_ += absl::ToDoubleSeconds(now - counted_until_);
    const double seconds = all - counted_seconds_;
    const double prefill = seconds *
                           static_cast<double>(flight.prefill_tokens) /
                           static_cast<double>(tokens);
    phase_seconds_.prefill += prefill;
    phase_seconds_.decode += seconds - prefill;
  }
  counted_until_ = now;
  counted_seconds_ = all;
  if (blocks_in_flight() == 0) busy_time().End(now);
}

std::vector<StepPlan> BlockDriver::TakePlans() {
  std::vector<StepPlan> plans;
  if (!epoch_) return plans;
  while (auto next = scheduler_->FormNext()) {
    plans.push_back(ToPlan(next->block, std::move(next->decision)));
  }
  return plans;
}

StepPlan BlockDriver::ToPlan(BlockId block_id,
                             StepScheduler::StepDecision decision) {
  StepPlan plan;
  plan.epoch = *epoch_;
  plan.block = block_id;
  plan.step = next_step_++;
  plan.keep = std::move(decision.keep);
  plan.release = std::move(decision.release);
  const absl::Duration now = options_.clock->Monotonic();
  for (size_t i = 0; i < decision.admit.size(); ++i) {
    const SequenceId id = decision.admit[i];
    const SharedPrefix& prefix = decision.prefixes[i];
    SequenceState& sequence = sequences_.at(id);
    plan.admit.push_back(sequence.Admission(id));
    plan.admit.back().prefix = prefix;
    sequence.admitted = true;
    if (sequence.beam == 0) ++jobs_[sequence.request().job].running;
    if (!std::exchange(sequence.was_admitted, true)) {
      const auto prompt =
          static_cast<int32_t>(sequence.request().prompt.size());
      sequence.cached = std::min(prefix.positions, prompt);
      stats_.admitted_tokens += prompt;
      stats_.cached_tokens += sequence.cached;
      stats_.queue_seconds.push_back(SecondsSinceAccepted(sequence));
    }
  }
  if (blocks_in_flight() == 0) {
    busy_time().Begin(now);
    counted_until_ = now;
    counted_seconds_ = busy_time().Seconds(now);
  }
  Flight& flight = flights_[block_id.value()].emplace_back();
  flight.step = plan.step;
  flight.sent_at = now;
  for (std::vector<Segment>& segments : decision.micro_batches) {
    MicroBatch& batch = plan.micro_batches.emplace_back();
    for (Segment& segment : segments) {
      const SequenceState& sequence = sequences_.at(segment.sequence);
      const std::vector<int32_t>& tokens = sequence.tokens();
      const bool decode =
          segment.num_tokens == 1 &&
          segment.start >=
              static_cast<int32_t>(sequence.request().prompt.size());
      (decode ? flight.decode_tokens : flight.prefill_tokens) +=
          segment.num_tokens;
      const auto prompt =
          static_cast<int32_t>(sequence.request().prompt.size());
      if (segment.start < prompt) {
        flight.prefilled.emplace_back(
            segment.sequence,
            std::min(segment.start + segment.num_tokens, prompt));
      }
      const auto begin = tokens.begin() + segment.start;
      batch.tokens.insert(batch.tokens.end(), begin,
                          begin + segment.num_tokens);
      if (sequence.only_scores()) segment.sample = false;
      if (segment.sample) {
        (sequence.request().pools() ? flight.pooling : flight.sampled)
            .push_back(segment.sequence);
      }
      SetScores(sequence, &segment);
      if (segment.score_begin < segment.score_end) {
        flight.scored.emplace_back(segment.sequence, segment.score_end);
      }
    }
    batch.segments = std::move(segments);
  }
  return plan;
}

// Sets the unscored prompt tokens that the segment's rows predict.
void BlockDriver::SetScores(const SequenceState& sequence, Segment* segment) {
  const std::vector<int32_t>& prompt = sequence.request().prompt;
  const int32_t next = segment->start + segment->num_tokens;
  const int32_t begin = std::max(segment->start + 1, sequence.scored_until());
  const int32_t end = std::min(next + 1, static_cast<int32_t>(prompt.size()));
  if (begin >= end) return;
  segment->score_begin = begin;
  segment->score_end = end;
  if (end > next) segment->next_token = prompt[next];
}

int64_t BlockDriver::blocks_in_flight() const {
  return std::count_if(flights_.begin(), flights_.end(),
                       [](const auto& flights) { return !flights.empty(); });
}

std::optional<int64_t> BlockDriver::oldest_step() const {
  std::optional<int64_t> oldest;
  for (const std::deque<Flight>& flights : flights_) {
    if (!flights.empty() && (!oldest || flights.front().step < *oldest)) {
      oldest = flights.front().step;
    }
  }
  return oldest;
}

std::vector<FinishedRequest> BlockDriver::TakeFinished() {
  return std::exchange(finished_, {});
}

void BlockDriver::TakeNewTokens(std::vector<NewTokens>* tokens) {
  for (auto& [id, sequence] : sequences_) {
    if (sequence.has_new_tokens()) tokens->push_back(sequence.TakeNewTokens());
  }
}

BlockDriver::Stats BlockDriver::TakeStats() {
  return std::exchange(stats_, {});
}

absl::flat_hash_map<JobId, JobProgress> BlockDriver::TakeProgress() {
  absl::flat_hash_map<JobId, JobProgress> taken = jobs_;
  absl::erase_if(jobs_,
                 [](const auto& entry) { return entry.second.running == 0; });
  for (auto& [job, stats] : jobs_) {
    stats.new_tokens = stats.prompt_tokens = stats.replays = 0;
  }
  return taken;
}

}  // namespace sluice
