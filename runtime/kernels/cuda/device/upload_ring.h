#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/memory/device.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/placement/gpu_limits.h"

namespace sluice {

// The small data that a step's kernels read (page tables, positions, numbers of
// rows), on its way from the host to the device: through a ring of pinned
// memory and one of the same size on the device, in the order of a stream.
//
// Data is known by its content: what is asked for again, as each layer asks for
// what the layer before had, is there already, unless so much has followed that
// the ring came round. Used by one thread.
class UploadRing {
 public:
  struct Options {
    Device* device = nullptr;
    MemoryBudget* host = nullptr;
    cudaStream_t stream = nullptr;
    // The most that a Put may bring; rounded up. The ring has room for several.
    size_t max_bytes = 0;
  };
  // Fails with kResourceExhausted. Options' pointers must outlive the ring.
  static absl::StatusOr<std::unique_ptr<UploadRing>> Create(
      const Options& options);
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  size_t max_bytes() const { return part_bytes_; }

  // Returns `content` on the device, at a multiple of 256 bytes, for what is
  // launched on the stream before the next Put. kInvalidArgument for more than
  // max_bytes(); an error of the device.
  absl::StatusOr<const std::byte*> Put(std::span<const std::byte> content);

  // Content that a Put would bring, and its present place on the device.
  struct Placed {
    std::vector<std::byte> content;
    const std::byte* at = nullptr;
  };
  // Makes Puts find their content among these, which must outlive that, or fail
  // with kInternal; null makes them use the ring again. A recorded step needs
  // this: what is launched must find its data in the same place each time.
  void PutAmong(const std::vector<Placed>* placed) { placed_ = placed; }

 private:
  // The ring is filled in so many parts: before one is filled again, the copies
  // from it must be done.
  static constexpr int kParts = GpuLimits::kRingParts;
  struct Entry {
    size_t offset;
    size_t bytes;
  };

  explicit UploadRing(const Options& options) : options_(options) {}
  // Returns the number of an entry with this content; -1 if there is none.
  int Find(std::span<const std::byte> content) const;
  absl::Status NextPart();

  const Options options_;
  size_t part_bytes_ = 0;
  HostBuffer host_;
  DeviceBuffer device_;
  std::array<cudaEvent_t, kParts> copied_ = {};
  const std::vector<Placed>* placed_ = nullptr;
  std::deque<Entry> entries_;  // in the order in which they came
  int next_ = 0;               // the entry to look at first
  int part_ = 0;               // the part that is being filled
  size_t used_ = 0;            // bytes of that part
};

}  // namespace sluice
