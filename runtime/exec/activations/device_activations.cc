#include "runtime/exec/activations/device_activations.h"

#include <cstring>
#include <utility>

#include "common/status_macros.h"
#include "runtime/exec/timed.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<DeviceActivations>> DeviceActivations::Create(
    const StreamContext& context, Options options) {
  std::unique_ptr<DeviceActivations> self(
      new DeviceActivations(context, std::move(options)));
  const Options& o = self->options_;
  const size_t bytes =
      static_cast<size_t>(context.max_rows * context.hidden_size) *
      sizeof(float);
  const auto make =
      [&](int count,
          std::vector<std::unique_ptr<Slot>>* slots) -> absl::Status {
    for (int i = 0; i < count; ++i) {
      slots->push_back(std::make_unique<Slot>());
      SLUICE_ASSIGN_OR_RETURN(slots->back()->buffer,
                              context.device->Allocate("activations", bytes));
    }
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(make(o.resident, &self->resident_));
  SLUICE_RETURN_IF_ERROR(make(o.slots, &self->slots_));
  return self;
}

void DeviceActivations::Reset() {
  for (const auto* slots : {&resident_, &slots_}) {
    for (const auto& slot : *slots) {
      slot->in.Wait().IgnoreError();
      slot->out.Wait().IgnoreError();
      slot->batch = -1;
      slot->held = false;
    }
  }
  batches_.clear();
  if (options_.disk != nullptr) options_.disk->Reset();
}

absl::Status DeviceActivations::BeginStep(StepWork* step) {
  Reset();
  step_ = step;
  SLUICE_RETURN_IF_ERROR(PlaceStreams());
  if (!embeds()) return absl::OkStatus();
  for (size_t k = 0; k < batches_.size(); ++k) {
    SLUICE_RETURN_IF_ERROR(BeginStream(k));
    if (batches_[k].resident) Load(k, batches_[k].slot);
  }
  return absl::OkStatus();
}

absl::Status DeviceActivations::BeginStream(size_t k) {
  Batch& batch = batches_[k];
  batch.begun = true;
  if (batch.resident || options_.disk == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(batch.home, Enter(k));
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(batch.staged, options_.disk->Acquire(batch.number));
  SLUICE_RETURN_IF_ERROR(EnterAt(k, batch.staged));
  options_.disk->ReadAhead();
  return absl::OkStatus();
}

absl::Status DeviceActivations::PlaceStreams() {
  batches_.resize(step_->num_batches);
  stager_rows_.clear();
  const size_t all = options_.num_batches;
  for (size_t k = 0; k < batches_.size(); ++k) {
    Batch& batch = batches_[k];
    // k * resident / all of the first k are resident, rounded down.
    const size_t before = k * resident_.size() / all;
    if (k < all && (k + 1) * resident_.size() / all > before) {
      batch.resident = true;
      batch.slot = resident_[before].get();
      batch.slot->batch = static_cast<int>(k);
      continue;
    }
    batch.number = static_cast<int32_t>(stager_rows_.size());
    stager_rows_.push_back(step_->batches[k].view.rows);
  }
  if (!stager_rows_.empty() && slots_.empty()) {
    return InvalidArgument("a step of ", batches_.size(),
                           " micro-batches, but the device ",
                           "has room for activations of ", all);
  }
  if (options_.disk == nullptr) return absl::OkStatus();
  turns_.clear();
  // Embedded streams have a turn to begin, before those of the step.
  for (const Batch& batch : batches_) {
    if (!embeds()) break;
    if (!batch.resident) turns_.push_back(batch.number);
  }
  for (const int32_t k : step_->turns) {
    if (!batches_[k].resident) turns_.push_back(batches_[k].number);
  }
  return options_.disk->BeginStep(turns_, stager_rows_);
}

std::span<std::byte> DeviceActivations::Host(size_t k) const {
  const Batch& batch = batches_[k];
  float* data = batch.staged != nullptr ? batch.staged : batch.home->data();
  return {
      reinterpret_cast<std::byte*>(data),
      static_cast<size_t>(step_->batches[k].view.rows * context_.hidden_size) *
          sizeof(float)};
}

void DeviceActivations::Load(size_t k, Slot* slot) {
  Batch& batch = batches_[k];
  slot->batch = static_cast<int>(k);
  slot->held = true;
  batch.slot = slot;
  slot->in.Expect(1);
  const std::span<const std::byte> host = Host(k);
  context_.device->CopyIn(
      {slot->buffer.as<std::byte>(), host.size()}, host, &slot->in,
      {"activations", {{{"micro_batch", static_cast<int64_t>(k)}}}});
}

void DeviceActivations::Store(size_t k) {
  const Batch& batch = batches_[k];
  batch.slot->out.Expect(1);
  const std::span<std::byte> host = Host(k);
  context_.device->CopyOut(
      host, {batch.slot->buffer.as<std::byte>(), host.size()}, &batch.slot->out,
      {"activations", {{{"micro_batch", static_cast<int64_t>(k)}}}});
}

absl::StatusOr<DeviceActivations::Slot*> DeviceActivations::FreeSlot(
    bool wait) {
  Slot* stored = nullptr;
  for (const auto& slot : slots_) {
    if (slot->batch < 0) return slot.get();
    if (slot->held) continue;
    if (stored == nullptr || slot->out.ready()) stored = slot.get();
  }
  if (stored == nullptr) {
    if (!wait) return nullptr;
    return absl::InternalError("all slots for activations are in use");
  }
  if (!wait && !stored->out.ready()) return nullptr;
  SLUICE_RETURN_IF_ERROR(WaitTimed(stored->out, &stall_seconds_));
  batches_[stored->batch].slot = nullptr;
  stored->batch = -1;
  return stored;
}

absl::Status DeviceActivations::Prefetch(size_t k) {
  Batch& batch = batches_[k];
  if (options_.disk != nullptr && !batch.resident) return absl::OkStatus();
  if (batch.begun ? batch.slot != nullptr : !CanEnter(k)) {
    return absl::OkStatus();
  }
  Slot* slot = batch.slot;  // a resident stream has its own
  if (slot == nullptr) {
    const absl::StatusOr<Slot*> free = FreeSlot(false);
    // An error comes again when the slot is needed.
    if (!free.ok() || *free == nullptr) return absl::OkStatus();
    slot = *free;
  }
  if (!batch.begun) SLUICE_RETURN_IF_ERROR(BeginStream(k));
  Load(k, slot);
  return absl::OkStatus();
}

void DeviceActivations::ReadAhead() {
  if (options_.disk != nullptr) options_.disk->ReadAhead();
}

absl::StatusOr<float*> DeviceActivations::Acquire(size_t turn) {
  const int32_t k = step_->turns[turn];
  Batch& batch = batches_[k];
  if (!batch.begun) {
    SLUICE_RETURN_IF_ERROR(BeginStream(k));
    if (batch.resident) Load(k, batch.slot);
  } else if (batch.slot == nullptr && options_.disk != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(batch.staged, options_.disk->Acquire(batch.number));
    options_.disk->ReadAhead();
  }
  if (batch.slot == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(Slot* const slot, FreeSlot(true));
    Load(k, slot);
  }
  batch.slot->held = true;
  SLUICE_RETURN_IF_ERROR(WaitTimed(batch.slot->in, &stall_seconds_));
  // The stream may still be on its way back from the layer before.
  SLUICE_RETURN_IF_ERROR(WaitTimed(batch.slot->out, &stall_seconds_));
  if (context_.overlap && turn + 1 < step_->turns.size()) {
    SLUICE_RETURN_IF_ERROR(Prefetch(step_->turns[turn + 1]));
  }
  return batch.slot->buffer.as<float>();
}

absl::Status DeviceActivations::Release(size_t turn) {
  const int32_t k = step_->turns[turn];
  Batch& batch = batches_[k];
  if (step_->in_head(turn)) {
    // Nobody wants the stream any more. Others get the slot; that of a resident
    // one keeps what it has until the step is over.
    batch.home.reset();
    if (!batch.resident) SLUICE_RETURN_IF_ERROR(context_.compute->Finish());
    Forget(batch);
    return absl::OkStatus();
  }
  const bool stays =
      turn + 1 < step_->turns.size() && step_->turns[turn + 1] == k;
  if (batch.resident || stays) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(context_.compute->Finish());
  Store(k);
  batch.slot->held = false;
  if (options_.disk == nullptr) return absl::OkStatus();
  // The stager puts it away when the next one's turn comes.
  SLUICE_RETURN_IF_ERROR(WaitTimed(batch.slot->out, &stall_seconds_));
  Forget(batch);
  options_.disk->ReadAhead();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ActivationBuffer>> DeviceActivations::Leave(
    size_t k) {
  Batch& batch = batches_[k];
  if (batch.resident) {
    SLUICE_RETURN_IF_ERROR(context_.compute->Finish());
    Store(k);
  }
  if (batch.slot != nullptr) {
    SLUICE_RETURN_IF_ERROR(WaitTimed(batch.slot->out, &stall_seconds_));
  }
  Forget(batch);
  if (batch.home != nullptr) return std::move(batch.home);
  std::shared_ptr<ActivationBuffer> out = Buffer(k);
  std::memcpy(out->data(), batch.staged, out->bytes());
  return out;
}

StreamTotals DeviceActivations::totals() const {
  StreamTotals sum = {.stall_seconds = stall_seconds_};
  if (options_.disk != nullptr) sum += options_.disk->totals();
  return sum;
}

void DeviceActivations::Forget(Batch& batch) {
  if (batch.slot == nullptr) return;
  batch.slot->batch = -1;
  batch.slot->held = false;
  batch.slot = nullptr;
}

}  // namespace sluice
