#include "scheduler/steps/step_scheduler.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "common/status_macros.h"

namespace sluice {
namespace {

// The rate at which the lengths of ended sequences are forgotten, and the
// weight of the assumption, to begin with, that all run on to max_tokens: those
// that end early are seen first.
constexpr double kLengthsForgotten = 1.0 / 64;
constexpr double kLengthsAssumed = 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

absl::Status StepScheduler::Options::Validate() const {
  if (num_blocks <= 0 || gbs <= 0 || num_microbatches <= 0 ||
      max_step_tokens <= 0 || kv_pages <= 0 || page_tokens <= 0 ||
      max_logit_biases <= 0 || max_releases <= 0) {
    return InvalidArgument(
        "step scheduler: num_blocks ", num_blocks, ", gbs ", gbs,
        ", num_microbatches ", num_microbatches, ", max_step_tokens ",
        max_step_tokens, ", kv_pages ", kv_pages, ", page_tokens ", page_tokens,
        ", max_logit_biases ", max_logit_biases, ", max_releases ",
        max_releases, ": all must be positive");
  }
  if (!packing && reserve == Reserve::kProfile) {
    return absl::InvalidArgumentError(
        "step scheduler: without packing, pages must be reserved at their "
        "maximum");
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

StepScheduler::StepScheduler(const Options& options) : options_(options) {
  for (int32_t b = 0; b < options.num_blocks; ++b) {
    blocks_.push_back({.micro_batches = std::vector<std::vector<Running>>(
                           options.num_microbatches),
                       .profile = UsageProfile(options.page_tokens)});
  }
}

int64_t StepScheduler::PagesFor(int32_t max_tokens) const {
  return CeilDiv(max_tokens, options_.page_tokens);
}

int64_t StepScheduler::Claim(const Block& block) const {
  return options_.reserve == Reserve::kProfile ? block.profile.Peak()
                                               : block.maximum_pages;
}

int64_t StepScheduler::pages_reserved() const {
  int64_t pages = 0;
  for (const Block& block : blocks_) pages += Claim(block);
  return pages;
}

bool StepScheduler::Fits(int32_t max_tokens) const {
  return PagesFor(max_tokens) <= options_.kv_pages;
}

void StepScheduler::Enqueue(SequenceId id, int32_t known_tokens,
                            int32_t max_tokens, int64_t logit_biases) {
  assert(!waiting_index_.contains(id) && !running_.contains(id));
  assert(known_tokens >= 1 && known_tokens <= max_tokens && Fits(max_tokens));
  waiting_index_[id] = waiting_.insert(
      waiting_.end(), {id, known_tokens, max_tokens, logit_biases});
}

std::optional<StepScheduler::StepDecision> StepScheduler::FormStep(
    BlockId block_id) {
  assert(block_id.value() >= 0 && block_id.value() < options_.num_blocks);
  Block& block = blocks_[block_id.value()];
  if (block.in_flight || AwaitsFinish(block)) return std::nullopt;
  if (static_cast<int64_t>(pending_release_.size()) > options_.max_releases) {
    StepDecision decision;
    const auto end = pending_release_.begin() + options_.max_releases;
    decision.release.assign(pending_release_.begin(), end);
    pending_release_.erase(pending_release_.begin(), end);
    block.in_flight = true;
    return decision;
  }
  if (block.sequences > 0) {
    // Each sequence has a segment in this step, or one ahead of it has: there
    // will be a step.
    block.profile.Advance();
    const double share =
        static_cast<double>(options_.kv_pages) / options_.num_blocks;
    block.credit = std::min(block.credit + share, share);
  }

  std::vector<ChunkRoom> left;
  for (std::vector<Running>& micro_batch : block.micro_batches) {
    left.push_back(PlanTokens(micro_batch));
  }
  StepDecision decision;
  Admit(block_id.value(), left, decision.admit);

  for (const std::vector<Running>& micro_batch : block.micro_batches) {
    std::vector<Segment> segments = Segments(micro_batch);
    if (!segments.empty())
      decision.micro_batches.push_back(std::move(segments));
  }
  if (decision.micro_batches.empty()) {
    const bool only_release =
        !pending_release_.empty() && running_.empty() && !AnyInFlight();
    if (!only_release) return std::nullopt;
  }
  decision.release = std::exchange(pending_release_, {});
  block.in_flight = true;
  return decision;
}

bool StepScheduler::AwaitsFinish(const Block& block) {
  for (const std::vector<Running>& micro_batch : block.micro_batches) {
    for (const Running& sequence : micro_batch) {
      if (sequence.cached_tokens >= sequence.max_tokens) return true;
    }
  }
  return false;
}

int32_t StepScheduler::ChunkRoom::Fit(int32_t rest) const {
  if (packing_) return std::min(rest, tokens_);
  const int32_t each = tokens_ / (chunks_ + 1);
  return longest_ > each ? 0 : std::min(rest, each);
}

void StepScheduler::ChunkRoom::Take(int32_t chunk) {
  if (packing_) {
    tokens_ -= chunk;
  } else if (chunk > 0) {
    ++chunks_;
    longest_ = std::max(longest_, chunk);
  }
}

StepScheduler::ChunkRoom StepScheduler::PlanTokens(
    std::vector<Running>& micro_batch) const {
  int32_t left = options_.max_step_tokens;
  for (Running& sequence : micro_batch) {
    sequence.planned_tokens = sequence.decoding ? 1 : 0;
    left -= sequence.planned_tokens;
  }
  ChunkRoom room(left, options_.packing);
  for (Running& sequence : micro_batch) {
    if (sequence.decoding) continue;
    sequence.planned_tokens =
        room.Fit(sequence.known_tokens - sequence.cached_tokens);
    room.Take(sequence.planned_tokens);
  }
  return room;
}

std::vector<Segment> StepScheduler::Segments(
    const std::vector<Running>& micro_batch) {
  std::vector<Segment> segments;
  for (const bool decoding : {true, false}) {
    for (const Running& sequence : micro_batch) {
      if (sequence.decoding != decoding || sequence.planned_tokens == 0)
        continue;
      segments.push_back({sequence.id, sequence.cached_tokens,
                          sequence.planned_tokens, sequence.ReachesKnownEnd()});
    }
  }
  return segments;
}

void StepScheduler::Admit(int32_t block_index, std::vector<ChunkRoom>& left,
                          std::vector<SequenceId>& admitted) {
  Block& block = blocks_[block_index];
  if (!options_.refill && block.sequences > 0) return;
  const int64_t block_limit =
      std::min(int64_t{options_.gbs} * options_.num_microbatches,
               CeilDiv(running() + waiting(), options_.num_blocks));
  const int64_t micro_batch_limit =
      CeilDiv(block_limit, options_.num_microbatches);
  int64_t biases_left = options_.max_logit_biases;

  while (!waiting_.empty() && block.sequences < block_limit) {
    const Waiting& head = waiting_.front();
    if (!admitted.empty() && head.logit_biases > biases_left) return;
    int32_t best = -1;
    for (int32_t m = 0; m < options_.num_microbatches; ++m) {
      const int64_t size = block.micro_batches[m].size();
      if (size >= micro_batch_limit) continue;
      if (options_.refill && left[m].Fit(head.known_tokens) == 0) continue;
      if (best < 0 ||
          size < static_cast<int64_t>(block.micro_batches[best].size()))
        best = m;
    }
    if (best < 0) return;
    std::vector<Running>& micro_batch = block.micro_batches[best];
    const int32_t planned = left[best].Fit(head.known_tokens);
    UsageProfile::Use use;
    if (options_.reserve == Reserve::kMaximum) {
      const int64_t pages = PagesFor(head.max_tokens);
      if (!MayClaim(block, block.maximum_pages + pages)) return;
      block.maximum_pages += pages;
    } else {
      if (block.sequences > 0 && block.credit <= 0 &&
          Paces(head, block_limit)) {
        return;
      }
      use = UseOf(head, micro_batch, planned, block.profile.now());
      if (!MayClaim(block, block.profile.PeakWith(use))) return;
      block.profile.Add(use);
      const auto cost = static_cast<double>(PageSteps(
          head.known_tokens, ExpectedEnd(head), options_.page_tokens));
      block.credit = std::max(block.credit, 0.0) - cost;
    }

    biases_left -= head.logit_biases;
    left[best].Take(planned);
    micro_batch.push_back({.id = head.id,
                           .known_tokens = head.known_tokens,
                           .max_tokens = head.max_tokens,
                           .admission = admissions_++,
                           .planned_tokens = planned,
                           .use = use});
    running_[head.id] = {block_index, best};
    ++block.sequences;
    admitted.push_back(head.id);
    waiting_index_.erase(head.id);
    waiting_.pop_front();
  }
}

UsageProfile::Use StepScheduler::UseOf(const Waiting& sequence,
                                       const std::vector<Running>& micro_batch,
                                       int32_t planned, int64_t now) const {
  const int64_t rest = sequence.known_tokens - planned;
  int64_t rest_ahead = 0;
  for (const Running& other : micro_batch) {
    if (other.decoding) continue;
    rest_ahead +=
        other.known_tokens - other.cached_tokens - other.planned_tokens;
  }
  // The ones ahead may be gone by the next step, or all decode until the last.
  const int64_t ahead = static_cast<int64_t>(micro_batch.size());
  const int64_t soonest = CeilDiv(rest, options_.max_step_tokens);
  const int64_t latest =
      rest == 0 ? 0
                : CeilDiv(rest_ahead + rest, options_.max_step_tokens - ahead);
  return {.grows = now + soonest,
          .end = now + latest + sequence.max_tokens - sequence.known_tokens + 1,
          .known = sequence.known_tokens,
          .max = sequence.max_tokens};
}

int32_t StepScheduler::ExpectedEnd(const Waiting& sequence) const {
  const double share = steps_allowed_ > 0 ? steps_run_ / steps_allowed_ : 1;
  return sequence.known_tokens +
         static_cast<int32_t>(share *
                              (sequence.max_tokens - sequence.known_tokens));
}

bool StepScheduler::Paces(const Waiting& sequence, int64_t block_limit) const {
  if (!options_.refill) return false;
  const double pages = static_cast<double>(options_.kv_pages);
  // A block is full at once if as many as it takes fit even at their maximum.
  if (static_cast<double>(block_limit * PagesFor(sequence.max_tokens)) *
          options_.num_blocks <=
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

bool StepScheduler::MayClaim(const Block& block, int64_t pages) const {
  if (pages_reserved() - Claim(block) + pages > options_.kv_pages) return false;
  if (pages <= CeilDiv(options_.kv_pages, options_.num_blocks)) return true;
  return std::all_of(blocks_.begin(), blocks_.end(), [&](const Block& other) {
    return other.sequences >= block.sequences;
  });
}

void StepScheduler::OnStepDone(BlockId block_id) {
  assert(block_id.value() >= 0 && block_id.value() < options_.num_blocks);
  Block& block = blocks_[block_id.value()];
  if (!block.in_flight) return;
  block.in_flight = false;
  for (std::vector<Running>& micro_batch : block.micro_batches) {
    for (Running& sequence : micro_batch) {
      if (sequence.planned_tokens > 0 && sequence.ReachesKnownEnd()) {
        if (!sequence.decoding && options_.reserve == Reserve::kProfile) {
          // The prefill is complete: from here on all is exact.
          const int64_t now = block.profile.now();
          const UsageProfile::Use exact = {
              .grows = now,
              .end = now + sequence.use.max - sequence.use.known + 1,
              .known = sequence.use.known,
              .max = sequence.use.max};
          if (exact != sequence.use) {
            block.profile.Remove(sequence.use);
            block.profile.Add(exact);
            sequence.use = exact;
          }
        }
        sequence.cached_tokens = sequence.known_tokens++;
        sequence.decoding = true;
      } else {
        sequence.cached_tokens += sequence.planned_tokens;
      }
      sequence.planned_tokens = 0;
      if (sequence.finished) Release(block, sequence);
    }
    std::erase_if(micro_batch, [](const Running& s) { return s.finished; });
  }
}

std::vector<SequenceId> StepScheduler::LastWaiting(int64_t max) const {
  std::vector<SequenceId> last;
  const int64_t count = std::clamp<int64_t>(max, 0, waiting());
  for (auto it = std::prev(waiting_.end(), count); it != waiting_.end(); ++it) {
    last.push_back(it->id);
  }
  return last;
}

void StepScheduler::Finish(SequenceId id) {
  if (auto it = waiting_index_.find(id); it != waiting_index_.end()) {
    waiting_.erase(it->second);
    waiting_index_.erase(it);
    return;
  }
  auto it = running_.find(id);
  if (it == running_.end()) return;
  const Place place = it->second;
  running_.erase(it);
  Block& block = blocks_[place.block];
  std::vector<Running>& micro_batch = block.micro_batches[place.micro_batch];
  auto sequence = std::find_if(micro_batch.begin(), micro_batch.end(),
                               [id](const Running& s) { return s.id == id; });
  if (block.in_flight) {
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
    LearnFrom(sequence);
  } else {
    block.maximum_pages -= PagesFor(sequence.max_tokens);
  }
  pending_release_.push_back(sequence.id);
}

bool StepScheduler::AnyInFlight() const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [](const Block& block) { return block.in_flight; });
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
    block.sequences = 0;
    block.maximum_pages = 0;
    block.credit = 0;
    block.in_flight = false;
  }
  std::sort(ran.begin(), ran.end());
  std::vector<SequenceId> ids;
  ids.reserve(ran.size() + waiting_.size());
  for (const auto& [admission, id] : ran) ids.push_back(id);
  for (const Waiting& sequence : waiting_) ids.push_back(sequence.id);
  waiting_.clear();
  waiting_index_.clear();
  running_.clear();
  pending_release_.clear();
  steps_run_ = steps_allowed_ = 0;
  return ids;
}

}  // namespace sluice
