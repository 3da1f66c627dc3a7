#include "runtime/exec/weights/device_weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/status_macros.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/trace/trace.h"

namespace sluice {
namespace {

// Part of a unit that is on the copy stream at a time.
constexpr size_t kCopyBytes = size_t{4} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::Load(
    WeightStore::Options store, int slots, size_t slot_bytes,
    const WeightStore::Progress& progress) {
  std::unique_ptr<DeviceWeights> self(new DeviceWeights(store.context));
  store.to_device = [to = self.get()](int unit,
                                      std::span<const std::byte> bytes) {
    return to->Keep(unit, bytes);
  };
  // This object's thread reads, beside the one that computes.
  store.context.pool = nullptr;
  SLUICE_ASSIGN_OR_RETURN(self->store_, WeightStore::Load(store, progress));
  SLUICE_RETURN_IF_ERROR(self->Start(slots, slot_bytes));
  return self;
}

DeviceWeights::~DeviceWeights() {
  if (!streams_) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

absl::Status DeviceWeights::Keep(int unit, std::span<const std::byte> prefix) {
  if (units_.size() <= static_cast<size_t>(unit)) units_.resize(unit + 1);
  Unit& u = units_[unit];
  u.resident = DeviceBuffer();  // of a packed unit that was damaged
  SLUICE_ASSIGN_OR_RETURN(u.resident,
                          context_.device->Allocate("weights", prefix.size()));
  IoCompletion done;
  done.Expect(1);
  context_.device->CopyIn(u.resident.span(), prefix, &done,
                          {"weights", {{{"unit", unit}}}});
  return done.Wait();
}

absl::Status DeviceWeights::Start(int slots, size_t slot_bytes) {
  units_.resize(store_->num_units());
  for (int i = 0; i < store_->num_units(); ++i) {
    const UnitPlacement& place = store_->placement()[i];
    units_[i].Set(place.bytes, place.device_end, place.device_split);
  }
  if (slot_bytes == 0) return absl::OkStatus();
  {
    MutexLock lock(&mu_);
    slots_.resize(slots);
    for (Slot& slot : slots_) {
      SLUICE_ASSIGN_OR_RETURN(
          slot.buffer, context_.device->Allocate("weight slots", slot_bytes));
    }
    order_ = FirstSweep();
    SkipResident();
  }
  streams_ = true;
  thread_ = Thread("weights", [this] { Loop(); });
  return absl::OkStatus();
}

void DeviceWeights::BeginStep(int layer_passes, int head_passes) {
  if (!streams_) return;
  MutexLock lock(&mu_);
  order_.Begin(layer_passes, head_passes);
  SkipResident();
  sweeps_.emplace_back(layer_passes, head_passes);
  changed_.NotifyAll();
}

void DeviceWeights::SkipResident() {
  while (order_.unit() >= 0 && !units_[order_.unit()].streamed()) {
    order_.Next();
  }
}

DeviceWeights::Slot* DeviceWeights::FreeSlot() {
  for (Slot& slot : slots_) {
    if (slot.unit < 0) return &slot;
  }
  return nullptr;
}

bool DeviceWeights::WaitsForMore() {
  const int wanted = wanted_;
  return wanted >= 0 &&
         std::none_of(slots_.begin(), slots_.end(),
                      [&](const Slot& slot) { return slot.unit == wanted; });
}

void DeviceWeights::Loop() {
  mu_.Lock();
  while (!stopping_) {
    if (resetting_) {
      store_->Reset();
      for (Slot& slot : slots_) slot.unit = -1;
      queue_.clear();
      order_ = FirstSweep();
      SkipResident();
      sweeps_.clear();
      wanted_ = -1;
      status_ = absl::OkStatus();
      resetting_ = false;
      changed_.NotifyAll();
    }
    Slot* slot = FreeSlot();
    const int unit = order_.unit();
    if (slot == nullptr || !status_.ok() || unit < 0 ||
        (!context_.overlap && !WaitsForMore())) {
      changed_.Wait(&mu_);
      continue;
    }
    slot->unit = unit;
    slot->full = false;
    queue_.push_back(static_cast<int>(slot - slots_.data()));
    order_.Next();
    SkipResident();
    for (; !sweeps_.empty(); sweeps_.pop_front()) {
      store_->BeginStep(sweeps_.front().first, sweeps_.front().second);
    }
    // The slot is this thread's own until it is full.
    const Slot& filling = *slot;
    mu_.Unlock();
    const absl::Status status = Fill(unit, filling);
    mu_.Lock();
    slot->full = true;
    read_bytes_ = store_->totals().read_bytes;
    status_.Update(status);
    changed_.NotifyAll();
  }
  mu_.Unlock();
}

StreamTotals DeviceWeights::totals() const {
  MutexLock lock(&mu_);
  return {.stall_seconds = stall_seconds_, .read_bytes = read_bytes_};
}

bool DeviceWeights::layers_stay() const {
  return std::none_of(units_.begin(), units_.begin() + num_layer_units_,
                      [](const Unit& unit) { return unit.streamed(); });
}

absl::Status DeviceWeights::Fill(int index, const Slot& slot) {
  const Unit& unit = units_[index];
  SLUICE_ASSIGN_OR_RETURN(const PackedView host, store_->Acquire(index));
  store_->ReadAhead(1);
  std::array<IoCompletion, kInFlight> pieces;
  absl::Status status;
  std::byte* to = slot.buffer.as<std::byte>();
  // The head of the part that the cut goes through.
  if (unit.kept_end > unit.split) {
    pieces[0].Expect(1);
    context_.device->CopyWithin(
        {to + (unit.split - unit.slot_begin), unit.kept_end - unit.split},
        {unit.resident.as<std::byte>() + unit.split,
         unit.kept_end - unit.split},
        &pieces[0]);
    status = pieces[0].Wait();
  }
  size_t at = unit.kept_end;
  for (int i = 0; status.ok() && at < unit.bytes; i = (i + 1) % kInFlight) {
    status.Update(pieces[i].Wait());
    size_t end = std::min(unit.bytes, at + kCopyBytes);
    if (at < host.split) end = std::min(end, host.split);
    pieces[i].Expect(1);
    context_.device->CopyIn({to + (at - unit.slot_begin), end - at},
                            {host.At(at), end - at}, &pieces[i],
                            {"weights", {{{"unit", index}}}});
    at = end;
  }
  for (IoCompletion& piece : pieces) status.Update(piece.Wait());
  status.Update(store_->Release(index));
  store_->ReadAhead(1);
  return status;
}

absl::StatusOr<PackedView> DeviceWeights::Acquire(int index) {
  Unit& unit = units_[index];
  PackedView view{unit.resident.as<std::byte>(), nullptr, unit.split,
                  unit.slot_begin};
  if (!unit.streamed()) return view;
  MutexLock lock(&mu_);
  wanted_ = index;
  changed_.NotifyAll();
  const int64_t start = TraceNow();
  bool waited = false;
  while (status_.ok()) {
    if (queue_.empty() || !slots_[queue_.front()].full) {
      waited = true;
      changed_.Wait(&mu_);
      continue;
    }
    Slot& next = slots_[queue_.front()];
    if (units_[next.unit].skipped == 0) break;
    --units_[next.unit].skipped;
    next.unit = -1;
    queue_.pop_front();
    changed_.NotifyAll();
  }
  if (waited) {
    stall_seconds_ += static_cast<double>(TraceNow() - start) * 1e-9;
  }
  wanted_ = -1;
  SLUICE_RETURN_IF_ERROR(status_);
  const Slot& slot = slots_[queue_.front()];
  if (slot.unit != index) {
    return Internal("weights of unit ", index, " are not next");
  }
  unit.held_slot = queue_.front();
  queue_.pop_front();
  view.high = slot.buffer.as<std::byte>();
  return view;
}

absl::Status DeviceWeights::Skip(int index) {
  if (units_[index].streamed()) ++units_[index].skipped;
  return absl::OkStatus();
}

absl::Status DeviceWeights::Release(int index) {
  int& held = units_[index].held_slot;
  if (held < 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(context_.compute->Finish());
  MutexLock lock(&mu_);
  slots_[held].unit = -1;
  held = -1;
  changed_.NotifyAll();
  return absl::OkStatus();
}

void DeviceWeights::Reset() {
  if (!streams_) return;
  MutexLock lock(&mu_);
  resetting_ = true;
  changed_.NotifyAll();
  while (resetting_) changed_.Wait(&mu_);
  for (Unit& unit : units_) {
    unit.held_slot = -1;
    unit.skipped = 0;
  }
}

}  // namespace sluice
