#include "runtime/model/checkpoint/checked_pieces.h"

#include <algorithm>
#include <string>
#include <thread>

#include "common/status_macros.h"

namespace sluice {

absl::Status ReadCheckedPiece(PieceReader& file, uint64_t piece, char* to) {
  const uint64_t begin = piece * kPieceBytes;
  const uint64_t bytes = file.list().bytes(piece);
  const absl::Status status = file.Read(piece, to);
  if (!status.ok()) return DataLoss(status.message());
  if (HashPiece({to, bytes}) == file.list().hash(piece)) {
    return absl::OkStatus();
  }
  return DataLoss(file.path(), ": bytes ", begin, " to ", begin + bytes,
                  " are not those that were hashed; the file was changed, or "
                  "its disk is damaged");
}

CheckedPieces::CheckedPieces()
    : ahead_(std::max(1u, std::thread::hardware_concurrency())) {}

absl::Status CheckedPieces::Read(PieceReader& file, uint64_t begin,
                                 uint64_t end, uint64_t ahead_end, Take take) {
  while (begin < end) {
    const uint64_t piece = begin / kPieceBytes;
    const uint64_t first = piece * kPieceBytes;
    const uint64_t to = std::min(end, first + kPieceBytes);
    if (to > file.list().file_bytes()) {
      return DataLoss(file.path(), ": has ", file.list().file_bytes(),
                      " bytes, but byte ", to - 1, " is wanted");
    }
    Entry* entry = nullptr;
    SLUICE_RETURN_IF_ERROR(Get(file, piece, ahead_end, &entry));
    take({entry->bytes.get() + (begin - first), to - begin});
    Release(entry);
    begin = to;
  }
  return absl::OkStatus();
}

absl::Status CheckedPieces::Get(PieceReader& file, uint64_t piece,
                                uint64_t ahead_end, Entry** entry) {
  const uint64_t end = NumPieces(std::min(ahead_end, file.list().file_bytes()));
  for (;;) {
    Entry* own = nullptr;
    Entry* ahead = nullptr;
    {
      MutexLock lock(&mu_);
      Entry* const found = FindLocked(file, piece);
      if (found == nullptr) {
        own = TakeLocked(file, piece);
      } else if (!found->reading) {
        ++found->users;
        found->used = ++time_;
        *entry = found;
        return absl::OkStatus();
      } else {
        ahead = TakeAheadLocked(file, piece + 1, end);
        if (ahead == nullptr) changed_.Wait(&mu_);
      }
    }
    if (own != nullptr) {
      *entry = own;
      return Fill(file, own, /*use=*/true);
    }
    // Whoever wants the piece finds the error himself.
    if (ahead != nullptr) Fill(file, ahead, /*use=*/false).IgnoreError();
  }
}

void CheckedPieces::Release(Entry* entry) {
  MutexLock lock(&mu_);
  --entry->users;
}

CheckedPieces::Entry* CheckedPieces::FindLocked(const PieceReader& file,
                                                uint64_t piece) {
  for (const auto& entry : entries_) {
    if (entry->file == &file && entry->piece == piece) return entry.get();
  }
  return nullptr;
}

CheckedPieces::Entry* CheckedPieces::TakeLocked(const PieceReader& file,
                                                uint64_t piece) {
  Entry* oldest = nullptr;
  for (const auto& entry : entries_) {
    if (entry->users > 0 || entry->reading) continue;
    if (oldest == nullptr || entry->used < oldest->used) oldest = entry.get();
  }
  if (oldest == nullptr || entries_.size() < 2 * ahead_ + 4) {
    entries_.push_back(std::make_unique<Entry>());
    oldest = entries_.back().get();
    oldest->bytes = std::make_unique_for_overwrite<char[]>(kPieceBytes);
  }
  oldest->file = &file;
  oldest->piece = piece;
  oldest->reading = true;
  oldest->used = ++time_;
  return oldest;
}

CheckedPieces::Entry* CheckedPieces::TakeAheadLocked(const PieceReader& file,
                                                     uint64_t begin,
                                                     uint64_t end) {
  end = std::min<uint64_t>(end, begin + ahead_);
  for (uint64_t piece = begin; piece < end; ++piece) {
    if (FindLocked(file, piece) == nullptr) return TakeLocked(file, piece);
  }
  return nullptr;
}

absl::Status CheckedPieces::Fill(PieceReader& file, Entry* entry, bool use) {
  const absl::Status status =
      ReadCheckedPiece(file, entry->piece, entry->bytes.get());
  MutexLock lock(&mu_);
  entry->reading = false;
  if (!status.ok()) {
    entry->file = nullptr;
  } else if (use) {
    ++entry->users;
  }
  changed_.NotifyAll();
  return status;
}

}  // namespace sluice
