#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/host_buffer.h"

namespace sluice {

// Brings the KV pages of sequences that live on disk into memory for their
// attention, and the changed ones back.
//
// A step's work is a list of groups: some segments of one micro-batch in one
// layer, small enough for several to fit in the staging memory. Groups are
// used strictly in order; each is read ahead as far as memory and the caller
// allow, and written back while the next ones compute. The memory is a ring.
// Used by one thread.
class KvStager {
 public:
  struct Options {
    KvLayout layout;           // page_alignment: kDiskAlignment
    int64_t num_pages = 0;     // on disk
    size_t staging_bytes = 0;  // KvStagingBytes() of a sequence at least
    std::string disk_dir;
    MemoryBudget* memory = nullptr;
    // Copies from and to host memory, which is pinned for it; may be null.
    Device* copies = nullptr;
    MemoryBudget* disk = nullptr;
    IoEngine* io = nullptr;
    bool overlap = true;              // read ahead
    double* stall_seconds = nullptr;  // adds what Take waited
    uint64_t* read_bytes = nullptr;   // add what the disk carried
    uint64_t* write_bytes = nullptr;
  };
  // All pointers must outlive the stager. The errors of DiskFile and
  // HostBuffer.
  static absl::StatusOr<std::unique_ptr<KvStager>> Create(
      const Options& options);
  ~KvStager();

  // A sequence's part of a group.
  struct Member {
    SequenceId sequence;
    int32_t segment = 0;             // index in the micro-batch
    std::span<const int32_t> pages;  // its page numbers on disk
    int32_t start = 0;               // positions that are there
    int32_t num_tokens = 0;          // positions that will be added
  };
  struct Group {
    int32_t item = 0;   // place of (layer, micro-batch) in the step's order
    int32_t layer = 0;  // counts from the stage's first
    std::vector<Member> members;
    int64_t num_pages = 0;
  };

  // The groups of a step, in order of use: each list of `per_batch` in each
  // layer, micro-batch by micro-batch. Ends the step before, whose groups must
  // all have been put back. Reads the first ones ahead.
  void BeginStep(const std::vector<std::vector<Group>>& per_batch,
                 std::span<const std::pair<int32_t, int32_t>> order);
  // Reads groups ahead, as many as the memory holds: the disk need not wait
  // until the layer before is computed. Take() and Put() make room for more.
  void ReadAhead();
  // Waits for the next group and points `segments` (the micro-batch's) at its
  // pages: SegmentView::kv and pages.
  absl::Status Take(std::span<SegmentView> segments, const Group** group);
  // Begins to write back what the group's new positions changed.
  void Put();
  // Waits for all writes: the first error of any.
  absl::Status Flush();
  // Forgets the step, whatever state it is in.
  void Reset();

  // Cuts members of one micro-batch into groups that fit.
  int64_t MaxGroupPages() const { return max_group_pages_; }

 private:
  struct Ticket {  // a group that has memory
    int32_t layer = 0;
    const Group* group = nullptr;  // of the current step, or null
    std::vector<SequenceId> sequences;
    size_t begin = 0, bytes = 0;  // in the ring
    IoCompletion read, written;
    bool put = false;
  };

  explicit KvStager(const Options& options) : options_(options) {}
  uint64_t FileOffset(int32_t layer, int32_t page) const;
  bool Allocate(size_t bytes, size_t* begin);
  // Gives back the memory of groups that are written, oldest first; waits for
  // the oldest if `wait`.
  absl::Status Reclaim(bool wait);
  bool TryRead(absl::Status* status);
  void AwaitWriter(int32_t layer, const Group& group);

  const Options options_;
  size_t page_bytes_ = 0;
  int64_t max_group_pages_ = 0;
  std::unique_ptr<DiskFile> file_;
  HostBuffer ring_;
  std::vector<int32_t> iota_;

  std::vector<std::unique_ptr<Ticket>> tickets_;  // a ring, too
  size_t oldest_ = 0, num_tickets_ = 0;
  size_t taken_ = 0;  // tickets that were taken, from the oldest on
  size_t ring_head_ = 0;

  const std::vector<std::vector<Group>>* per_batch_ = nullptr;
  std::span<const std::pair<int32_t, int32_t>> order_;
  size_t next_item_ = 0, next_in_item_ = 0;  // to be read next
};

}  // namespace sluice
