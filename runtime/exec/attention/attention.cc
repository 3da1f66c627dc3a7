#include "runtime/exec/attention/attention.h"

#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/kernels/backend.h"

namespace sluice {

void LocalAttention::BeginStep(StepWork* step) {
  step_ = step;
  kv_.BeginStep(step);
}

absl::StatusOr<size_t> LocalAttention::Begin(size_t item) {
  kv_.ReadAhead();
  SLUICE_RETURN_IF_ERROR(Attend(item, Tier::kDevice, Tier::kDevice));
  return item + 1;
}

absl::Status LocalAttention::Finish(size_t item) {
  return Attend(item, Tier::kHost, Tier::kDisk);
}

absl::Status LocalAttention::Attend(size_t item, Tier first, Tier last) {
  const auto [local, k] = step_->items[item];
  for (const SegmentRun& run : step_->kv_of(item).runs) {
    KvStream* const kv = kv_.of(run.tier);
    if (run.tier < first || run.tier > last || kv == nullptr) continue;
    SLUICE_RETURN_IF_ERROR(kv->Acquire(item, run));
    {
      const Timed timed(
          seconds_, row_, "attention",
          {{{"layer", first_layer_ + local}, {"micro_batch", k}}});
      SLUICE_RETURN_IF_ERROR(AttendRun(item, run));
    }
    SLUICE_RETURN_IF_ERROR(kv->Release());
  }
  return absl::OkStatus();
}

absl::Status LocalAttention::AttendRun(size_t item, const SegmentRun& run) {
  const int layer = first_layer_ + step_->items[item].layer;
  const BatchView& view = step_->batch_of(item).view;
  const KvGroup group = step_->layer_of(item).group;
  const int32_t end = run.first + run.count;
  int32_t begin = run.first;
  for (int32_t s = begin; s < end; ++s) {
    const SegmentView& segment = view.segments[s];
    const auto together = [&](int32_t done) {
      return step_->groups().Together(group, segment.start + done,
                                      segment.num_tokens - done);
    };
    if (together(0) == segment.num_tokens) continue;
    // It is too long for its window's pages: it is attended by itself, piece by
    // piece.
    if (begin < s) {
      SLUICE_RETURN_IF_ERROR(backend_->Attend(layer, view, begin, s - begin));
    }
    for (int32_t done = 0, tokens; done < segment.num_tokens; done += tokens) {
      tokens = together(done);
      const int32_t start = segment.start + done;
      const SegmentView piece = {segment.row + done, start, tokens,
                                 segment.pages.first(PagesOf(start + tokens)),
                                 segment.kv};
      BatchView pieces = view;
      pieces.segments = {&piece, 1};
      SLUICE_RETURN_IF_ERROR(backend_->Attend(layer, pieces, 0, 1));
    }
    begin = s + 1;
  }
  return begin < end ? backend_->Attend(layer, view, begin, end - begin)
                     : absl::OkStatus();
}

bool LocalAttention::fixed(size_t k) const {
  if (step_->groups().sizes[KvGroup::kWindow] > 0) return false;
  const std::vector<SegmentRun>& runs =
      step_->batches[k].kv[KvGroup::kAll].runs;
  return runs.empty() || (runs.size() == 1 && runs[0].tier == Tier::kDevice);
}

void LocalAttention::AddTo(SweepStats* stats) const {
  const StreamTotals kv = kv_.totals();
  stats->kv_stall_seconds += kv.stall_seconds;
  stats->kv_read_bytes += kv.read_bytes;
  stats->kv_write_bytes += kv.write_bytes;
}

}  // namespace sluice
