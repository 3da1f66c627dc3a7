#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/stream_context.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/placement/buffer_sizes.h"

namespace sluice {

// Keeps the residual streams of a block's micro-batches, float32 [rows, hidden]
// each, between their turns: of every one of them the first bytes in memory and
// the rest on disk.
//
// A turn is a stretch of a step in which one micro-batch is computed. Its
// stream then lies whole in one of a ring of slots: while a turn computes, the
// stream of the next one is brought and that of the last one put away. Between
// layers of one turn nothing moves: with the row-by-row schedule, that is
// nearly always, and of a block of one micro-batch, always.
//
// The cut between memory and disk is at a whole disk block, so that the share
// of R rows on disk is off by half a block of R * hidden * 4 bytes at most.
//
// Used by one thread.
class ActivationStager {
 public:
  struct Options {
    ActivationShape shape;
    StreamContext context;
  };
  // Errors are those of DiskFile and HostBuffer.
  static absl::StatusOr<std::unique_ptr<ActivationStager>> Create(
      const Options& options);
  ~ActivationStager();

  // Begins a step and ends the one before: `batches` are computed in this order
  // (repeats that follow each other are one turn), each with its `rows`.
  // kInvalidArgument: more micro-batches or rows than the shape has.
  absl::Status BeginStep(std::span<const int32_t> batches,
                         std::span<const int32_t> rows);

  // Returns the stream of `batch`, whose turn it is or goes on: valid until
  // that of another one is taken; undefined in its first turn. Aligned to 4096
  // bytes. Puts away the one before, and waits for the disk; its errors come
  // from here, those of writing with the turn that wants what was written.
  absl::StatusOr<float*> Acquire(int32_t batch);

  // Begins to bring the next turn's stream, if there is a free slot and the
  // stream has reached the disk. Never waits.
  void ReadAhead();

  // Forgets the step, whatever state it is in.
  void Reset();

  const StreamTotals& totals() const { return totals_; }

 private:
  static constexpr size_t kSlots = ActivationShape::kSlots;

  struct Turn {
    int32_t batch = 0;
    bool load = false;   // it had a turn before
    bool store = false;  // it will have another
  };
  struct Slot {
    std::byte* data = nullptr;
    IoCompletion read, written;
  };

  explicit ActivationStager(const Options& options) : options_(options) {}
  Slot& SlotOf(size_t turn) { return slots_[turn % kSlots]; }
  // Begins to bring a turn's stream to its slot, or to put it away.
  void Move(size_t turn, bool in);
  void Bring();  // turn brought_
  void Store(size_t turn);
  // Returns the writes that must end before turn brought_ can be brought: of
  // its slot's last stream, and of its own, which may be the same.
  std::array<IoCompletion*, 2> WritesBefore();

  const Options options_;
  StreamTotals totals_;
  uint64_t memory_stride_ = 0, disk_stride_ = 0;
  HostBuffer memory_, staging_;
  std::unique_ptr<DiskFile> file_;
  Slot slots_[kSlots];

  std::vector<Turn> turns_;
  std::vector<int32_t> rows_;
  size_t next_ = 0;     // turn to be taken next; the one before computes
  size_t brought_ = 0;  // turns whose stream was asked for
  // The turn that last stored each micro-batch.
  std::vector<size_t> stored_by_;
};

}  // namespace sluice
