#include "runtime/exec/weights/embedding_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/memory/checksum.h"
#include "runtime/placement/buffer_sizes.h"

namespace sluice {
absl::StatusOr<std::unique_ptr<EmbeddingStore>> EmbeddingStore::Load(
    const Options& options, LoadProgress progress) {
  std::unique_ptr<EmbeddingStore> self(new EmbeddingStore(options));
  PackedWeights& weights = *options.weights;
  self->bytes_ = weights.EmbeddingBytes();
  if (options.packed_files != nullptr) {
    SLUICE_RETURN_IF_ERROR(self->LoadTable(progress));
    return self;
  }
  SLUICE_ASSIGN_OR_RETURN(
      self->whole_,
      HostBuffer::Create("embedding", self->bytes_, options.memory));
  SLUICE_RETURN_IF_ERROR(weights.PackEmbedding(
      *options.source, progress,
      PackedWindow::Whole(self->whole_.as<std::byte>(), self->bytes_)));
  self->resident_bytes_ = self->bytes_;
  return self;
}

absl::Status EmbeddingStore::LoadTable(LoadProgress progress) {
  PackedWeights& weights = *options_.weights;
  row_bytes_ = weights.EmbeddingRowBytes();
  tail_begin_ = RoundDownToDiskBlock(weights.EmbeddingTableBytes());
  const auto max_rows = static_cast<size_t>(options_.max_rows);
  SLUICE_ASSIGN_OR_RETURN(
      rows_, HostBuffer::Create("embedding rows", max_rows * row_bytes_,
                                options_.memory));
  SLUICE_ASSIGN_OR_RETURN(
      blocks_, HostBuffer::Create("embedding rows", RowReadBytes(row_bytes_),
                                  options_.memory));
  SLUICE_ASSIGN_OR_RETURN(
      checksums_,
      HostBuffer::Create("embedding checksums", BlockChecksumBytes(bytes_),
                         options_.memory));
  if (bytes_ > tail_begin_) {
    SLUICE_ASSIGN_OR_RETURN(
        tail_,
        HostBuffer::Create("embedding", bytes_ - tail_begin_, options_.memory));
  }
  iota_.resize(max_rows);
  std::iota(iota_.begin(), iota_.end(), 0);
  bool packed = false;
  SLUICE_ASSIGN_OR_RETURN(
      packed_, options_.packed_files->Get(
                   "embedding", bytes_,
                   [&](const PackedWindow& to) {
                     packed = true;
                     return weights.PackEmbedding(*options_.source, progress,
                                                  to);
                   },
                   [&](const PackedFile& packed) { return Use(packed); }));
  if (!packed) SLUICE_RETURN_IF_ERROR(progress(bytes_));
  resident_bytes_ = bytes_ - tail_begin_;
  return absl::OkStatus();
}

absl::Status EmbeddingStore::Use(const PackedFile& packed) {
  for (size_t begin = 0; begin < bytes_; begin += kTableCheckBytes) {
    const size_t size = std::min(kTableCheckBytes, bytes_ - begin);
    std::byte* piece = blocks_.as<std::byte>();
    done_.Expect(1);
    options_.io->Read(packed.file(), packed.packed_offset() + begin,
                      {piece, size}, &done_, {"embedding"});
    SLUICE_RETURN_IF_ERROR(done_.Wait());
    SLUICE_RETURN_IF_ERROR(packed.Check(begin, {piece, size}));
    for (size_t at = 0; at < size; at += kDiskBlockBytes) {
      checksums_.as<uint64_t>()[(begin + at) / kDiskBlockBytes] =
          BlockChecksum({piece + at, std::min(kDiskBlockBytes, size - at)});
    }
    const size_t from = std::max(begin, tail_begin_);
    if (from < begin + size) {
      std::memcpy(tail_.as<std::byte>() + (from - tail_begin_),
                  piece + (from - begin), begin + size - from);
    }
  }
  return absl::OkStatus();
}

absl::Status EmbeddingStore::CheckBlocks(
    size_t begin, std::span<const std::byte> data) const {
  for (size_t at = 0; at < data.size(); at += kDiskBlockBytes) {
    if (BlockChecksum(data.subspan(at, kDiskBlockBytes)) ==
        checksums_.as<uint64_t>()[(begin + at) / kDiskBlockBytes]) {
      continue;
    }
    // The next load makes it anew.
    packed_->Remove();
    return DataLoss(packed_->file().name(), " is damaged: bytes ",
                    packed_->packed_offset() + begin + at, " to ",
                    packed_->packed_offset() + begin + at + kDiskBlockBytes,
                    " are not what was loaded; the next load makes it anew");
  }
  return absl::OkStatus();
}

absl::StatusOr<EmbeddingStore::Rows> EmbeddingStore::Gather(
    std::span<const int32_t> tokens) {
  if (packed_ == nullptr) return Rows{PackedView::Whole(whole_.data()), tokens};
  const size_t blocks = RowBlockBytes(row_bytes_);
  for (size_t first = 0; first < tokens.size(); first += kRowsTogether) {
    const size_t count = std::min(kRowsTogether, tokens.size() - first);
    done_.Expect(static_cast<int>(count));
    for (size_t i = 0; i < count; ++i) {
      const size_t begin = row_bytes_ * tokens[first + i];
      const size_t from = RoundDownToDiskBlock(begin);
      const size_t bytes = RoundUpToDiskBlock(begin + row_bytes_) - from;
      options_.io->Read(packed_->file(), packed_->packed_offset() + from,
                        {blocks_.as<std::byte>() + i * blocks, bytes}, &done_,
                        {"embedding"});
      totals_.read_bytes += bytes;
    }
    SLUICE_RETURN_IF_ERROR(WaitTimed(done_, &totals_.stall_seconds));
    for (size_t i = 0; i < count; ++i) {
      const size_t begin = row_bytes_ * tokens[first + i];
      const size_t from = RoundDownToDiskBlock(begin);
      const std::byte* const read = blocks_.as<std::byte>() + i * blocks;
      SLUICE_RETURN_IF_ERROR(CheckBlocks(
          from, {read, RoundUpToDiskBlock(begin + row_bytes_) - from}));
      std::memcpy(rows_.as<std::byte>() + (first + i) * row_bytes_,
                  read + (begin - from), row_bytes_);
    }
  }
  const PackedView view = {rows_.as<std::byte>(), tail_.as<std::byte>(),
                           options_.weights->EmbeddingTableBytes(),
                           tail_begin_};
  return Rows{view, std::span<const int32_t>(iota_).first(tokens.size())};
}

}  // namespace sluice
