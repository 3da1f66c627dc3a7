#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/piece_reader.h"
#include "common/threads/mutex.h"

namespace sluice {

// A file of which only some pieces are here: a sparse file of the full size,
// whose absent pieces are holes, with the record of those that are present.
//
// Beside the file NAME lie
//   NAME.present  a log: 8 bytes for each piece that came or went
//   NAME.settled  the FileStamp of NAME, and the length of the log, when all of
//                 that was last on disk
//
// A piece is recorded after it was hashed and written, and counts after a
// restart only if it was recorded when NAME settled, and NAME is unchanged, or
// if its hash is right still. So a crash at any moment, and damage, cost no
// more than the pieces concerned. Several processes may write one file; each
// sees the others' pieces by Refresh(). Thread-safe.
class PieceFile : public PieceReader {
 public:
  enum class State : uint8_t {
    kAbsent,
    kRecorded,  // perhaps damaged: see Check
    kPresent,
  };

  // Makes the file if there is none. `only_user`: no other process has it open,
  // so that the space of absent pieces is given back. kDataLoss and
  // kResourceExhausted (no space left) name the file.
  static absl::StatusOr<std::shared_ptr<PieceFile>> Open(
      const std::filesystem::path& path, PieceListPtr list, bool only_user);
  ~PieceFile() override;

  const PieceList& list() const override { return *list_; }
  const std::string& path() const override { return path_; }
  State state(uint64_t piece) const;
  // The bytes of pieces that are present or recorded.
  uint64_t recorded_bytes() const;

  // Reads a recorded piece and returns whether its hash is right; if not, it
  // becomes absent.
  absl::StatusOr<bool> Check(uint64_t piece);
  // Writes a piece, whose hash the caller has checked, from its consecutive
  // parts. kResourceExhausted: no space left.
  absl::Status Write(uint64_t piece, std::span<const absl::string_view> parts);
  // kNotFound unless the piece is present.
  absl::Status Read(uint64_t piece, char* to) override;

  // To be called when something was wrong with the file: all that is present
  // is only recorded from now on, and the file has its size again.
  void Doubt();
  // Whether the file is still where it was opened, as far as that can be told:
  // it may have been removed, or another one may have taken its place.
  bool InPlace() const;

  // Takes over what other processes have recorded meanwhile.
  void Refresh();
  // Sets disk space aside for absent pieces, if the file system can.
  // kResourceExhausted: there is too little.
  absl::Status Reserve(std::span<const uint64_t> pieces);
  // Gives pieces and their space up. No other process may have the file open.
  absl::Status Drop(std::span<const uint64_t> pieces);
  // Brings data and record to disk and notes the stamp, unless nothing has
  // changed since.
  absl::Status Settle();

 private:
  PieceFile(std::string path, PieceListPtr list)
      : path_(std::move(path)), list_(std::move(list)) {}
  absl::Status OpenFiles();
  // The bytes of the log that count without a check.
  uint64_t SettledBytes() const;
  // Removes an incomplete record from the end of the log.
  void TrimLog() const;
  // Reads the log, of which the first bytes are settled; gives back the space
  // of absent pieces if some are not.
  void Replay(uint64_t settled, bool only_user);
  // Reads the log up to `end`, and takes what it says is there as `as`.
  void ReplayLocked(uint64_t end, State as) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RecordLocked(uint64_t piece, bool present)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status BringToDisk() const;
  absl::Status Failed(const char* what, int error) const;
  void Punch(uint64_t first, uint64_t end) const;

  const std::string path_;
  const PieceListPtr list_;
  int fd_ = -1;
  int log_fd_ = -1;
  mutable Mutex mu_;
  std::vector<State> states_ ABSL_GUARDED_BY(mu_);
  uint64_t recorded_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t replayed_ ABSL_GUARDED_BY(mu_) = 0;  // bytes of the log
  // Whether Settle has something to do.
  bool unsettled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
