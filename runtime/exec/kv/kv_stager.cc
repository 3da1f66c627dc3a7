#include "runtime/exec/kv/kv_stager.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/placement/buffer_sizes.h"

namespace sluice {
namespace {

// Groups that have memory at a time, at most.
constexpr size_t kTickets = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<KvStager>> KvStager::Create(
    const Options& options) {
  std::unique_ptr<KvStager> self(new KvStager(options));
  self->page_bytes_ = options.layout.layer_page_bytes();
  SLUICE_ASSIGN_OR_RETURN(
      self->ring_, HostBuffer::Create("kv staging", options.staging_bytes,
                                      options.memory, options.copies));
  self->max_group_pages_ = static_cast<int64_t>(
      (options.staging_bytes - RoundUpToDisk(KvLayout::kSlackBytes)) /
      ((kConcurrentKvGroups + 1) * self->page_bytes_));
  if (self->max_group_pages_ < 1) {
    return absl::InvalidArgumentError("too little memory for KV staging");
  }
  SLUICE_ASSIGN_OR_RETURN(self->file_,
                          DiskFile::CreateTemporary(
                              options.disk_dir, "kv cache",
                              static_cast<uint64_t>(options.num_pages) *
                                  options.layout.num_layers * self->page_bytes_,
                              options.disk));
  self->iota_.resize(self->max_group_pages_);
  std::iota(self->iota_.begin(), self->iota_.end(), 0);
  for (size_t i = 0; i < kTickets; ++i) {
    self->tickets_.push_back(std::make_unique<Ticket>());
  }
  return self;
}

KvStager::~KvStager() { Reset(); }

uint64_t KvStager::FileOffset(int32_t layer, int32_t page) const {
  return (static_cast<uint64_t>(layer) *
              static_cast<uint64_t>(options_.num_pages) +
          static_cast<uint64_t>(page)) *
         page_bytes_;
}

void KvStager::BeginStep(const std::vector<std::vector<Group>>& per_batch,
                         std::span<const std::pair<int32_t, int32_t>> order) {
  per_batch_ = &per_batch;
  order_ = order;
  next_item_ = 0;
  next_in_item_ = 0;
  for (size_t i = 0; i < num_tickets_; ++i) {
    tickets_[(oldest_ + i) % kTickets]->group = nullptr;
  }
  ReadAhead();
}

bool KvStager::Allocate(size_t bytes, size_t* begin) {
  const size_t end = ring_.bytes() - RoundUpToDisk(KvLayout::kSlackBytes);
  if (num_tickets_ == 0) {
    ring_head_ = 0;
  }
  const size_t tail =
      num_tickets_ == 0 ? 0 : tickets_[oldest_ % kTickets]->begin;
  if (num_tickets_ == 0 || ring_head_ > tail) {
    if (ring_head_ + bytes <= end) {
      *begin = ring_head_;
    } else if (bytes < tail) {
      *begin = 0;
    } else {
      return false;
    }
  } else {
    // The head has wrapped; it never meets the tail.
    if (ring_head_ + bytes >= tail) return false;
    *begin = ring_head_;
  }
  ring_head_ = *begin + bytes;
  return true;
}

absl::Status KvStager::Reclaim(bool wait) {
  while (taken_ > 0) {
    Ticket& ticket = *tickets_[oldest_ % kTickets];
    if (!ticket.put) break;
    if (!ticket.written.ready() && !wait) break;
    wait = false;
    SLUICE_RETURN_IF_ERROR(WaitTimed(ticket.written, options_.stall_seconds));
    ++oldest_;
    --num_tickets_;
    --taken_;
  }
  return absl::OkStatus();
}

// A group of another step may still be writing what this one wants to read.
void KvStager::AwaitWriter(int32_t layer, const Group& group) {
  for (size_t i = 0; i < taken_; ++i) {
    Ticket& ticket = *tickets_[(oldest_ + i) % kTickets];
    if (ticket.layer != layer || ticket.written.ready()) continue;
    for (const Member& member : group.members) {
      if (std::find(ticket.sequences.begin(), ticket.sequences.end(),
                    member.sequence) != ticket.sequences.end()) {
        ticket.written.Wait().IgnoreError();
        break;
      }
    }
  }
}

bool KvStager::TryRead(absl::Status* status) {
  // The next item with groups left.
  while (next_item_ < order_.size() &&
         next_in_item_ >= (*per_batch_)[order_[next_item_].second].size()) {
    ++next_item_;
    next_in_item_ = 0;
  }
  if (next_item_ >= order_.size() || num_tickets_ == kTickets) return false;
  const auto [layer, batch] = order_[next_item_];
  const Group& group = (*per_batch_)[batch][next_in_item_];
  const size_t bytes = static_cast<size_t>(group.num_pages) * page_bytes_;
  size_t begin = 0;
  *status = Reclaim(false);
  if (!status->ok() || !Allocate(bytes, &begin)) return false;
  AwaitWriter(layer, group);
  Ticket& ticket = *tickets_[(oldest_ + num_tickets_) % kTickets];
  ++num_tickets_;
  ticket.layer = layer;
  ticket.group = &group;
  ticket.begin = begin;
  ticket.bytes = bytes;
  ticket.put = false;
  ticket.sequences.clear();
  ++next_in_item_;

  // Runs of pages that follow each other on disk are one request. Announced all
  // at once, so that the completion can't be complete in between.
  ticket.read.Expect(1);
  std::byte* to = ring_.as<std::byte>() + begin;
  for (const Member& member : group.members) {
    ticket.sequences.push_back(member.sequence);
    const int32_t held = (member.start + kPageTokens - 1) / kPageTokens;
    ForEachPageRun(member.pages, 0, held, [&](int32_t i, int32_t end) {
      ticket.read.Expect(1);
      options_.io->Read(*file_, FileOffset(layer, member.pages[i]),
                        {to + i * page_bytes_, (end - i) * page_bytes_},
                        &ticket.read, {"kv", {{{"layer", layer}}}});
      if (options_.read_bytes != nullptr) {
        *options_.read_bytes += (end - i) * page_bytes_;
      }
    });
    to += member.pages.size() * page_bytes_;
  }
  ticket.read.Done(absl::OkStatus());
  return true;
}

void KvStager::ReadAhead() {
  if (!options_.overlap || per_batch_ == nullptr) return;
  absl::Status status;
  while (TryRead(&status)) {
  }
  // An error shows when the group is taken.
}

absl::Status KvStager::Take(std::span<SegmentView> segments,
                            const Group** group) {
  while (taken_ == num_tickets_) {
    absl::Status status;
    if (TryRead(&status)) break;
    SLUICE_RETURN_IF_ERROR(status);
    if (num_tickets_ == 0) {
      return absl::InternalError("no group is left, or it does not fit");
    }
    SLUICE_RETURN_IF_ERROR(Reclaim(true));
  }
  Ticket& ticket = *tickets_[(oldest_ + taken_) % kTickets];
  ++taken_;
  SLUICE_RETURN_IF_ERROR(WaitTimed(ticket.read, options_.stall_seconds));
  std::byte* at = ring_.as<std::byte>() + ticket.begin;
  for (const Member& member : ticket.group->members) {
    SegmentView& segment = segments[member.segment];
    segment.kv = at;
    segment.pages = std::span<const int32_t>(iota_).first(member.pages.size());
    at += member.pages.size() * page_bytes_;
  }
  *group = ticket.group;
  return absl::OkStatus();
}

void KvStager::Put() {
  Ticket& ticket = *tickets_[(oldest_ + taken_ - 1) % kTickets];
  ticket.put = true;
  ticket.written.Expect(1);
  const std::byte* from = ring_.as<std::byte>() + ticket.begin;
  for (const Member& member : ticket.group->members) {
    const int32_t last =
        (member.start + member.num_tokens - 1) / kPageTokens + 1;
    ForEachPageRun(member.pages, member.start / kPageTokens, last,
                   [&](int32_t i, int32_t end) {
                     ticket.written.Expect(1);
                     options_.io->Write(
                         *file_, FileOffset(ticket.layer, member.pages[i]),
                         {from + i * page_bytes_, (end - i) * page_bytes_},
                         &ticket.written, {"kv", {{{"layer", ticket.layer}}}});
                     if (options_.write_bytes != nullptr) {
                       *options_.write_bytes += (end - i) * page_bytes_;
                     }
                   });
    from += member.pages.size() * page_bytes_;
  }
  ticket.written.Done(absl::OkStatus());
}

absl::Status KvStager::Flush() {
  absl::Status first;
  for (size_t i = 0; i < taken_; ++i) {
    Ticket& ticket = *tickets_[(oldest_ + i) % kTickets];
    if (ticket.put) first.Update(ticket.written.Wait());
  }
  return first;
}

void KvStager::Reset() {
  for (const auto& ticket : tickets_) {
    ticket->read.Wait().IgnoreError();
    ticket->written.Wait().IgnoreError();
    ticket->group = nullptr;
  }
  oldest_ = num_tickets_ = taken_ = 0;
  ring_head_ = 0;
  per_batch_ = nullptr;
  order_ = {};
  next_item_ = next_in_item_ = 0;
}

}  // namespace sluice
