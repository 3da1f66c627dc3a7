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
    KvLayout layout;           // page_alignment: kDiskBlockBytes
    int64_t num_pages = 0;     // on disk
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
  uint64_t FileOffset(int32_t layer, int32_t page) const;

  const Options options_;
  const int64_t group_pages_;
  std::unique_ptr<DiskFile> file_;
  HostBuffer ring_;
  size_t ring_head_ = 0;
};

}  // namespace sluice
