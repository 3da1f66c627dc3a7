#include "runtime/exec/kv/device_kv_stager.h"

#include <algorithm>
#include <numeric>

#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/placement/buffer_sizes.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<DeviceKvStager>> DeviceKvStager::Create(
    const Options& options) {
  std::unique_ptr<DeviceKvStager> self(new DeviceKvStager(options));
  self->page_bytes_ = options.layout.layer_page_bytes();
  for (int i = 0; i < options.slots; ++i) {
    self->slots_.push_back(std::make_unique<Slot>());
    SLUICE_ASSIGN_OR_RETURN(
        self->slots_.back()->buffer,
        options.device->Allocate(
            "kv staging", KvSlotBytes(self->page_bytes_, options.group_pages)));
  }
  self->iota_.resize(options.group_pages);
  std::iota(self->iota_.begin(), self->iota_.end(), 0);
  return self;
}

DeviceKvStager::~DeviceKvStager() { Reset(); }

absl::StatusOr<bool> DeviceKvStager::Load(int32_t layer,
                                          std::span<const Member> members,
                                          bool wait) {
  // An earlier group may change what this one is to read.
  for (const auto& slot : slots_) {
    if (slot->state == State::kFree || slot->layer != layer) continue;
    const bool shared =
        std::any_of(members.begin(), members.end(), [&](const Member& member) {
          return std::any_of(slot->members.begin(), slot->members.end(),
                             [&](const Member& other) {
                               return other.sequence == member.sequence;
                             });
        });
    if (!shared) continue;
    if (slot->state != State::kPut) return false;
    SLUICE_RETURN_IF_ERROR(WaitTimed(slot->out, options_.stall_seconds));
  }
  Slot* chosen = nullptr;
  for (const auto& slot : slots_) {
    if (slot->state != State::kFree && slot->state != State::kPut) continue;
    if (chosen == nullptr || slot->out.ready()) chosen = slot.get();
  }
  if (chosen == nullptr || (!wait && !chosen->out.ready())) return false;
  SLUICE_RETURN_IF_ERROR(WaitTimed(chosen->out, options_.stall_seconds));
  chosen->state = State::kLoaded;
  chosen->layer = layer;
  chosen->members.assign(members.begin(), members.end());
  loaded_.push_back(chosen);
  // Runs of pages that follow each other are one copy. Announced as a whole, so
  // that the completion can't be complete in between.
  chosen->in.Expect(1);
  std::byte* to = chosen->buffer.as<std::byte>();
  for (const Member& member : members) {
    const int32_t held = (member.start + kPageTokens - 1) / kPageTokens;
    ForEachPageRun(member.pages, 0, held, [&](int32_t i, int32_t end) {
      chosen->in.Expect(1);
      options_.device->CopyIn(
          {to + i * page_bytes_, (end - i) * page_bytes_},
          {member.kv + member.pages[i] * page_bytes_, (end - i) * page_bytes_},
          &chosen->in, {"kv", {{{"layer", layer}}}});
    });
    to += member.pages.size() * page_bytes_;
  }
  chosen->in.Done(absl::OkStatus());
  return true;
}

absl::Status DeviceKvStager::Take(std::span<SegmentView> segments) {
  if (loaded_.empty()) return absl::InternalError("no KV group is loaded");
  taken_ = loaded_.front();
  loaded_.pop_front();
  taken_->state = State::kTaken;
  SLUICE_RETURN_IF_ERROR(WaitTimed(taken_->in, options_.stall_seconds));
  std::byte* at = taken_->buffer.as<std::byte>();
  for (const Member& member : taken_->members) {
    SegmentView& segment = segments[member.segment];
    segment.kv = at;
    segment.pages = std::span<const int32_t>(iota_).first(member.pages.size());
    at += member.pages.size() * page_bytes_;
  }
  return absl::OkStatus();
}

absl::Status DeviceKvStager::Put() {
  SLUICE_RETURN_IF_ERROR(options_.compute->Finish());
  Slot& slot = *taken_;
  slot.state = State::kPut;
  slot.out.Expect(1);
  const std::byte* from = slot.buffer.as<std::byte>();
  for (const Member& member : slot.members) {
    const int32_t last =
        (member.start + member.num_tokens - 1) / kPageTokens + 1;
    ForEachPageRun(member.pages, member.start / kPageTokens, last,
                   [&](int32_t i, int32_t end) {
                     slot.out.Expect(1);
                     options_.device->CopyOut(
                         {member.kv + member.pages[i] * page_bytes_,
                          (end - i) * page_bytes_},
                         {from + i * page_bytes_, (end - i) * page_bytes_},
                         &slot.out, {"kv", {{{"layer", slot.layer}}}});
                   });
    from += member.pages.size() * page_bytes_;
  }
  slot.out.Done(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status DeviceKvStager::Flush() {
  absl::Status first;
  for (const auto& slot : slots_) {
    if (slot->state == State::kPut)
      first.Update(WaitTimed(slot->out, options_.stall_seconds));
  }
  return first;
}

void DeviceKvStager::Reset() {
  for (const auto& slot : slots_) {
    slot->in.Wait().IgnoreError();
    slot->out.Wait().IgnoreError();
    slot->state = State::kFree;
    slot->members.clear();
  }
  loaded_.clear();
  taken_ = nullptr;
}

}  // namespace sluice
