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
  const int layer = first_layer_ + local;
  const BatchWork& work = step_->batches[k];
  for (const SegmentRun& run : work.runs) {
    KvStream* const kv = kv_.of(run.tier);
    if (run.tier < first || run.tier > last || kv == nullptr) continue;
    SLUICE_RETURN_IF_ERROR(kv->Acquire(item, run));
    {
      const Timed timed(seconds_, row_, "attention",
                        {{{"layer", layer}, {"micro_batch", k}}});
      SLUICE_RETURN_IF_ERROR(
          backend_->Attend(layer, work.view, run.first, run.count));
    }
    SLUICE_RETURN_IF_ERROR(kv->Release());
  }
  return absl::OkStatus();
}

bool LocalAttention::fixed(size_t k) const {
  const std::vector<SegmentRun>& runs = step_->batches[k].runs;
  return runs.empty() || (runs.size() == 1 && runs[0].tier == Tier::kDevice);
}

void LocalAttention::AddTo(SweepStats* stats) const {
  const StreamTotals kv = kv_.totals();
  stats->kv_stall_seconds += kv.stall_seconds;
  stats->kv_read_bytes += kv.read_bytes;
  stats->kv_write_bytes += kv.write_bytes;
}

}  // namespace sluice
