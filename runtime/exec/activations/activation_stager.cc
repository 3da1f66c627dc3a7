#include "runtime/exec/activations/activation_stager.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/timed.h"

namespace sluice {
absl::StatusOr<std::unique_ptr<ActivationStager>> ActivationStager::Create(
    const Options& options) {
  std::unique_ptr<ActivationStager> self(new ActivationStager(options));
  const ActivationShape& shape = options.shape;
  self->memory_stride_ = shape.memory_bytes() / shape.num_batches;
  self->disk_stride_ = shape.disk_bytes() / shape.num_batches;
  SLUICE_ASSIGN_OR_RETURN(
      self->memory_,
      HostBuffer::Create("activations", shape.memory_bytes(), options.memory));
  SLUICE_ASSIGN_OR_RETURN(
      self->staging_,
      HostBuffer::Create("activation staging", shape.staging_bytes(),
                         options.memory, options.copies));
  for (size_t i = 0; i < kSlots; ++i) {
    self->slots_[i].data =
        self->staging_.as<std::byte>() + i * (shape.staging_bytes() / kSlots);
  }
  SLUICE_ASSIGN_OR_RETURN(
      self->file_, DiskFile::CreateTemporary(options.disk_dir, "activations",
                                             shape.disk_bytes(), options.disk));
  return self;
}

ActivationStager::~ActivationStager() { Reset(); }

uint64_t ActivationStager::StreamBytes(int32_t batch) const {
  return uint64_t{sizeof(float)} * rows_[batch] * options_.shape.hidden;
}

absl::Status ActivationStager::BeginStep(std::span<const int32_t> batches,
                                         std::span<const int32_t> rows) {
  Reset();
  const ActivationShape& shape = options_.shape;
  if (rows.size() > static_cast<size_t>(shape.num_batches)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows.size(), " micro-batches, but there is ",
                     "room for activations of ", shape.num_batches));
  }
  for (const int32_t n : rows) {
    if (n > shape.max_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("a micro-batch of ", n, " rows, but there is room for ",
                       shape.max_rows));
    }
  }
  rows_.assign(rows.begin(), rows.end());
  stored_by_.assign(rows.size(), 0);
  turns_.clear();
  // By micro-batch: its turn so far, and one more.
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

void ActivationStager::Bring() {
  const Turn& t = turns_[brought_];
  Slot& slot = SlotOf(brought_);
  ++brought_;
  if (!t.load) return;
  const uint64_t bytes = StreamBytes(t.batch);
  const uint64_t in_memory = options_.shape.MemoryPart(bytes);
  const uint64_t on_disk = RoundUpToDisk(bytes - in_memory);
  if (on_disk > 0) {
    slot.read.Expect(1);
    options_.io->Read(*file_, t.batch * disk_stride_,
                      {slot.data + in_memory, on_disk}, &slot.read,
                      {"activations", {{{"micro_batch", t.batch}}}});
    if (options_.read_bytes != nullptr) *options_.read_bytes += on_disk;
  }
  std::memcpy(slot.data, memory_.as<std::byte>() + t.batch * memory_stride_,
              in_memory);
}

void ActivationStager::Store(size_t turn) {
  const Turn& t = turns_[turn];
  if (!t.store) return;
  Slot& slot = SlotOf(turn);
  const uint64_t bytes = StreamBytes(t.batch);
  const uint64_t in_memory = options_.shape.MemoryPart(bytes);
  const uint64_t on_disk = RoundUpToDisk(bytes - in_memory);
  if (on_disk > 0) {
    slot.written.Expect(1);
    options_.io->Write(*file_, t.batch * disk_stride_,
                       {slot.data + in_memory, on_disk}, &slot.written,
                       {"activations", {{{"micro_batch", t.batch}}}});
    if (options_.write_bytes != nullptr) *options_.write_bytes += on_disk;
  }
  std::memcpy(memory_.as<std::byte>() + t.batch * memory_stride_, slot.data,
              in_memory);
  stored_by_[t.batch] = turn;
}

absl::StatusOr<float*> ActivationStager::Take(int32_t batch) {
  if (next_ > 0 && turns_[next_ - 1].batch == batch) {
    return reinterpret_cast<float*>(SlotOf(next_ - 1).data);
  }
  if (next_ == turns_.size() || turns_[next_].batch != batch) {
    return absl::InternalError(
        absl::StrCat("it is not the turn of micro-batch ", batch));
  }
  if (next_ > 0) {
    Store(next_ - 1);
    if (!options_.overlap) {
      SLUICE_RETURN_IF_ERROR(
          WaitTimed(SlotOf(next_ - 1).written, options_.stall_seconds));
    }
  }
  if (brought_ == next_) {
    for (IoCompletion* write : WritesBefore()) {
      SLUICE_RETURN_IF_ERROR(WaitTimed(*write, options_.stall_seconds));
    }
    Bring();
  }
  Slot& slot = SlotOf(next_);
  SLUICE_RETURN_IF_ERROR(WaitTimed(slot.read, options_.stall_seconds));
  ++next_;
  return reinterpret_cast<float*>(slot.data);
}

void ActivationStager::ReadAhead() {
  if (!options_.overlap || next_ == 0 || brought_ > next_ ||
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
      // A new round, without the old one's error.
      done->Expect(1);
      done->Done(absl::OkStatus());
    }
  }
  turns_.clear();
  next_ = brought_ = 0;
}

}  // namespace sluice
