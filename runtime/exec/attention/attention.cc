#include "runtime/exec/attention/attention.h"

#include <algorithm>

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
  if (step_->layer_of(item).group == KvGroup::kAll) {
    return backend_->Attend(layer, view, run.first, run.count);
  }
  // A segment longer than a turn is attended by itself, piece by piece.
  const int32_t turn = step_->groups().turn;
  const int32_t end = run.first + run.count;
  int32_t begin = run.first;
  for (int32_t s = begin; s < end; ++s) {
    const SegmentView& segment = view.segments[s];
    if (segment.num_tokens <= turn) continue;
    if (begin < s) {
      SLUICE_RETURN_IF_ERROR(backend_->Attend(layer, view, begin, s - begin));
    }
    for (int32_t done = 0; done < segment.num_tokens; done += turn) {
      const int32_t tokens = std::min(turn, segment.num_tokens - done);
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
