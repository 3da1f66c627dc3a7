#include "runtime/exec/stage_head.h"

#include <algorithm>

#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/sample/distribution.h"

namespace sluice {
namespace {

// Rows of hidden states that are on the host at a time.
constexpr size_t kMaxPooledRows = 256;

}  // namespace

void StageHead::Admit(const SequenceAdmission& admission) {
  if (admission.pooling != Pooling::kNone) {
    pools_.insert_or_assign(admission.sequence, Pool(admission.pooling));
    return;
  }
  std::unique_ptr<Sampler>& sampler = samplers_[admission.sequence];
  sampler =
      std::make_unique<Sampler>(admission.sampling, admission.prompt_tokens);
  std::vector<int32_t> tokens = TokensOf(admission.prefix);
  sampler->Observe(0, tokens);
  tokens_[admission.sequence] = std::move(tokens);
}

void StageHead::Keep(const KeptPrefix& keep) {
  std::vector<int32_t> tokens = TokensOf(keep.prefix);
  tokens_[keep.id] = std::move(tokens);
}

std::vector<int32_t> StageHead::TokensOf(const SharedPrefix& prefix) const {
  if (prefix.positions == 0) return {};
  const std::vector<int32_t>& tokens = tokens_.at(prefix.source);
  return {tokens.begin(), tokens.begin() + prefix.positions};
}

void StageHead::Clear() {
  samplers_.clear();
  pools_.clear();
  tokens_.clear();
  pooled_.clear();
  pooled_row_of_x_.clear();
  pending_.clear();
  first_.reset();
}

void StageHead::Begin(StepResult* result) {
  result_ = result;
  result_->tokens.clear();
  result_->scores.clear();
  result_->pooled.clear();
  pending_.clear();
}

int StageHead::Passes(const StepPlan& plan) const {
  int64_t rows = 0;
  int pools = 0;
  for (const MicroBatch& batch : plan.micro_batches) {
    for (const Segment& segment : batch.segments) {
      const auto pool = pools_.find(segment.sequence);
      if (pool != pools_.end()) {
        if (pool->second.Wants(segment)) pools = 1;
        continue;
      }
      rows += std::max(0, segment.score_end - segment.score_begin) +
              (segment.sample ? 1 : 0);
    }
  }
  const int32_t max = options_.head_rows;
  // Pooling needs the final norm, which is in the first section.
  const auto passes = std::max(pools, static_cast<int>((rows + max - 1) / max));
  // A single section stays acquired.
  return sections() == 1 ? std::min(1, passes) : passes;
}

absl::StatusOr<PackedView> StageHead::Acquire(int section) {
  SLUICE_ASSIGN_OR_RETURN(const PackedView packed,
                          options_.weights->Acquire(Unit(section)));
  options_.weights->ReadAhead(1);
  return packed;
}

absl::StatusOr<PackedView> StageHead::First() {
  if (!first_) {
    SLUICE_ASSIGN_OR_RETURN(first_, Acquire(0));
  }
  return *first_;
}

absl::Status StageHead::Add(const MicroBatch& batch,
                            std::span<const SegmentView> segments,
                            const float* x) {
  SLUICE_RETURN_IF_ERROR(AddPooled(batch, segments, x));
  batch_rows_.clear();
  row_of_x_.clear();
  size_t samples = result_->tokens.size();
  size_t first = 0;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const int32_t row = segments[s].row;
    const auto tokens = std::span<const int32_t>(batch.tokens)
                            .subspan(first, segment.num_tokens);
    first += segment.num_tokens;
    if (pools_.contains(segment.sequence)) continue;
    Sampler* sampler = samplers_[segment.sequence].get();
    sampler->Observe(segment.start, tokens);
    std::vector<int32_t>& known = tokens_[segment.sequence];
    known.insert(known.end(), tokens.begin(), tokens.end());
    if (segment.score_begin < segment.score_end) {
      TokenScores& scores = result_->scores.emplace_back();
      const size_t count = segment.score_end - segment.score_begin;
      scores.sequence = segment.sequence;
      scores.begin = segment.score_begin;
      scores.logprobs.resize(count);
      scores.num_top = sampler->num_top();
      scores.top.resize(count * scores.num_top);
    }
    for (int32_t p = segment.score_begin; p < segment.score_end; ++p) {
      const int32_t i = p - segment.start;
      batch_rows_.push_back(
          {segment.sequence, p, sampler,
           i < segment.num_tokens ? tokens[i] : segment.next_token,
           result_->scores.size() - 1});
      row_of_x_.push_back(row + i - 1);
    }
    if (!segment.sample) continue;
    batch_rows_.push_back({segment.sequence, segment.start + segment.num_tokens,
                           sampler, -1, samples++});
    row_of_x_.push_back(row + segment.num_tokens - 1);
  }
  result_->tokens.resize(samples);
  if (options_.headless && !batch_rows_.empty()) {
    return absl::InvalidArgumentError(
        "the model's files have no head, so there are no logits to sample or "
        "score tokens by");
  }

  const auto capacity = static_cast<size_t>(options_.head_rows);
  for (size_t begin = 0; begin < batch_rows_.size();) {
    if (pending_.size() == capacity) SLUICE_RETURN_IF_ERROR(Flush());
    SLUICE_ASSIGN_OR_RETURN(const PackedView packed, First());
    const Timed timed(&options_.context.stats->head_seconds,
                      options_.context.row, "head input");
    const size_t count =
        std::min(batch_rows_.size() - begin, capacity - pending_.size());
    SLUICE_RETURN_IF_ERROR(options_.context.backend->HeadInput(
        packed, std::span<const int32_t>(row_of_x_).subspan(begin, count), x,
        static_cast<int32_t>(pending_.size())));
    pending_.insert(pending_.end(), batch_rows_.begin() + begin,
                    batch_rows_.begin() + begin + count);
    begin += count;
  }
  return absl::OkStatus();
}

absl::Status StageHead::AddPooled(const MicroBatch& batch,
                                  std::span<const SegmentView> segments,
                                  const float* x) {
  std::vector<int32_t> wanted;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const auto it = pools_.find(segment.sequence);
    if (it == pools_.end()) continue;
    Pool* const pool = &it->second;
    if (segment.score_begin < segment.score_end) {
      return InvalidArgument("sequence ", segment.sequence.value(),
                             ": it is pooled, and has no scores");
    }
    pool->WantedRows(segment, &wanted);
    for (size_t begin = 0; begin < wanted.size();) {
      // A pool takes its rows in their order, so one task at a time adds to it.
      if (pooled_row_of_x_.size() == kMaxPooledRows ||
          std::any_of(pooled_.begin(), pooled_.end(),
                      [&](const auto& other) { return other.pool == pool; })) {
        SLUICE_RETURN_IF_ERROR(FlushPooled(x));
      }
      const size_t at = pooled_row_of_x_.size();
      const size_t count = std::min(wanted.size() - begin, kMaxPooledRows - at);
      pooled_.push_back({pool, at, count});
      for (size_t i = begin; i < begin + count; ++i) {
        pooled_row_of_x_.push_back(segments[s].row + wanted[i]);
      }
      begin += count;
    }
  }
  SLUICE_RETURN_IF_ERROR(FlushPooled(x));
  for (const Segment& segment : batch.segments) {
    const auto pool = pools_.find(segment.sequence);
    if (pool == pools_.end() || !segment.sample || !options_.answers) continue;
    result_->pooled.push_back({segment.sequence, pool->second.Take()});
  }
  return absl::OkStatus();
}

absl::Status StageHead::FlushPooled(const float* x) {
  if (pooled_.empty()) return absl::OkStatus();
  // All ranks acquire the same units.
  SLUICE_ASSIGN_OR_RETURN(const PackedView packed, First());
  if (options_.answers) {
    const Timed timed(&options_.context.stats->head_seconds,
                      options_.context.row, "pooling");
    const int64_t hidden = options_.context.hidden_size;
    final_rows_.resize(pooled_row_of_x_.size() * hidden);
    SLUICE_RETURN_IF_ERROR(options_.context.backend->FinalRows(
        packed, pooled_row_of_x_, x, final_rows_.data()));
    options_.context.pool->ParallelFor(
        static_cast<int>(pooled_.size()), [&](int task, int) {
          const PooledRows& rows = pooled_[task];
          rows.pool->Add(std::span<const float>(final_rows_)
                             .subspan(rows.first * hidden, rows.count * hidden),
                         hidden);
        });
  }
  pooled_.clear();
  pooled_row_of_x_.clear();
  return absl::OkStatus();
}

absl::Status StageHead::PassBy() {
  first_.reset();
  for (int section = 0; section < sections(); ++section) {
    if (section > 0) {
      SLUICE_RETURN_IF_ERROR(Acquire(section).status());
    }
    SLUICE_RETURN_IF_ERROR(options_.weights->Release(Unit(section)));
  }
  return absl::OkStatus();
}

absl::Status StageHead::Flush() {
  if (pending_.empty()) return absl::OkStatus();
  const auto rows = static_cast<int32_t>(pending_.size());
  const int sections = this->sections();
  for (int section = 0; section < sections; ++section) {
    SLUICE_ASSIGN_OR_RETURN(const PackedView packed,
                            section == 0 ? First() : Acquire(section));
    {
      const Timed timed(&options_.context.stats->head_seconds,
                        options_.context.row, "head", {{{"section", section}}});
      SLUICE_RETURN_IF_ERROR(
          options_.context.backend->HeadLogits(packed, section, rows));
    }
    // The last section's logits are waited for while it is held.
    if (section + 1 == sections) {
      SLUICE_RETURN_IF_ERROR(
          options_.answers ? TakeLogits() : options_.context.compute->Finish());
    }
    // A single section is kept for the next rows.
    if (sections == 1) break;
    if (section == 0) first_.reset();
    SLUICE_RETURN_IF_ERROR(options_.weights->Release(Unit(section)));
  }
  if (!options_.answers) {
    pending_.clear();
    return absl::OkStatus();
  }
  const Timed timed(&options_.context.stats->head_seconds, options_.context.row,
                    "sampling");
  on_host_.clear();
  for (int32_t i = 0; i < rows; ++i) {
    if (taken_[i].sampled()) {
      Use(pending_[i], taken_[i].sample);
      continue;
    }
    on_host_.push_back(i);
    if (options_.logits_observer) {
      options_.logits_observer(pending_[i].sequence, pending_[i].position - 1,
                               taken_[i].logits);
    }
  }
  options_.context.pool->ParallelFor(
      static_cast<int>(on_host_.size()), [&](int task, int thread) {
        const int i = on_host_[task];
        Use(pending_[i], taken_[i].logits, thread);
      });
  pending_.clear();
  return absl::OkStatus();
}

absl::Status StageHead::TakeLogits() {
  const Timed timed(&options_.context.stats->head_seconds, options_.context.row,
                    "logits");
  taken_.assign(pending_.size(), Backend::LogitRow());
  if (!options_.logits_observer) {
    for (size_t i = 0; i < pending_.size(); ++i) {
      const Row& row = pending_[i];
      taken_[i].request = row.target < 0
                              ? row.sampler->Request(row.position)
                              : row.sampler->ScoreRequest(row.target);
    }
  }
  return options_.context.backend->TakeLogits(taken_);
}

absl::Status StageHead::Finish() {
  SLUICE_RETURN_IF_ERROR(Flush());
  return first_ ? PassBy() : absl::OkStatus();
}

void StageHead::Use(const Row& row, std::span<float> logits, int thread) {
  if (row.target < 0) {
    SampledToken& token = result_->tokens[row.slot];
    token = row.sampler->Sample(logits, row.position, scratch_[thread]);
    token.sequence = row.sequence;
    return;
  }
  TokenScores& scores = result_->scores[row.slot];
  const size_t at = row.position - scores.begin;
  scores.logprobs[at] =
      ScoreToken(logits, row.target,
                 std::span<TokenLogprob>(scores.top)
                     .subspan(at * scores.num_top, scores.num_top),
                 scratch_[thread]);
}

void StageHead::Use(const Row& row, const TokenSample& sample) {
  if (row.target < 0) {
    SampledToken& token = result_->tokens[row.slot];
    token = row.sampler->Accept(sample);
    token.sequence = row.sequence;
    return;
  }
  TokenScores& scores = result_->scores[row.slot];
  scores.logprobs[row.position - scores.begin] = sample.logprob;
}

}  // namespace sluice
