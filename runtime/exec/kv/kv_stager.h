#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/blocks.h"
#include "runtime/exec/kv/kv_staging.h"
#include "runtime/exec/stream_context.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/host_buffer.h"

namespace sluice {

// Brings the KV pages of sequences that live on disk into host memory for their
// attention, and the changed ones back: small enough groups for several to fit
// in the staging memory, which is a ring. Each is read ahead as far as memory
// allows, and written back while the next ones compute.
class KvStager : public KvStaging {
 public:
  struct Options {
    KvLayout layout;                    // page_alignment: kDiskBlockBytes
    ByKvGroup<int32_t> layers = {};     // of each group
    ByKvGroup<int64_t> num_pages = {};  // of each group, on disk
    size_t staging_bytes = 0;  // KvStagingBytes() of a sequence at least
    StreamContext context;
  };
  // Errors are those of DiskFile and HostBuffer.
  static absl::StatusOr<std::unique_ptr<KvStager>> Create(
      const Options& options);
  ~KvStager() override { Reset(); }

  int64_t max_run_pages(Tier) const override { return group_pages_; }

 private:
  KvStager(const Options& options, int64_t group_pages);
  absl::StatusOr<bool> Place(Group* group, size_t bytes, bool wait) override;
  void Load(Group* group, const KvSegment& kv, int32_t page,
            std::span<std::byte> data) override;
  void Store(Group* group, const KvSegment& kv, int32_t page,
             std::span<const std::byte> data) override;
  // One group's pages follow the other's.
  uint64_t GroupBytes(KvGroup group) const;
  uint64_t FileOffset(KvGroups::Layer layer, int32_t page) const;

  const Options options_;
  const int64_t group_pages_;
  std::unique_ptr<DiskFile> file_;
  HostBuffer ring_;
  size_t ring_head_ = 0;
};

}  // namespace sluice
