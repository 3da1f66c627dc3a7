#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/exec/weights/packed_store.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/weights/packed_view.h"
#include "runtime/weights/packed_weights.h"
#include "runtime/weights/packed_window.h"

namespace sluice {

// The first stage's embedding: all in memory, or with its table on disk, of
// which the rows that a micro-batch wants are read when it wants them. A row is
// looked at for one token in a sweep, where a layer's weights are used for all:
// no bytes are cheaper to do without. Used by one thread.
class EmbeddingStore {
 public:
  struct Options {
    // All pointers must outlive the store.
    PackedWeights* weights = nullptr;
    const TensorSource* source = nullptr;  // while loading only
    int32_t max_rows = 0;                  // tokens in a micro-batch
    MemoryBudget* memory = nullptr;
    // The packed units for a table on disk; null: all is in memory.
    const PackedStore* packed_files = nullptr;
    IoEngine* io = nullptr;
  };
  // Errors as in PackedStore::Get, TensorSource and MemoryBudget.
  static absl::StatusOr<std::unique_ptr<EmbeddingStore>> Load(
      const Options& options, LoadProgress progress);

  // The input of Backend::Embed for these tokens (at most max_rows): rows of a
  // table, and their numbers in it. Valid until the next call. DiskFile's
  // errors.
  struct Rows {
    PackedView packed;
    std::span<const int32_t> tokens;
  };
  absl::StatusOr<Rows> Gather(std::span<const int32_t> tokens);

  uint64_t bytes() const { return bytes_; }
  uint64_t resident_bytes() const { return resident_bytes_; }
  const StreamTotals& totals() const { return totals_; }

 private:
  explicit EmbeddingStore(const Options& options) : options_(options) {}
  absl::Status LoadTable(LoadProgress progress);
  // Checks the whole table, piece by piece, and keeps what follows it, and
  // checksums of all blocks.
  absl::Status Use(const PackedFile& packed);
  // Checks blocks of the table, from byte `begin` on, that were read again.
  absl::Status CheckBlocks(size_t begin, std::span<const std::byte> data) const;

  const Options options_;
  StreamTotals totals_;
  uint64_t bytes_ = 0;
  uint64_t resident_bytes_ = 0;
  HostBuffer whole_;  // all in memory, or:
  std::unique_ptr<PackedFile> packed_;
  size_t row_bytes_ = 0;
  size_t tail_begin_ = 0;  // packed offset: the table's end, down to a block
  HostBuffer tail_;        // from there on
  HostBuffer rows_;        // [max_rows, row_bytes_]
  HostBuffer blocks_;      // the disk blocks that hold some of the rows
  HostBuffer checksums_;   // of each block of the file
  std::vector<int32_t> iota_;
  IoCompletion done_;
};

}  // namespace sluice
