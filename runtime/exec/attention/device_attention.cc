#include "runtime/exec/attention/device_attention.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/kernels/backend.h"

namespace sluice {
namespace {

constexpr size_t kAllRuns = std::numeric_limits<size_t>::max();

}  // namespace

int64_t DeviceAttention::MaxRunPages(Tier tier) const {
  if (tier == Tier::kDevice || options_.staged == nullptr) {
    return std::numeric_limits<int64_t>::max();
  }
  return options_.staged->MaxGroupPages();
}

void DeviceAttention::BeginStep(
    std::span<StageWork> work,
    std::span<const std::pair<int32_t, int32_t>> order) {
  work_ = work;
  order_ = order;
  next_item_ = next_run_ = 0;
}

absl::Status DeviceAttention::Attend(size_t item, const SegmentRun& run) {
  const auto [local, k] = order_[item];
  const int layer = options_.first_layer + local;
  const Timed timed(&options_.stats->attention_seconds, options_.row,
                    "attention", {{{"layer", layer}, {"micro_batch", k}}});
  return options_.backend->Attend(layer, work_[k].view, run.first, run.count);
}

absl::Status DeviceAttention::Begin(size_t item) {
  const auto [local, k] = order_[item];
  StageWork& work = work_[k];
  if (work.on_host) {
    SLUICE_RETURN_IF_ERROR(
        options_.on_host->Begin(options_.first_layer + local, local, &work));
  } else if (options_.staged != nullptr && options_.disk != nullptr) {
    options_.disk->ReadAhead();
  }
  for (const SegmentRun& run : work.runs) {
    if (run.tier != Tier::kDevice) continue;
    for (int32_t s = run.first; s < run.first + run.count; ++s) {
      work.segments[s].kv = options_.device_kv->LayerBase(local);
    }
    SLUICE_RETURN_IF_ERROR(Attend(item, run));
  }
  return absl::OkStatus();
}

absl::Status DeviceAttention::Finish(size_t item) {
  const StageWork& work = work_[order_[item].second];
  if (work.on_host) return options_.on_host->Wait(work.view.attention_slot);
  return options_.staged == nullptr ? absl::OkStatus() : FinishStaged(item);
}

absl::Status DeviceAttention::LoadUpTo(size_t item, size_t run, bool wait) {
  while (next_item_ < order_.size()) {
    const auto [local, k] = order_[next_item_];
    StageWork& work = work_[k];
    while (next_run_ < work.runs.size() &&
           work.runs[next_run_].tier != Tier::kHost) {
      ++next_run_;
    }
    if (next_run_ >= work.runs.size()) {
      ++next_item_;
      next_run_ = 0;
      continue;
    }
    if (next_item_ > item || (next_item_ == item && next_run_ > run)) break;
    const SegmentRun& next = work.runs[next_run_];
    const auto members =
        std::span<DeviceKvStager::Member>(work.members)
            .subspan(static_cast<size_t>(next.first), next.count);
    for (DeviceKvStager::Member& member : members) {
      member.kv = options_.host_kv->LayerBase(local);
    }
    SLUICE_ASSIGN_OR_RETURN(const bool loaded,
                            options_.staged->Load(local, members, wait));
    if (!loaded) {
      if (!wait) break;
      return absl::InternalError("no room for a group of KV on the device");
    }
    ++next_run_;
  }
  return absl::OkStatus();
}

absl::Status DeviceAttention::FinishStaged(size_t item) {
  const auto [local, k] = order_[item];
  StageWork& work = work_[k];
  DeviceKvStager& staged = *options_.staged;
  for (size_t r = 0; r < work.runs.size(); ++r) {
    if (work.runs[r].tier != Tier::kHost) continue;
    SLUICE_RETURN_IF_ERROR(LoadUpTo(item, r, true));
    SLUICE_RETURN_IF_ERROR(staged.Take(work.segments));
    if (options_.overlap) {
      SLUICE_RETURN_IF_ERROR(LoadUpTo(item, kAllRuns, false));
    }
    SLUICE_RETURN_IF_ERROR(Attend(item, work.runs[r]));
    SLUICE_RETURN_IF_ERROR(staged.Put());
    if (!options_.overlap) SLUICE_RETURN_IF_ERROR(staged.Flush());
  }
  std::vector<DeviceKvStager::Member> members;
  for (const SegmentRun& run : work.runs) {
    if (run.tier != Tier::kDisk) continue;
    const KvStager::Group* group = nullptr;
    SLUICE_RETURN_IF_ERROR(options_.disk->Take(work.segments, &group));
    members.assign(work.members.begin() + run.first,
                   work.members.begin() + run.first + run.count);
    for (DeviceKvStager::Member& member : members) {
      // Where the group from disk has them.
      member.kv = work.segments[member.segment].kv;
      member.pages = work.segments[member.segment].pages;
    }
    SLUICE_ASSIGN_OR_RETURN(const bool loaded,
                            staged.Load(local, members, true));
    if (!loaded) {
      return absl::InternalError("no room for a group of KV on the device");
    }
    SLUICE_RETURN_IF_ERROR(staged.Take(work.segments));
    SLUICE_RETURN_IF_ERROR(Attend(item, run));
    SLUICE_RETURN_IF_ERROR(staged.Put());
    // The disk gets what the host has.
    SLUICE_RETURN_IF_ERROR(staged.Flush());
    options_.disk->Put();
    options_.disk->ReadAhead();
  }
  return options_.overlap ? LoadUpTo(item + 1, kAllRuns, false)
                          : absl::OkStatus();
}

void DeviceAttention::Reset() {
  if (options_.on_host != nullptr) options_.on_host->Drain();
  if (options_.staged != nullptr) options_.staged->Reset();
}

}  // namespace sluice
