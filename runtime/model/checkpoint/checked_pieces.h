#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/piece_reader.h"
#include "common/threads/mutex.h"

namespace sluice {

// Reads piece `piece` of `file` into `to`, and compares it with its hash.
// kDataLoss if it can't be read, is not there, or is not what was hashed.
absl::Status ReadCheckedPiece(PieceReader& file, uint64_t piece, char* to);

// Reads ranges of files of which the pieces' hashes are known. What it hands
// out are the very bytes that were hashed, so that nobody sees what changes on
// disk meanwhile. Pieces that were read last are kept, about two for each
// core, since those who read a piece come in parts and several at once: while
// one thread reads a piece, others who want it read the next ones ahead.
// Thread-safe.
class CheckedPieces {
 public:
  CheckedPieces();

  // Takes consecutive parts of the range, which are gone after the call.
  using Take = absl::FunctionRef<void(absl::string_view part)>;
  // Reads bytes [begin, end) of the file, which may be followed by calls up to
  // byte `ahead_end`. Errors as of ReadCheckedPiece. `file` must outlive this.
  absl::Status Read(PieceReader& file, uint64_t begin, uint64_t end,
                    uint64_t ahead_end, Take take);

 private:
  struct Entry {
    const PieceReader* file = nullptr;  // null: nothing is here
    uint64_t piece = 0;
    bool reading = false;
    int users = 0;
    uint64_t used = 0;  // the time of the last use
    std::unique_ptr<char[]> bytes;
  };

  // Returns the piece, in use until Release.
  absl::Status Get(PieceReader& file, uint64_t piece, uint64_t ahead_end,
                   Entry** entry);
  void Release(Entry* entry);
  Entry* FindLocked(const PieceReader& file, uint64_t piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a place for a piece that is going to be read.
  Entry* TakeLocked(const PieceReader& file, uint64_t piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads the piece to the place taken for it; in use then, if `use`.
  absl::Status Fill(PieceReader& file, Entry* entry, bool use);
  // Takes a place for the first piece of [begin, end) that is not here, if it
  // is near; null if there is none.
  Entry* TakeAheadLocked(const PieceReader& file, uint64_t begin, uint64_t end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t ahead_;  // the most pieces that are read ahead
  Mutex mu_;
  CondVar changed_;
  std::vector<std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t time_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice
