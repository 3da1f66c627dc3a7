#pragma once

#include <cstddef>
#include <cstdint>

#include "common/policy.h"
#include "runtime/placement/layer_layout.h"
#include "runtime/placement/matrix_layout.h"

// The sizes of buffers and files for data that moves, in bytes: one formula
// each, for the code that allocates it and for the code that plans for it.

namespace sluice {

// The sizes of the file of a packed unit of `packed_bytes`: its header, with
// kPackedFields bytes of numbers, a key of at most kMaxPackedKey and a checksum
// for each granule, and the whole.
inline constexpr size_t kPackedFields = 40;
inline constexpr size_t kMaxPackedKey = 1024;
uint64_t PackedGranules(size_t packed_bytes);
uint64_t PackedHeaderBytes(size_t packed_bytes);
uint64_t PackedFileBytes(size_t packed_bytes);
// The name of their charge to the disk's budget.
inline constexpr char kPackedFilesCharge[] = "weight images";
// The window through which a packed unit is made: little beside the slots for
// units that large, and large enough that the parts that it cuts, which are
// packed twice, are few.
size_t PackedWindowBytes(size_t packed_bytes);

// The memory that packing works with besides a packed unit: for each thread,
// rows as they are read, and a panel, or rows of a table, that lie across a
// border of a window.
inline constexpr int64_t kTableChunkRows = 64;
size_t MatrixStagingBytes(const MatrixLayout& matrix, int threads);
size_t TableStagingBytes(int64_t columns, DType dtype, int threads);

// An embedding's table may be on disk. Its rows are read so many at a time,
// each with all blocks that it may touch, and its check works with the same
// memory, kTableCheckBytes (a multiple of all granules) at a time. It leaves a
// checksum of each block, by which rows are checked when they are read.
inline constexpr size_t kRowsTogether = 256;
inline constexpr size_t kTableCheckBytes = size_t{4} << 20;
size_t RowBlockBytes(size_t row_bytes);
size_t RowReadBytes(size_t row_bytes);
size_t BlockChecksumBytes(size_t embedding_bytes);
// Returns the bytes in memory of an embedding whose table is on disk.
uint64_t EmbeddingOnDiskBytes(const EmbeddingLayout& embedding,
                              int32_t max_rows);

// Groups of KV pages that have host memory at a time on their way from or to
// the disk: one that is read, some that compute, one that is written.
inline constexpr int64_t kConcurrentKvGroups = 4;
// The ring of groups of `pages` pages of a layer. A group may not wrap around
// its end: as much again may be lost.
size_t KvStagingBytes(size_t layer_page_bytes, int64_t pages);
// A slot on the device for a group of them.
size_t KvSlotBytes(size_t layer_page_bytes, int64_t pages);

// The micro-batches' frames that wait on a side of a stage that has a neighbour
// there, beside those that it computes with: room for two steps, one that is
// computed or sent, and one behind it.
int32_t LinkFrames(const Policy& policy);

// Residual streams of micro-batches, float32 [rows, hidden], of which a share
// is on disk (ActivationStager). Bytes, for all micro-batches but for
// staging_bytes.
struct ActivationShape {
  static constexpr int kSlots = 3;  // one computes, one is read, one is written

  int32_t num_batches = 0;  // at least 2
  int32_t max_rows = 0;     // of a micro-batch
  int32_t hidden = 0;
  double disk = 0;  // share of each micro-batch on disk, above 0, up to 1

  // Returns what stays in memory of a stream of `bytes`: whole blocks.
  uint64_t MemoryPart(uint64_t bytes) const;
  uint64_t stream_bytes() const {
    return uint64_t{sizeof(float)} * max_rows * hidden;
  }
  uint64_t total_bytes() const { return num_batches * stream_bytes(); }
  uint64_t memory_bytes() const {
    return num_batches * MemoryPart(stream_bytes());
  }
  uint64_t disk_bytes() const;  // the file
  uint64_t staging_bytes() const;
};

}  // namespace sluice
