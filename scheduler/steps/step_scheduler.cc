#include "scheduler/steps/step_scheduler.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/status_macros.h"

namespace sluice {
namespace {

// The rate at which the lengths of ended sequences are forgotten, and the
// weight of the assumption, to begin with, that all run on to max_positions:
// those that end early are seen first.
constexpr double kLengthsForgotten = 1.0 / 64;
constexpr double kLengthsAssumed = 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

absl::Status StepScheduler::Options::Validate() const {
  if (num_blocks <= 0 || gbs <= 0 || num_microbatches <= 0 ||
      max_step_tokens <= 0 || kv_pages <= 0 || page_tokens <= 0 ||
      max_logit_biases <= 0 || max_releases <= 0 || max_keeps <= 0) {
    return InvalidArgument(
        "step scheduler: num_blocks ", num_blocks, ", gbs ", gbs,
        ", num_microbatches ", num_microbatches, ", max_step_tokens ",
        max_step_tokens, ", kv_pages ", kv_pages, ", page_tokens ", page_tokens,
        ", max_logit_biases ", max_logit_biases, ", max_releases ",
        max_releases, ", max_keeps ", max_keeps, ": all must be positive");
  }
  if (kv_window.pages_each < 0 || kv_window.pages < kv_window.pages_each) {
    return InvalidArgument("step scheduler: ", kv_window.pages,
                           " pages of a window are too few for a sequence's ",
                           kv_window.pages_each);
  }
  if (!packing && reserve == Reserve::kProfile) {
    return absl::InvalidArgumentError(
        "step scheduler: without packing, pages must be reserved at their "
        "maximum");
  }
  if (steps_in_flight < 0 || slice_context < 0 ||
      slice_context > kMaxSliceContext) {
    return InvalidArgument("step scheduler: steps_in_flight ", steps_in_flight,
                           " must not be negative, slice_context ",
                           slice_context, " be from 0 to ", kMaxSliceContext);
  }
  if (!packing && slice_context > 0) {
    return absl::InvalidArgumentError(
        "step scheduler: without packing, contexts can't count");
  }
  if (max_step_tokens < gbs) {
    return InvalidArgument("step scheduler: max_step_tokens ", max_step_tokens,
                           " is less than gbs ", gbs,
                           ": a step must hold a token for each sequence");
  }
  return absl::OkStatus();
}

absl::StatusOr<StepScheduler> StepScheduler::Create(const Options& options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  return StepScheduler(options);
}

StepScheduler::StepScheduler(const Options& options)
    : options_(options),
      prefixes_(options.page_tokens),
      waiting_(options.order) {
  options_.share_prefixes = options.share_prefixes && options.refill &&
                            options.kv_window.pages_each == 0;
  for (int32_t b = 0; b < options.num_blocks; ++b) {
    blocks_.push_back({.micro_batches = std::vector<std::vector<Running>>(
                           options.num_microbatches),
                       .profile = UsageProfile(options.page_tokens),
                       .window_profile = UsageProfile(
                           options.page_tokens, options.kv_window.pages_each)});
  }
}

int64_t StepScheduler::PagesFor(int32_t max_positions) const {
  return CeilDiv(max_positions, options_.page_tokens);
}

int64_t StepScheduler::Claim(const Block& block) const {
  return options_.reserve == Reserve::kProfile ? block.profile.Peak()
                                               : block.maximum_pages;
}

int64_t StepScheduler::WindowClaim(const Block& block) const {
  return options_.reserve == Reserve::kProfile ? block.window_profile.Peak()
                                               : block.maximum_window_pages;
}

int64_t StepScheduler::window_pages_reserved() const {
  int64_t pages = 0;
  for (const Block& block : blocks_) pages += WindowClaim(block);
  return pages;
}

int64_t StepScheduler::pages_reserved() const {
  int64_t pages = 0;
  for (const Block& block : blocks_) pages += Claim(block);
  return pages;
}

bool StepScheduler::Fits(int32_t max_positions) const {
  return PagesFor(max_positions) <= options_.kv_pages;
}

void StepScheduler::Enqueue(SequenceId id, int32_t known_tokens,
                            int32_t max_positions, int64_t logit_biases,
                            std::span<const int32_t> shared_tokens,
                            const Turn& turn) {
  assert(shared_tokens.size() < static_cast<size_t>(known_tokens));
  assert(!waiting_.contains(id) && !running_.contains(id));
  assert(known_tokens >= 1 && known_tokens <= max_positions &&
         Fits(max_positions));
  if (options_.share_prefixes) prefixes_.Add(id, shared_tokens);
  waiting_.Add({id, known_tokens, max_positions, logit_biases, turn},
               prefixes_);
}

void StepScheduler::Want(SequenceId id, std::span<const int32_t> tokens) {
  if (options_.share_prefixes) prefixes_.Add(id, tokens);
}

std::optional<StepScheduler::NextStep> StepScheduler::FormNext() {
  for (int32_t b = 0; b < options_.num_blocks; ++b) {
    if (auto step = FormStep(BlockId(b))) {
      return NextStep{BlockId(b), *std::move(step)};
    }
  }
  if (in_flight_ == 0 || PipelineIsFull()) return std::nullopt;
  std::vector<int32_t> order(options_.num_blocks);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
    return blocks_[a].flights.size() < blocks_[b].flights.size();
  });
  for (const int32_t b : order) {
    if (auto slice = FormSlice(BlockId(b))) {
      return NextStep{BlockId(b), *std::move(slice), true};
    }
  }
  return std::nullopt;
}

std::optional<StepScheduler::StepDecision> StepScheduler::FormStep(
    BlockId block_id) {
  assert(block_id.value() >= 0 && block_id.value() < options_.num_blocks);
  Block& block = blocks_[block_id.value()];
  if (block.step_in_flight || AwaitsFinish(block)) return std::nullopt;
  if (static_cast<int64_t>(pending_release_.size()) > options_.max_releases) {
    StepDecision decision;
    TakeReleases(&decision);
    block.step_in_flight = true;
    block.may_slice = false;
    block.flights.emplace_back();
    ++in_flight_;
    return decision;
  }
  std::vector<Room> left;
  for (std::vector<Running>& micro_batch : block.micro_batches) {
    left.push_back(PlanTokens(micro_batch, false));
  }
  if (block.sequences > 0) {
    // All may sit out until slices are back.
    if (!AnyPlanned(block)) return std::nullopt;
    block.profile.Advance();
    block.window_profile.Advance();
    const double share =
        static_cast<double>(options_.kv_pages) / options_.num_blocks;
    block.credit = std::min(block.credit + share, share);
  }
  StepDecision decision = Compose(block_id.value(), std::move(left), nullptr);
  if (decision.micro_batches.empty()) {
    if (!IsIdle()) return std::nullopt;
    if (waiting_.empty() && prefixes_.empty()) prefixes_.EvictAll();
    CollectReleases();
    if (pending_release_.empty()) return std::nullopt;
  }
  TakeReleases(&decision);
  block.step_in_flight = block.may_slice = true;
  block.flights.emplace_back();
  ++in_flight_;
  return decision;
}

std::optional<StepScheduler::StepDecision> StepScheduler::FormSlice(
    BlockId block_id) {
  assert(block_id.value() >= 0 && block_id.value() < options_.num_blocks);
  Block& block = blocks_[block_id.value()];
  if (PipelineIsFull() || !block.may_slice || block.flights.empty() ||
      (!block.prefills && waiting_.empty()) || AwaitsFinish(block) ||
      static_cast<int64_t>(pending_release_.size()) > options_.max_releases) {
    return std::nullopt;
  }
  std::vector<Room> left;
  for (std::vector<Running>& micro_batch : block.micro_batches) {
    left.push_back(PlanTokens(micro_batch, true));
  }
  Flight flight = {.slice = true};
  StepDecision decision =
      Compose(block_id.value(), std::move(left), &flight.segments);
  if (decision.micro_batches.empty()) return std::nullopt;
  TakeReleases(&decision);
  block.flights.push_back(std::move(flight));
  ++in_flight_;
  ++slices_in_flight_;
  return decision;
}

void StepScheduler::CollectReleases() {
  const std::vector<SequenceId> prefixes = prefixes_.TakeReleases();
  pending_release_.insert(pending_release_.end(), prefixes.begin(),
                          prefixes.end());
}

void StepScheduler::TakeReleases(StepDecision* decision) {
  decision->keep = prefixes_.TakeKeeps();
  CollectReleases();
  const auto end =
      pending_release_.begin() +
      std::min<int64_t>(std::ssize(pending_release_), options_.max_releases);
  decision->release.assign(pending_release_.begin(), end);
  pending_release_.erase(pending_release_.begin(), end);
}

bool StepScheduler::PipelineIsFull() const {
  const int64_t full = options_.steps_in_flight;
  return in_flight_ >= full || in_flight_ - slices_in_flight_ >= full - 1;
}

bool StepScheduler::AnyPlanned(const Block& block) {
  for (const std::vector<Running>& micro_batch : block.micro_batches) {
    for (const Running& sequence : micro_batch) {
      if (sequence.new_tokens > 0) return true;
    }
  }
  return false;
}

StepScheduler::StepDecision StepScheduler::Compose(
    int32_t block_index, std::vector<Room> left,
    std::vector<SliceSegment>* slice) {
  Block& block = blocks_[block_index];
  StepDecision decision;
  if (options_.share_prefixes) KeepPrefixes(prefixes_.Candidates());
  Admit(block_index, left, &decision);
  block.prefills = false;
  for (int32_t m = 0; m < options_.num_microbatches; ++m) {
    std::vector<Running>& micro_batch = block.micro_batches[m];
    std::vector<Segment> segments = Segments(micro_batch);
    if (!segments.empty()) {
      decision.micro_batches.push_back(std::move(segments));
    }
    for (Running& sequence : micro_batch) {
      const int32_t tokens = std::exchange(sequence.new_tokens, 0);
      sequence.flight_tokens += tokens;
      if (sequence.rest() > 0) block.prefills = true;
      if (tokens == 0) continue;
      if (slice != nullptr) {
        slice->push_back({m, sequence.id, tokens});
      } else {
        sequence.step_tokens = tokens;
      }
    }
  }
  return decision;
}

bool StepScheduler::AwaitsFinish(const Block& block) {
  for (const std::vector<Running>& micro_batch : block.micro_batches) {
    for (const Running& sequence : micro_batch) {
      if (sequence.cached_tokens >= sequence.max_positions) return true;
    }
  }
  return false;
}

int32_t StepScheduler::PaddedRoom::Fit(int32_t rest) const {
  const int32_t each = tokens_ / (chunks_ + 1);
  return longest_ > each ? 0 : std::min(rest, each);
}

int32_t StepScheduler::PaddedRoom::Take(int32_t rest) {
  const int32_t chunk = Fit(rest);
  if (chunk > 0) {
    ++chunks_;
    longest_ = std::max(longest_, chunk);
  }
  return chunk;
}

StepScheduler::Room StepScheduler::PlanTokens(std::vector<Running>& micro_batch,
                                              bool slice) const {
  int32_t decoding = 0;
  for (Running& sequence : micro_batch) {
    sequence.new_tokens = 0;
    if (slice || !sequence.decoding) continue;
    sequence.new_tokens = 1;
    ++decoding;
  }
  Room room(options_, decoding);
  for (Running& sequence : micro_batch) {
    if (sequence.decoding || sequence.finished) continue;
    const int32_t context = sequence.cached_tokens + sequence.flight_tokens;
    sequence.new_tokens = room.Take(context, sequence.rest());
  }
  return room;
}

std::vector<Segment> StepScheduler::Segments(
    const std::vector<Running>& micro_batch) {
  std::vector<Segment> segments;
  for (const bool decoding : {true, false}) {
    for (const Running& sequence : micro_batch) {
      if (sequence.decoding != decoding || sequence.new_tokens == 0) continue;
      segments.push_back({sequence.id,
                          sequence.cached_tokens + sequence.flight_tokens,
                          sequence.new_tokens, sequence.rest() == 0});
    }
  }
  return segments;
}

void StepScheduler::Admit(int32_t block_index, std::vector<Room>& left,
                          StepDecision* decision) {
  Block& block = blocks_[block_index];
  if (!options_.refill && block.sequences > 0) return;
  const int64_t block_limit =
      std::min(int64_t{options_.gbs} * options_.num_microbatches,
               CeilDiv(running() + waiting(), options_.num_blocks));
  const int64_t micro_batch_limit =
      CeilDiv(block_limit, options_.num_microbatches);
  Admissions admissions = {
      block_index, block_limit, micro_batch_limit, options_.max_logit_biases,
      left,        *decision};
  auto next = waiting_.begin();
  while (next != waiting_.end() && block.sequences < block_limit) {
    if (WaitsForPrefix(prefixes_.Find(next->sequence.id))) {
      ++next;
    } else if (AdmitOne(next->sequence, false, &admissions)) {
      next = waiting_.Remove(next, prefixes_);
    } else {
      break;
    }
  }
  if (options_.order != Order::kLongest || next == waiting_.end()) return;
  const int64_t rank = next->sequence.turn.rank;
  while (!waiting_.empty() && block.sequences < block_limit &&
         waiting_.MayFill()) {
    const Waiting& last = std::prev(waiting_.end())->sequence;
    if (last.turn.rank != rank || !AdmitOne(last, true, &admissions)) return;
    waiting_.RemoveLast(prefixes_);
  }
}

bool StepScheduler::AdmitOne(const Waiting& head, bool fills,
                             Admissions* admissions) {
  auto& [block_index, block_limit, micro_batch_limit, biases_left, left,
         decision] = *admissions;
  Block& block = blocks_[block_index];
  if (!decision.admit.empty() && head.logit_biases > biases_left) return false;
  const PrefixTree::Match match = prefixes_.Find(head.id);
  if (fills && (WaitsForPrefix(match) || match.to_reserve > 0)) return false;
  const int32_t context = match.pages * options_.page_tokens;
  const int32_t rest = head.known_tokens - context;
  int32_t best = -1;
  for (int32_t m = 0; m < options_.num_microbatches; ++m) {
    const int64_t size = block.micro_batches[m].size();
    if (size >= micro_batch_limit) continue;
    if (options_.refill && left[m].Fit(context, rest) == 0) continue;
    if (best < 0 ||
        size < static_cast<int64_t>(block.micro_batches[best].size()))
      best = m;
  }
  if (best < 0) return false;
  std::vector<Running>& micro_batch = block.micro_batches[best];
  const int32_t planned = left[best].Fit(context, rest);
  UsageProfile::Use use;
  if (!ClaimFor(head, match, block_limit, micro_batch, planned, fills, &block,
                &use)) {
    return false;
  }
  prefixes_.Admit(head.id, match);
  biases_left -= head.logit_biases;
  left[best].Take(context, rest);
  micro_batch.push_back({.id = head.id,
                         .known_tokens = head.known_tokens,
                         .max_positions = head.max_positions,
                         .admission = admissions_++,
                         .cached_tokens = context,
                         .new_tokens = planned,
                         .use = use});
  running_[head.id] = {block_index, best};
  ++block.sequences;
  decision.admit.push_back(head.id);
  decision.prefixes.push_back({match.source, context});
  return true;
}

bool StepScheduler::ClaimFor(const Waiting& sequence,
                             const PrefixTree::Match& match,
                             int64_t block_limit,
                             const std::vector<Running>& micro_batch,
                             int32_t planned, bool fills, Block* block,
                             UsageProfile::Use* use) {
  const int32_t shared = match.pages + match.to_reserve;
  const bool by_profile = options_.reserve == Reserve::kProfile;
  if (by_profile && !fills && block->sequences > 0 && block->credit <= 0 &&
      Paces(sequence, block_limit, shared)) {
    return false;
  }
  *use = UseOf(sequence, match, micro_batch, planned, block->profile.now());
  const int64_t pages = PagesFor(sequence.max_positions) - shared;
  const int64_t window_pages = WindowPagesFor(sequence.max_positions);
  const int64_t claim =
      by_profile ? block->profile.PeakWith(*use) : block->maximum_pages + pages;
  const int64_t window_claim = by_profile
                                   ? block->window_profile.PeakWith(*use)
                                   : block->maximum_window_pages + window_pages;
  if (fills && (claim > Claim(*block) || window_claim > WindowClaim(*block))) {
    return false;
  }
  while (!HasRoom(*block, claim, window_claim, match.to_reserve)) {
    if (fills || !prefixes_.Evict(sequence.id, running_.empty())) return false;
  }
  if (!IsShare(*block, claim)) return false;
  if (!by_profile) {
    block->maximum_pages = claim;
    block->maximum_window_pages = window_claim;
    return true;
  }
  block->profile.Add(*use);
  block->window_profile.Add(*use);
  if (fills) return true;
  const int32_t end = ExpectedEnd(sequence);
  const int64_t cost =
      PageSteps(sequence.known_tokens, end, options_.page_tokens) -
      int64_t{shared} * (end - sequence.known_tokens + 1);
  block->credit = std::max(block->credit, 0.0) - static_cast<double>(cost);
  return true;
}

void StepScheduler::KeepPrefixes(
    const std::vector<PrefixTree::Candidate>& candidates) {
  for (const PrefixTree::Candidate& candidate : candidates) {
    if (prefixes_.num_keeps() >= options_.max_keeps) return;
    const auto it = running_.find(candidate.maker);
    if (it == running_.end()) continue;  // it is about to go
    Block& block = blocks_[it->second.block];
    std::vector<Running>& micro_batch =
        block.micro_batches[it->second.micro_batch];
    const auto maker =
        std::find_if(micro_batch.begin(), micro_batch.end(),
                     [&](const Running& s) { return s.id == candidate.maker; });
    if (maker->cached_tokens + maker->flight_tokens <
        int64_t{candidate.end_pages} * options_.page_tokens) {
      continue;
    }
    if (prefixes_.MayKeep(candidate) &&
        (candidate.new_pages == 0 ||
         GiveToPrefixes(&block, &*maker, candidate.new_pages))) {
      prefixes_.Keep(candidate);
    } else {
      prefixes_.Refuse(candidate);
    }
  }
}

bool StepScheduler::GiveToPrefixes(Block* block, Running* sequence,
                                   int32_t pages) {
  UsageProfile::Use less = sequence->use;
  less.shared += pages;
  if (options_.reserve == Reserve::kMaximum) {
    block->maximum_pages -= pages;
    sequence->use = less;
    return true;
  }
  block->profile.Remove(sequence->use);
  const bool fits = HasRoom(*block, block->profile.PeakWith(less),
                            WindowClaim(*block), pages);
  if (fits) sequence->use = less;
  block->profile.Add(sequence->use);
  return fits;
}

UsageProfile::Use StepScheduler::UseOf(const Waiting& sequence,
                                       const PrefixTree::Match& match,
                                       const std::vector<Running>& micro_batch,
                                       int32_t planned, int64_t now) const {
  const int64_t rest = sequence.known_tokens -
                       int64_t{match.pages} * options_.page_tokens - planned;
  int64_t rest_ahead = 0;
  int64_t known = sequence.known_tokens;
  for (const Running& other : micro_batch) {
    if (other.decoding) continue;
    rest_ahead += other.rest();
    known = std::max<int64_t>(known, other.known_tokens);
  }
  // The ones ahead may be gone by the next step, or all decode until the last.
  const int64_t ahead = static_cast<int64_t>(micro_batch.size());
  const bool slices = options_.steps_in_flight > 1;
  const int64_t fill = slices ? int64_t{options_.max_step_tokens} *
                                    (options_.steps_in_flight - 1)
                              : 0;
  const int64_t soonest = CeilDiv(std::max<int64_t>(0, rest - fill),
                                  options_.max_step_tokens + fill);
  int64_t latest =
      rest == 0 ? 0 : CeilDiv(rest_ahead + rest, LeastPrefill(known, ahead));
  if (slices) ++latest;  // while its first token is on the way
  return {
      .grows = now + soonest,
      .end = now + latest + sequence.max_positions - sequence.known_tokens + 1,
      .known = sequence.known_tokens,
      .max = sequence.max_positions,
      .shared = match.pages + match.to_reserve};
}

int64_t StepScheduler::LeastPrefill(int64_t known, int64_t ahead) const {
  const int64_t tokens = options_.max_step_tokens - ahead;
  if (options_.slice_context == 0) return tokens;
  // A row costs 1 + known / slice_context at most.
  return std::max<int64_t>(
      1, tokens * options_.slice_context / (options_.slice_context + known));
}

int32_t StepScheduler::ExpectedEnd(const Waiting& sequence) const {
  const double share = steps_allowed_ > 0 ? steps_run_ / steps_allowed_ : 1;
  return sequence.known_tokens +
         static_cast<int32_t>(share *
                              (sequence.max_positions - sequence.known_tokens));
}

bool StepScheduler::Paces(const Waiting& sequence, int64_t block_limit,
                          int32_t shared_pages) const {
  if (!options_.refill) return false;
  if (options_.order == Order::kLongest) {
    // Shorter ones fill what those that begin together leave.
    const Waiting& last = std::prev(waiting_.end())->sequence;
    if (2 * (last.max_positions - last.known_tokens) <
        sequence.max_positions - sequence.known_tokens) {
      return false;
    }
  }
  const double pages = static_cast<double>(options_.kv_pages);
  // A block is full at once if as many as it takes fit even at their maximum.
  const int64_t own_pages = PagesFor(sequence.max_positions) - shared_pages;
  if (static_cast<double>(block_limit * own_pages) * options_.num_blocks <=
      pages) {
    return false;
  }
  const int32_t end = ExpectedEnd(sequence);
  const double average =
      static_cast<double>(
          PageSteps(sequence.known_tokens, end, options_.page_tokens)) /
      (end - sequence.known_tokens + 1);
  const double saved = static_cast<double>(PagesFor(end)) - average;
  return saved * static_cast<double>(running() + waiting()) >= pages;
}

void StepScheduler::LearnFrom(const Running& ended) {
  if (!ended.decoding || ended.use.max <= ended.use.known) return;
  const double allowed = ended.use.max - ended.use.known;
  if (steps_allowed_ == 0) {
    steps_run_ = steps_allowed_ = kLengthsAssumed * allowed;
  }
  steps_run_ +=
      ended.cached_tokens - ended.use.known - kLengthsForgotten * steps_run_;
  steps_allowed_ += allowed - kLengthsForgotten * steps_allowed_;
}

bool StepScheduler::HasRoom(const Block& block, int64_t pages,
                            int64_t window_pages, int64_t prefix_pages) const {
  if (window_pages_reserved() - WindowClaim(block) + window_pages >
      options_.kv_window.pages) {
    return false;
  }
  return pages_reserved() - Claim(block) + pages + prefixes_.pages() +
             prefix_pages <=
         options_.kv_pages;
}

bool StepScheduler::IsShare(const Block& block, int64_t pages) const {
  if (pages <=
      CeilDiv(options_.kv_pages - prefixes_.pages(), options_.num_blocks)) {
    return true;
  }
  return std::all_of(blocks_.begin(), blocks_.end(), [&](const Block& other) {
    return other.sequences >= block.sequences;
  });
}

void StepScheduler::OnStepDone(BlockId block_id) {
  assert(block_id.value() >= 0 && block_id.value() < options_.num_blocks);
  Block& block = blocks_[block_id.value()];
  if (block.flights.empty()) return;
  const Flight flight = std::move(block.flights.front());
  block.flights.pop_front();
  --in_flight_;
  if (flight.slice) --slices_in_flight_;
  if (!flight.slice) {
    block.step_in_flight = false;
    for (std::vector<Running>& micro_batch : block.micro_batches) {
      for (Running& sequence : micro_batch) {
        const int32_t tokens = std::exchange(sequence.step_tokens, 0);
        if (tokens > 0) OnComputed(block, sequence, tokens);
      }
      DropFinished(block, micro_batch);
    }
    return;
  }
  for (const SliceSegment& segment : flight.segments) {
    std::vector<Running>& micro_batch =
        block.micro_batches[segment.micro_batch];
    // Slices hold few sequences, the youngest of their micro-batches.
    const auto sequence = std::find_if(
        micro_batch.rbegin(), micro_batch.rend(),
        [&](const Running& s) { return s.id == segment.sequence; });
    OnComputed(block, *sequence, segment.tokens);
    if (sequence->finished) DropFinished(block, micro_batch);
  }
}

void StepScheduler::OnComputed(Block& block, Running& sequence,
                               int32_t tokens) {
  sequence.flight_tokens -= tokens;
  sequence.cached_tokens += tokens;
  if (sequence.cached_tokens < sequence.known_tokens) return;
  if (!sequence.decoding && options_.reserve == Reserve::kProfile) {
    // The prefill is complete: from here on all is exact.
    const int64_t now = block.profile.now();
    const UsageProfile::Use exact = {
        .grows = now,
        .end = now + sequence.use.max - sequence.use.known + 1,
        .known = sequence.use.known,
        .max = sequence.use.max,
        .shared = sequence.use.shared};
    if (exact != sequence.use) {
      block.profile.Remove(sequence.use);
      block.profile.Add(exact);
      block.window_profile.Remove(sequence.use);
      block.window_profile.Add(exact);
      sequence.use = exact;
    }
  }
  ++sequence.known_tokens;
  sequence.decoding = true;
}

void StepScheduler::DropFinished(Block& block,
                                 std::vector<Running>& micro_batch) {
  std::erase_if(micro_batch, [&](const Running& sequence) {
    if (!sequence.finished || sequence.flight_tokens > 0) return false;
    Release(block, sequence);
    return true;
  });
}

void StepScheduler::Finish(SequenceId id) {
  if (waiting_.Remove(id, prefixes_)) {
    prefixes_.Remove(id);
    return;
  }
  auto it = running_.find(id);
  if (it == running_.end()) return;
  KeepPrefixes(prefixes_.Candidates(id));
  const Place place = it->second;
  running_.erase(it);
  Block& block = blocks_[place.block];
  std::vector<Running>& micro_batch = block.micro_batches[place.micro_batch];
  auto sequence = std::find_if(micro_batch.begin(), micro_batch.end(),
                               [id](const Running& s) { return s.id == id; });
  if (sequence->flight_tokens > 0) {
    sequence->finished = true;
    return;
  }
  Release(block, *sequence);
  micro_batch.erase(sequence);
}

void StepScheduler::Release(Block& block, const Running& sequence) {
  --block.sequences;
  if (options_.reserve == Reserve::kProfile) {
    block.profile.Remove(sequence.use);
    block.window_profile.Remove(sequence.use);
    LearnFrom(sequence);
  } else {
    block.maximum_pages -=
        PagesFor(sequence.max_positions) - sequence.use.shared;
    block.maximum_window_pages -= WindowPagesFor(sequence.max_positions);
  }
  prefixes_.Remove(sequence.id);
  pending_release_.push_back(sequence.id);
}

std::vector<SequenceId> StepScheduler::Clear() {
  std::vector<std::pair<int64_t, SequenceId>> ran;
  for (Block& block : blocks_) {
    for (std::vector<Running>& micro_batch : block.micro_batches) {
      for (const Running& sequence : micro_batch) {
        if (!sequence.finished)
          ran.emplace_back(sequence.admission, sequence.id);
      }
      micro_batch.clear();
    }
    block.profile = UsageProfile(options_.page_tokens);
    block.window_profile =
        UsageProfile(options_.page_tokens, options_.kv_window.pages_each);
    block.sequences = 0;
    block.maximum_pages = block.maximum_window_pages = 0;
    block.credit = 0;
    block.flights.clear();
    block.step_in_flight = block.prefills = false;
  }
  in_flight_ = slices_in_flight_ = 0;
  std::sort(ran.begin(), ran.end());
  std::vector<SequenceId> ids;
  ids.reserve(ran.size() + waiting_.size());
  for (const auto& [admission, id] : ran) ids.push_back(id);
  for (const auto& waiting : waiting_) ids.push_back(waiting.sequence.id);
  waiting_.Clear();
  running_.clear();
  pending_release_.clear();
  prefixes_ = PrefixTree(options_.page_tokens);
  steps_run_ = steps_allowed_ = 0;
  return ids;
}

}  // namespace sluice
