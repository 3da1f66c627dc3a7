#include "runtime/exec/kv/kv_stager.h"

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/placement/buffer_sizes.h"

namespace sluice {
namespace {

// Groups that have memory at a time, at most.
constexpr size_t kMaxGroups = 64;

}  // namespace

KvStager::KvStager(const Options& options, int64_t group_pages)
    : KvStaging(options.layout, kMaxGroups, group_pages, Tier::kDisk,
                options.context.overlap),
      options_(options),
      group_pages_(group_pages) {}

absl::StatusOr<std::unique_ptr<KvStager>> KvStager::Create(
    const Options& options) {
  const StreamContext& context = options.context;
  const size_t page_bytes = options.layout.layer_page_bytes();
  const auto group_pages = static_cast<int64_t>(
      (options.staging_bytes - RoundUpToDiskBlock(KvLayout::kSlackBytes)) /
      ((kConcurrentKvGroups + 1) * page_bytes));
  if (group_pages < 1) {
    return absl::InvalidArgumentError("too little memory for KV staging");
  }
  std::unique_ptr<KvStager> self(new KvStager(options, group_pages));
  SLUICE_ASSIGN_OR_RETURN(
      self->ring_, HostBuffer::Create("kv staging", options.staging_bytes,
                                      context.memory, context.device));
  SLUICE_ASSIGN_OR_RETURN(
      self->file_,
      DiskFile::CreateTemporary(
          context.disk_dir, "kv cache",
          self->GroupBytes(KvGroup::kAll) + self->GroupBytes(KvGroup::kWindow),
          context.disk));
  return self;
}

uint64_t KvStager::GroupBytes(KvGroup group) const {
  return static_cast<uint64_t>(options_.num_pages[group]) *
         static_cast<uint64_t>(options_.layers[group]) * page_bytes();
}

uint64_t KvStager::FileOffset(KvGroups::Layer layer, int32_t page) const {
  const uint64_t begin =
      layer.group == KvGroup::kAll ? 0 : GroupBytes(KvGroup::kAll);
  return begin + (static_cast<uint64_t>(layer.index) *
                      static_cast<uint64_t>(options_.num_pages[layer.group]) +
                  static_cast<uint64_t>(page)) *
                     page_bytes();
}

absl::StatusOr<bool> KvStager::Place(Group* placed, size_t bytes, bool) {
  const size_t end = ring_.bytes() - RoundUpToDiskBlock(KvLayout::kSlackBytes);
  std::byte* const ring = ring_.as<std::byte>();
  const bool empty = num_groups() == 0;
  const auto tail = empty ? 0 : static_cast<size_t>(group(0).data - ring);
  size_t begin = empty ? 0 : ring_head_;
  if (!empty && begin <= tail) {
    // The head has wrapped; it never meets the tail.
    if (begin + bytes >= tail) return false;
  } else if (begin + bytes > end) {
    if (bytes >= tail) return false;
    begin = 0;
  }
  placed->data = ring + begin;
  ring_head_ = begin + bytes;
  return true;
}

void KvStager::Load(Group* group, const KvSegment& kv, int32_t page,
                    std::span<std::byte> data) {
  options_.context.io->Read(*file_, FileOffset(group->place, page), data,
                            &group->in, {"kv", {{{"layer", group->layer}}}});
  totals_.read_bytes += data.size();
}

void KvStager::Store(Group* group, const KvSegment& kv, int32_t page,
                     std::span<const std::byte> data) {
  options_.context.io->Write(*file_, FileOffset(group->place, page), data,
                             &group->out, {"kv", {{{"layer", group->layer}}}});
  totals_.write_bytes += data.size();
}

}  // namespace sluice
