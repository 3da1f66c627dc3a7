#include "runtime/exec/kv/device_kv_stager.h"

#include <algorithm>

#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/placement/buffer_sizes.h"

namespace sluice {

DeviceKvStager::DeviceKvStager(Options options)
    : KvStaging(options.layout, options.slots, options.group_pages, Tier::kHost,
                options.context.overlap),
      options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<DeviceKvStager>> DeviceKvStager::Create(
    Options options) {
  std::unique_ptr<DeviceKvStager> self(new DeviceKvStager(std::move(options)));
  const Options& o = self->options_;
  const size_t bytes = KvSlotBytes(self->page_bytes(), o.group_pages);
  for (int i = 0; i < o.slots; ++i) {
    SLUICE_ASSIGN_OR_RETURN(self->slots_.emplace_back(),
                            o.context.device->Allocate("kv staging", bytes));
    self->group(i).data = self->slots_.back().as<std::byte>();
  }
  return self;
}

int64_t DeviceKvStager::max_run_pages(Tier tier) const {
  return tier == Tier::kDisk && options_.disk != nullptr
             ? std::min(options_.group_pages,
                        options_.disk->max_run_pages(tier))
             : options_.group_pages;
}

void DeviceKvStager::BeginStep(StepWork* step) {
  if (options_.disk != nullptr) options_.disk->BeginStep(step);
  KvStaging::BeginStep(step);
}

void DeviceKvStager::ReadAhead() {
  if (options_.disk != nullptr) options_.disk->ReadAhead();
  KvStaging::ReadAhead();
}

absl::StatusOr<bool> DeviceKvStager::Place(Group* group, size_t, bool wait) {
  if (group->run.tier == Tier::kHost) {
    for (KvSegment& kv : group->kv) {
      kv.kv = options_.host.LayerBase(group->place);
    }
    return true;
  }
  if (!wait) return false;
  SLUICE_RETURN_IF_ERROR(options_.disk->Acquire(group->item, group->run));
  const BatchWork& work = step().batch_of(group->item);
  for (int32_t i = 0; i < group->run.count; ++i) {
    const SegmentView& in_memory = work.segments[group->run.first + i];
    group->kv[i].kv = in_memory.kv;
    group->kv[i].pages = in_memory.pages;
  }
  return true;
}

void DeviceKvStager::Load(Group* group, const KvSegment& kv, int32_t page,
                          std::span<std::byte> data) {
  options_.context.device->CopyIn(
      data, {kv.kv + page * page_bytes(), data.size()}, &group->in,
      {"kv", {{{"layer", group->layer}}}});
}

void DeviceKvStager::Store(Group* group, const KvSegment& kv, int32_t page,
                           std::span<const std::byte> data) {
  options_.context.device->CopyOut({kv.kv + page * page_bytes(), data.size()},
                                   data, &group->out,
                                   {"kv", {{{"layer", group->layer}}}});
}

absl::Status DeviceKvStager::Release() {
  SLUICE_RETURN_IF_ERROR(options_.context.compute->Finish());
  Group& done = acquired();
  const bool on_disk = done.run.tier == Tier::kDisk;
  SLUICE_RETURN_IF_ERROR(KvStaging::Release());
  if (!on_disk && options_.context.overlap) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(WaitTimed(done.out, &totals_.stall_seconds));
  // The disk gets what the host has.
  return on_disk ? options_.disk->Release() : absl::OkStatus();
}

void DeviceKvStager::Reset() {
  KvStaging::Reset();
  if (options_.disk != nullptr) options_.disk->Reset();
  options_.host.Trim();
}

StreamTotals DeviceKvStager::totals() const {
  StreamTotals sum = totals_;
  if (options_.disk != nullptr) sum += options_.disk->totals();
  return sum;
}

}  // namespace sluice
