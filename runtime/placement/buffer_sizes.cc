#include "runtime/placement/buffer_sizes.h"

#include <algorithm>
#include <cmath>

#include "common/blocks.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/placement/weight_placement.h"

namespace sluice {
uint64_t PackedGranules(size_t packed_bytes) {
  return CeilDiv(packed_bytes, PlacementGranule(packed_bytes));
}

uint64_t PackedHeaderBytes(size_t packed_bytes) {
  // The last checksum is that of the header.
  return RoundUpToDiskBlock(kPackedFields + kMaxPackedKey +
                            (PackedGranules(packed_bytes) + 1) *
                                sizeof(uint64_t));
}

uint64_t PackedFileBytes(size_t packed_bytes) {
  return PackedHeaderBytes(packed_bytes) + RoundUpToDiskBlock(packed_bytes);
}

size_t PackedWindowBytes(size_t packed_bytes) {
  constexpr size_t kMin = size_t{4} << 20;
  constexpr size_t kGrain = size_t{64} << 10;
  return std::min(packed_bytes,
                  std::max(kMin, packed_bytes / 16 / kGrain * kGrain));
}

size_t MatrixStagingBytes(const MatrixLayout& matrix, int threads) {
  return threads *
         (sizeof(float) * kPanelColumns * matrix.k +
          RoundUpTo(std::max(matrix.whole_panel_bytes, matrix.last_panel_bytes),
                    kPanelAlignment));
}

size_t TableStagingBytes(int64_t columns, DType dtype, int threads) {
  return threads * kTableChunkRows * columns *
         (sizeof(float) + ElementBytes(dtype));
}

size_t RowBlockBytes(size_t row_bytes) {
  return row_bytes % kDiskBlockBytes == 0
             ? row_bytes
             : RoundUpToDiskBlock(row_bytes) + kDiskBlockBytes;
}

size_t RowReadBytes(size_t row_bytes) {
  return std::max(kRowsTogether * RowBlockBytes(row_bytes), kTableCheckBytes);
}

size_t BlockChecksumBytes(size_t embedding_bytes) {
  return RoundUpToDiskBlock(embedding_bytes) / kDiskBlockBytes *
         sizeof(uint64_t);
}

uint64_t EmbeddingOnDiskBytes(const EmbeddingLayout& embedding,
                              int32_t max_rows) {
  return embedding.bytes - RoundDownToDiskBlock(embedding.table_bytes) +
         uint64_t{embedding.row_bytes} * max_rows +
         RowReadBytes(embedding.row_bytes) +
         BlockChecksumBytes(embedding.bytes);
}

size_t KvStagingBytes(size_t layer_page_bytes, int64_t pages) {
  return (kConcurrentKvGroups + 1) * static_cast<size_t>(pages) *
             layer_page_bytes +
         RoundUpToDiskBlock(KvLayout::kSlackBytes);
}

size_t KvSlotBytes(size_t layer_page_bytes, int64_t pages) {
  return static_cast<size_t>(pages) * layer_page_bytes + KvLayout::kSlackBytes;
}

int32_t LinkFrames(const Policy& policy) {
  return std::max(4, 2 * policy.num_microbatches);
}

uint64_t ActivationShape::MemoryPart(uint64_t bytes) const {
  const double blocks = std::round((1 - disk) * static_cast<double>(bytes) /
                                   static_cast<double>(kDiskBlockBytes));
  return std::min(bytes, static_cast<uint64_t>(blocks) * kDiskBlockBytes);
}

uint64_t ActivationShape::disk_bytes() const {
  // A stream of fewer rows may be rounded by half a block more than the
  // longest.
  const double max = std::ceil(disk * static_cast<double>(stream_bytes())) +
                     kDiskBlockBytes / 2.0;
  return num_batches * RoundUpToDiskBlock(std::min(stream_bytes(),
                                                   static_cast<uint64_t>(max)));
}

uint64_t ActivationShape::staging_bytes() const {
  return kSlots * RoundUpToDiskBlock(stream_bytes());
}

}  // namespace sluice
