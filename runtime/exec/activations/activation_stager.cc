#include "runtime/exec/activations/activation_stager.h"

#include <cstring>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/exec/timed.h"

namespace sluice {
absl::StatusOr<std::unique_ptr<ActivationStager>> ActivationStager::Create(
    const Options& options) {
  std::unique_ptr<ActivationStager> self(new ActivationStager(options));
  const ActivationShape& shape = options.shape;
  const StreamContext& context = options.context;
  self->memory_stride_ = shape.memory_bytes() / shape.num_batches;
  self->disk_stride_ = shape.disk_bytes() / shape.num_batches;
  SLUICE_ASSIGN_OR_RETURN(
      self->memory_,
      HostBuffer::Create("activations", shape.memory_bytes(), context.memory));
  SLUICE_ASSIGN_OR_RETURN(
      self->staging_,
      HostBuffer::Create("activation staging", shape.staging_bytes(),
                         context.memory, context.device));
  for (size_t i = 0; i < kSlots; ++i) {
    self->slots_[i].data =
        self->staging_.as<std::byte>() + i * (shape.staging_bytes() / kSlots);
  }
  SLUICE_ASSIGN_OR_RETURN(
      self->file_, DiskFile::CreateTemporary(context.disk_dir, "activations",
                                             shape.disk_bytes(), context.disk));
  return self;
}

ActivationStager::~ActivationStager() { Reset(); }

absl::Status ActivationStager::BeginStep(std::span<const int32_t> batches,
                                         std::span<const int32_t> rows) {
  Reset();
  const ActivationShape& shape = options_.shape;
  if (rows.size() > static_cast<size_t>(shape.num_batches)) {
    return InvalidArgument("a step of ", rows.size(),
                           " micro-batches, but there is ",
                           "room for activations of ", shape.num_batches);
  }
  for (const int32_t n : rows) {
    if (n > shape.max_rows) {
      return InvalidArgument("a micro-batch of ", n,
                             " rows, but there is room for ", shape.max_rows);
    }
  }
  rows_.assign(rows.begin(), rows.end());
  stored_by_.assign(rows.size(), 0);
  turns_.clear();
  // The number of turns up to each micro-batch's last one so far.
  std::vector<size_t> last(rows.size(), 0);
  for (const int32_t batch : batches) {
    if (!turns_.empty() && turns_.back().batch == batch) continue;
    if (last[batch] > 0) turns_[last[batch] - 1].store = true;
    turns_.push_back({.batch = batch, .load = last[batch] > 0});
    last[batch] = turns_.size();
  }
  return absl::OkStatus();
}

std::array<IoCompletion*, 2> ActivationStager::WritesBefore() {
  const Turn& turn = turns_[brought_];
  IoCompletion* const slot = &SlotOf(brought_).written;
  // A slot that has been used again since was found written then.
  if (!turn.load || stored_by_[turn.batch] + kSlots < brought_) {
    return {slot, slot};
  }
  return {slot, &SlotOf(stored_by_[turn.batch]).written};
}

void ActivationStager::Move(size_t turn, bool in) {
  const int32_t batch = turns_[turn].batch;
  Slot& slot = SlotOf(turn);
  const uint64_t bytes =
      uint64_t{sizeof(float)} * rows_[batch] * options_.shape.hidden;
  const uint64_t in_memory = options_.shape.MemoryPart(bytes);
  const uint64_t on_disk = RoundUpToDiskBlock(bytes - in_memory);
  IoEngine& io = *options_.context.io;
  if (on_disk > 0) {
    const uint64_t at = batch * disk_stride_;
    const std::span<std::byte> part = {slot.data + in_memory, on_disk};
    const IoLabel label = {"activations", {{{"micro_batch", batch}}}};
    (in ? slot.read : slot.written).Expect(1);
    if (in) {
      io.Read(*file_, at, part, &slot.read, label);
    } else {
      io.Write(*file_, at, part, &slot.written, label);
    }
    (in ? totals_.read_bytes : totals_.write_bytes) += on_disk;
  }
  std::byte* const kept = memory_.as<std::byte>() + batch * memory_stride_;
  std::memcpy(in ? slot.data : kept, in ? kept : slot.data, in_memory);
}

void ActivationStager::Bring() {
  if (turns_[brought_].load) Move(brought_, true);
  ++brought_;
}

void ActivationStager::Store(size_t turn) {
  if (!turns_[turn].store) return;
  Move(turn, false);
  stored_by_[turns_[turn].batch] = turn;
}

absl::StatusOr<float*> ActivationStager::Acquire(int32_t batch) {
  if (next_ > 0 && turns_[next_ - 1].batch == batch) {
    return reinterpret_cast<float*>(SlotOf(next_ - 1).data);
  }
  if (next_ == turns_.size() || turns_[next_].batch != batch) {
    return Internal("it is not the turn of micro-batch ", batch);
  }
  if (next_ > 0) {
    Store(next_ - 1);
    if (!options_.context.overlap) {
      SLUICE_RETURN_IF_ERROR(
          WaitTimed(SlotOf(next_ - 1).written, &totals_.stall_seconds));
    }
  }
  if (brought_ == next_) {
    for (IoCompletion* write : WritesBefore()) {
      SLUICE_RETURN_IF_ERROR(WaitTimed(*write, &totals_.stall_seconds));
    }
    Bring();
  }
  Slot& slot = SlotOf(next_);
  SLUICE_RETURN_IF_ERROR(WaitTimed(slot.read, &totals_.stall_seconds));
  ++next_;
  return reinterpret_cast<float*>(slot.data);
}

void ActivationStager::ReadAhead() {
  if (!options_.context.overlap || next_ == 0 || brought_ > next_ ||
      brought_ == turns_.size()) {
    return;
  }
  // An error shows when the turn is taken.
  for (IoCompletion* write : WritesBefore()) {
    if (!write->ready() || !write->status().ok()) return;
  }
  Bring();
}

void ActivationStager::Reset() {
  for (Slot& slot : slots_) {
    for (IoCompletion* done : {&slot.read, &slot.written}) {
      done->Wait().IgnoreError();
      // This begins a new round, without the old one's error.
      done->Expect(1);
      done->Done(absl::OkStatus());
    }
  }
  turns_.clear();
  next_ = brought_ = 0;
}

}  // namespace sluice
