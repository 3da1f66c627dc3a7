#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/exec/device_compute.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/io_completion.h"

namespace sluice {

// Brings KV pages from host memory to a device with memory of its own, for
// attention there, and the changed ones back.
//
// A group is some segments of one micro-batch in one layer. Groups are used in
// the order in which they are loaded; each has one of a few slots from then on
// until it is written back. Used by one thread.
class DeviceKvStager {
 public:
  struct Options {
    // Both outlive this.
    Device* device = nullptr;
    DeviceCompute* compute = nullptr;  // what attends to the pages
    KvLayout layout;
    int64_t group_pages = 0;  // of a slot
    int slots = 2;
    double* stall_seconds = nullptr;  // adds what was waited for
  };
  // The errors of Device::Allocate.
  static absl::StatusOr<std::unique_ptr<DeviceKvStager>> Create(
      const Options& options);
  ~DeviceKvStager();

  int64_t MaxGroupPages() const { return options_.group_pages; }

  // A sequence's part of a group.
  struct Member {
    SequenceId sequence;
    int32_t segment = 0;             // index in the micro-batch
    std::byte* kv = nullptr;         // page 0 of the layer, in host memory
    std::span<const int32_t> pages;  // its page numbers there
    int32_t start = 0;               // positions that are there
    int32_t num_tokens = 0;          // positions that will be added
  };

  // Begins to load a group; no more pages than MaxGroupPages(). False if all
  // slots are in use, or if an earlier group that is not put yet changes pages
  // of this one. With `wait`, waits for a slot that is being written back.
  absl::StatusOr<bool> Load(int32_t layer, std::span<const Member> members,
                            bool wait);
  // Waits for the next group and points `segments` (the micro-batch's) at its
  // pages: SegmentView::kv and pages.
  absl::Status Take(std::span<SegmentView> segments);
  // Begins to write back what the new positions of the group changed, the last
  // one taken, when the device has attended to it.
  absl::Status Put();
  // Waits for all writes: the first error of any.
  absl::Status Flush();
  // Forgets all groups.
  // REQUIRES: the device attends to none of them.
  void Reset();

 private:
  enum class State { kFree, kLoaded, kTaken, kPut };
  struct Slot {
    DeviceBuffer buffer;
    State state = State::kFree;
    int32_t layer = 0;
    std::vector<Member> members;
    IoCompletion in, out;
  };

  explicit DeviceKvStager(const Options& options) : options_(options) {}

  const Options options_;
  size_t page_bytes_ = 0;
  std::vector<int32_t> iota_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::deque<Slot*> loaded_;  // in order of use
  Slot* taken_ = nullptr;
};

}  // namespace sluice
