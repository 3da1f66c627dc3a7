#include "runtime/exec/weights/weight_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/blocks.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "runtime/exec/timed.h"
#include "runtime/weights/packed_weights.h"

namespace sluice {
namespace {

// Part of a packed unit that is loaded at a time.
constexpr size_t kLoadBytes = size_t{16} << 20;

}  // namespace

WeightStore::~WeightStore() {
  for (Slot& slot : slots_) {
    if (slot.done != nullptr) slot.done->Wait().IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<WeightStore>> WeightStore::Load(
    const Options& options, const Progress& progress) {
  std::unique_ptr<WeightStore> self(new WeightStore(options));
  SLUICE_RETURN_IF_ERROR(self->LoadUnits(progress));
  return self;
}

std::string WeightStore::NameOf(int packed) const {
  const LayerRange layers = options_.context.layers;
  if (packed < layers.size()) {
    return absl::StrFormat("layer-%04d", layers.begin + packed);
  }
  return known().num_packed() == layers.size() + 1
             ? "head"
             : absl::StrFormat("head-%04d", packed - layers.size());
}

std::string WeightStore::LabelOf(int packed) const {
  const LayerRange layers = options_.context.layers;
  return packed < layers.size()
             ? absl::StrCat("weights layer ", layers.begin + packed)
             : NameOf(packed);
}

absl::Status WeightStore::LoadUnits(const Progress& progress) {
  units_.resize(num_units());
  files_.resize(known().num_packed());
  for (int packed = 0; packed < known().num_packed(); ++packed) {
    SLUICE_RETURN_IF_ERROR(
        Annotate(LoadPacked(packed, progress), NameOf(packed)));
  }
  if (!streams()) return absl::OkStatus();
  // Two at least: one in use, one being filled.
  slots_.resize(options_.slots);
  for (Slot& slot : slots_) {
    SLUICE_ASSIGN_OR_RETURN(
        slot.buffer,
        HostBuffer::Create("weight slots", options_.slot_bytes,
                           options_.context.memory, options_.context.device));
    slot.done = std::make_unique<IoCompletion>();
  }
  Reset();
  return absl::OkStatus();
}

absl::Status WeightStore::Pack(int index, const Progress& progress,
                               const PackedWindow& to) {
  PackedWeights& packed = *options_.context.packed;
  if (index < options_.context.layers.size()) {
    return packed.PackLayer(options_.context.layers.begin + index,
                            *options_.source, progress, to);
  }
  return packed.PackHead(index - options_.context.layers.size(),
                         *options_.source, progress, to);
}

absl::Status WeightStore::LoadPacked(int packed, const Progress& progress) {
  const int begin = known().first[packed], end = known().first[packed + 1];
  const auto load = [&](absl::FunctionRef<absl::Status(int)> unit) {
    for (int i = begin; i < end; ++i) {
      SLUICE_RETURN_IF_ERROR(unit(i));
      if (options_.units[i].device_end > 0) {
        SLUICE_RETURN_IF_ERROR(MoveToDevice(i));
      }
      units_[i].resident.PinFor(options_.context.device);
    }
    return absl::OkStatus();
  };
  for (int i = begin; i < end; ++i) {
    const UnitPlacement& place = options_.units[i];
    units_[i].begin = known().all[i].begin;
    units_[i].packed = packed;
    const bool on_disk = options_.packed_files != nullptr;
    units_[i].Set(place.bytes, on_disk ? place.host_end : place.bytes,
                  on_disk ? place.host_split : place.bytes);
  }
  if (options_.packed_files == nullptr) {
    return load([&](int i) -> absl::Status {
      Unit& unit = units_[i];
      SLUICE_ASSIGN_OR_RETURN(unit.resident,
                              HostBuffer::Create(LabelOf(packed), unit.bytes,
                                                 options_.context.memory));
      return Pack(
          packed, progress,
          {unit.resident.as<std::byte>(), unit.begin, unit.begin + unit.bytes});
    });
  }
  bool is_new = false;
  SLUICE_ASSIGN_OR_RETURN(
      files_[packed],
      options_.packed_files->Get(
          NameOf(packed), known().packed_bytes(packed),
          [&](const PackedWindow& to) {
            is_new = true;
            for (int i = begin; i < end; ++i) units_[i].resident = HostBuffer();
            return Pack(packed, progress, to);
          },
          [&](const PackedFile& file) {
            return load([&](int i) { return ReadResident(i, file); });
          }));
  return is_new ? absl::OkStatus() : progress(known().packed_bytes(packed));
}

absl::Status WeightStore::ReadResident(int index, const PackedFile& packed) {
  Unit& unit = units_[index];
  const size_t resident = options_.units[index].host_end;
  unit.resident_begin = 0;
  if (resident == 0) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(unit.resident,
                          HostBuffer::Create(LabelOf(unit.packed), resident,
                                             options_.context.memory));
  IoCompletion done;
  for (size_t begin = 0; begin < resident; begin += kLoadBytes) {
    const size_t size = std::min(kLoadBytes, resident - begin);
    done.Expect(1);
    options_.context.io->Read(
        packed.file(), packed.packed_offset() + unit.begin + begin,
        {unit.resident.as<std::byte>() + begin, size}, &done, {"weights"});
    SLUICE_RETURN_IF_ERROR(done.Wait());
  }
  return packed.Check(unit.begin, {unit.resident.as<std::byte>(), resident});
}

absl::Status WeightStore::MoveToDevice(int index) {
  Unit& unit = units_[index];
  const size_t begin = options_.units[index].device_end;
  const size_t rest = options_.units[index].host_end - begin;
  SLUICE_RETURN_IF_ERROR(
      options_.to_device(index, {unit.resident.as<std::byte>(), begin}));
  HostBuffer kept;
  if (rest > 0) {
    SLUICE_ASSIGN_OR_RETURN(kept, HostBuffer::Create(LabelOf(unit.packed), rest,
                                                     options_.context.memory));
    std::memcpy(kept.data(), unit.resident.as<std::byte>() + begin, rest);
  }
  unit.resident = std::move(kept);
  unit.resident_begin = begin;
  return absl::OkStatus();
}

void WeightStore::BeginStep(int layer_passes, int head_passes) {
  order_.Begin(layer_passes, head_passes);
  if (streams()) SkipResident();
}

void WeightStore::SkipResident() {
  while (order_.unit() >= 0 &&
         (!units_[order_.unit()].streamed() || units_[order_.unit()].skipped)) {
    units_[order_.unit()].skipped = false;
    order_.Next();
  }
}

void WeightStore::Begin(Slot& slot, int unit) {
  const Unit& u = units_[unit];
  slot.unit = unit;
  slot.issued = u.kept_end;
  // The head of the panel that the cut goes through.
  const size_t head = std::max(u.split, u.resident_begin);
  if (u.kept_end > head) {
    std::memcpy(slot.buffer.as<std::byte>() + (head - u.slot_begin),
                u.resident.as<std::byte>() + (head - u.resident_begin),
                u.kept_end - head);
  }
  filling_.push_back(static_cast<int>(&slot - slots_.data()));
  order_.Next();
  SkipResident();
}

void WeightStore::Issue(Slot& slot, size_t end) {
  const Unit& unit = units_[slot.unit];
  if (end <= slot.issued) return;
  slot.done->Expect(1);
  const PackedFile& file = *files_[unit.packed];
  options_.context.io->Read(
      file.file(), file.packed_offset() + unit.begin + slot.issued,
      {slot.buffer.as<std::byte>() + (slot.issued - unit.slot_begin),
       end - slot.issued},
      slot.done.get(), {"weights", {{{"unit", slot.unit}}}});
  totals_.read_bytes += end - slot.issued;
  slot.issued = end;
}

void WeightStore::ReadAhead(double share) {
  if (!streams() || !options_.context.overlap) return;
  for (Slot& slot : slots_) {
    const int next = order_.ahead();
    if (next < 0) break;
    if (slot.unit < 0) Begin(slot, next);
  }
  // All slots but the last are filled wholly: it is their turn before.
  for (size_t i = 0; i < filling_.size(); ++i) {
    Slot& slot = slots_[filling_[i]];
    const Unit& unit = units_[slot.unit];
    const size_t bytes = unit.bytes;
    size_t end = bytes;
    if (i + 1 == filling_.size() && share < 1) {
      end = unit.kept_end +
            RoundDownToDiskBlock(static_cast<size_t>(
                share * static_cast<double>(bytes - unit.kept_end)));
    }
    Issue(slot, end);
  }
}

absl::StatusOr<PackedView> WeightStore::Acquire(int index) {
  Unit& unit = units_[index];
  if (!unit.streamed()) return View(unit, nullptr);
  Slot* slot = nullptr;
  if (!filling_.empty()) {
    slot = &slots_[filling_.front()];
  } else if (order_.unit() == index) {
    for (Slot& candidate : slots_) {
      if (candidate.unit < 0) slot = &candidate;
    }
    if (slot == nullptr) {
      return absl::InternalError("all slots for weights are in use");
    }
    Begin(*slot, index);
  }
  if (slot == nullptr || slot->unit != index) {
    return Internal("weights of ", NameOf(unit.packed), " are not next");
  }
  Issue(*slot, unit.bytes);
  SLUICE_RETURN_IF_ERROR(WaitTimed(*slot->done, &totals_.stall_seconds));
  filling_.pop_front();
  unit.held_slot = static_cast<int>(slot - slots_.data());
  SLUICE_RETURN_IF_ERROR(CheckStreamed(unit, *slot));
  return View(unit, slot);
}

absl::Status WeightStore::CheckStreamed(const Unit& unit, const Slot& slot) {
  const size_t bytes = unit.bytes;
  const PackedFile& file = *files_[unit.packed];
  const size_t granule = file.granule();
  const size_t begin = unit.kept_end;
  // A task checks sixteen granules.
  const size_t piece = 16 * granule;
  const int tasks = static_cast<int>((bytes - begin + piece - 1) / piece);
  Mutex mu;
  absl::Status first;
  const auto check = [&](int task, int) {
    const size_t from = begin + task * piece;
    const size_t size = std::min(piece, bytes - from);
    const absl::Status status = file.Check(
        unit.begin + from,
        {slot.buffer.as<std::byte>() + (from - unit.slot_begin), size});
    if (status.ok()) return;
    MutexLock lock(&mu);
    if (first.ok()) first = status;
  };
  if (options_.context.pool != nullptr) {
    options_.context.pool->ParallelFor(tasks, check);
  } else {
    for (int task = 0; task < tasks; ++task) check(task, 0);
  }
  // The next load makes a damaged packed unit anew.
  if (!first.ok()) file.Remove();
  return first;
}

PackedView WeightStore::View(const Unit& unit, const Slot* slot) const {
  // Without a byte in memory, nothing is below the split but what the device
  // has.
  const std::byte* resident = unit.resident.as<std::byte>();
  return {resident == nullptr ? nullptr : resident - unit.resident_begin,
          slot == nullptr ? nullptr : slot->buffer.as<std::byte>(), unit.split,
          unit.slot_begin};
}

absl::Status WeightStore::Skip(int index) {
  Unit& unit = units_[index];
  if (!unit.streamed()) return absl::OkStatus();
  for (size_t i = 0; i < filling_.size(); ++i) {
    Slot& slot = slots_[filling_[i]];
    if (slot.unit != index) continue;
    // What is on its way has to arrive.
    SLUICE_RETURN_IF_ERROR(WaitTimed(*slot.done, &totals_.stall_seconds));
    slot.unit = -1;
    filling_.erase(filling_.begin() + static_cast<int64_t>(i));
    return absl::OkStatus();
  }
  unit.skipped = true;
  SkipResident();
  return absl::OkStatus();
}

absl::Status WeightStore::Release(int index) {
  int& held = units_[index].held_slot;
  if (held >= 0) slots_[held].unit = -1;
  held = -1;
  return absl::OkStatus();
}

bool WeightStore::layers_stay() const {
  return std::none_of(units_.begin(), units_.begin() + num_layer_units(),
                      [](const Unit& unit) { return unit.streamed(); });
}

void WeightStore::Reset() {
  if (!streams()) return;
  for (Slot& slot : slots_) {
    slot.done->Wait().IgnoreError();
    slot.unit = -1;
  }
  for (Unit& unit : units_) {
    unit.held_slot = -1;
    unit.skipped = false;
  }
  filling_.clear();
  order_ = UnitOrder(num_layer_units(), num_units() - num_layer_units());
  SkipResident();
  ReadAhead(1);
}

}  // namespace sluice
