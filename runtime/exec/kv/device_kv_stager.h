#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/kv/kv_staging.h"
#include "runtime/exec/stream_context.h"
#include "runtime/kv/kv_arena.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/device.h"

namespace sluice {

// Brings KV pages from host memory and disk to a device with memory of its own,
// for attention there, and the changed ones back. Pages in host memory are
// brought ahead; pages on disk come into host memory first, by a stream of
// their own, and go on when they are acquired.
class DeviceKvStager : public KvStaging {
 public:
  struct Options {
    StreamContext context;
    KvLayout layout;
    int64_t group_pages = 0;  // of a slot
    int slots = 2;
    KvArenas host;                   // empty: no pages in host memory
    std::unique_ptr<KvStream> disk;  // null: none on disk
  };
  // Errors are those of Device::Allocate.
  static absl::StatusOr<std::unique_ptr<DeviceKvStager>> Create(
      Options options);
  ~DeviceKvStager() override { Reset(); }

  int64_t max_run_pages(Tier tier) const override;
  void BeginStep(StepWork* step) override;
  void ReadAhead() override;
  absl::Status Release() override;
  void Reset() override;
  StreamTotals totals() const override;

 private:
  explicit DeviceKvStager(Options options);
  absl::StatusOr<bool> Place(Group* group, size_t bytes, bool wait) override;
  void Load(Group* group, const KvSegment& kv, int32_t page,
            std::span<std::byte> data) override;
  void Store(Group* group, const KvSegment& kv, int32_t page,
             std::span<const std::byte> data) override;

  const Options options_;
  std::vector<DeviceBuffer> slots_;
};

}  // namespace sluice
