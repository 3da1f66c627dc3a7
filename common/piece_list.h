#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A file is hashed and transferred in pieces of this size; the last one may be
// smaller.
inline constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
// The limit of a file that is taken apart: its hashes then take 64 MiB.
inline constexpr uint64_t kMaxPiecedFileBytes = uint64_t{1} << 42;

// A ContentHash of a piece.
using PieceHash = std::array<char, 16>;
PieceHash HashPiece(absl::string_view piece);

// The number of pieces of a file; no file of 0 bytes has one.
constexpr uint64_t NumPieces(uint64_t file_bytes) {
  return file_bytes / kPieceBytes + (file_bytes % kPieceBytes == 0 ? 0 : 1);
}

// The hashes of all pieces of a file. The file's own hash is calculated from
// them, so that whoever knows it can check a list, whoever sent that.
class PieceList {
 public:
  // Returns a list of hashes that are written one after the other.
  // kInvalidArgument if their number is not that of such a file's pieces.
  static absl::StatusOr<PieceList> Create(uint64_t file_bytes,
                                          absl::string_view hashes);
  // `hashes` must be one for each piece.
  PieceList(uint64_t file_bytes, std::vector<PieceHash> hashes);

  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t size() const { return hashes_.size(); }
  const PieceHash& hash(uint64_t piece) const { return hashes_[piece]; }
  // The bytes of a piece.
  uint64_t bytes(uint64_t piece) const {
    const uint64_t left = file_bytes_ - piece * kPieceBytes;
    return left < kPieceBytes ? left : kPieceBytes;
  }
  // All hashes, one after the other.
  absl::string_view packed() const {
    return {reinterpret_cast<const char*>(hashes_.data()),
            hashes_.size() * sizeof(PieceHash)};
  }
  // The hash of the file: "p" and the hexadecimal ContentHash of
  // "sluice pieces 1", kPieceBytes and file_bytes() in decimal, each followed
  // by a line feed, and packed().
  std::string FileHash() const;

 private:
  uint64_t file_bytes_;
  std::vector<PieceHash> hashes_;
};

using PieceListPtr = std::shared_ptr<const PieceList>;

// Whether `hash` has the form of PieceList::FileHash.
bool IsPieceListHash(absl::string_view hash);

}  // namespace sluice
