#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "runtime/memory/compute_pool.h"

namespace sluice {

// An exchange of columns: each rank gives its own of each row, and gets whole
// rows.
struct ColumnGather {
  static constexpr int kAllRanks = -1;

  // This rank's columns of row 0, and the bytes from row to row.
  const std::byte* from = nullptr;
  size_t from_stride = 0;
  // Whole rows; `from` may lie where it belongs in them. Null on a rank that
  // gets none.
  std::byte* to = nullptr;
  size_t to_stride = 0;
  int32_t rows = 0;
  // Rank r has bytes [bounds[r], bounds[r + 1]) of a row; maybe none.
  std::span<const size_t> bounds;
  // The rank that gets the rows, or all.
  int to_rank = kAllRanks;
  // The stream of a GPU in which the rows are computed and used: the exchange
  // takes its turn there. Null: rows in host memory, there and then.
  void* stream = nullptr;
  // Memory on the GPU with room for as many parts as there are ranks, each as
  // large as the greatest; null: the exchange has its own.
  std::byte* staging = nullptr;
  size_t staging_bytes = 0;
};

// One rank's end of a group that computes a stage together. Used by the rank's
// thread. All ranks make the same calls in the same order, each with the same
// rows, bounds and to_rank.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Exchanges. When it returns, or else when the stream has come so far, the
  // columns may be overwritten, and the rows be read. `pool` may help to copy.
  // The group's error if one of the ranks has failed; kInternal if the ranks
  // disagree.
  virtual absl::Status Gather(const ColumnGather& gather,
                              ComputePool& pool) = 0;
};

// All ends of a group, one for each thread. Those who wait for a rank that
// fails get its error, and so do later calls, until Reset. Thread-safe.
class CollectiveGroup {
 public:
  virtual ~CollectiveGroup() = default;
  // Returns a rank's end, which the group owns.
  virtual Collective& rank(int rank) = 0;
  // Fails the group; the first error stays.
  virtual void Abort(const absl::Status& why) = 0;
  // Makes the group whole again. REQUIRES: no rank is in a call.
  virtual void Reset() = 0;
};

}  // namespace sluice
