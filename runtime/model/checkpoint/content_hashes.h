#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/piece_list.h"
#include "common/threads/mutex.h"

namespace sluice {

// Returns a stamp of a file that changes whenever its content may have: its
// path, size, inode and times of change, as a word without spaces. kDataLoss if
// they can't be read.
absl::StatusOr<std::string> FileStamp(const std::string& path, int fd);
absl::StatusOr<std::string> FileStamp(const std::string& path);

// The hashes of files and of their pieces (PieceList), remembered for as long
// as the files' stamps stay the same: the files' in a small text file, the
// pieces' in a file each, beside it. Thread-safe; several processes may share
// these files.
class ContentHashes {
 public:
  struct File {
    std::string hash;  // PieceList::FileHash
    PieceListPtr pieces;
  };

  // Unreadable lines of `cache_file` are ignored; "": nothing is kept. A file
  // that was changed less than `settle` ago is not remembered, since it may
  // change again within the resolution of its times.
  explicit ContentHashes(std::string cache_file,
                         absl::Duration settle = absl::Seconds(2));

  // Called after each piece read, of a few MiB; an error ends hashing and is
  // returned.
  using Progress = absl::FunctionRef<absl::Status(uint64_t bytes)>;
  // Returns the file's hashes. kDataLoss if it cannot be read, kAborted if it
  // changed meanwhile, kInvalidArgument if it is larger than
  // kMaxPiecedFileBytes.
  absl::StatusOr<File> Of(const std::string& path, int fd, Progress progress);
  // Returns the hashes if they are known without reading the file.
  std::optional<File> Known(const std::string& path, int fd) const;
  // To be called when an unchanged file's hashes prove to be wrong: others who
  // know them hash it anew, too, when they start.
  void Forget(const std::string& path, int fd);

 private:
  void Remember(const std::string& stamp, const File& file);
  void AddLine(absl::string_view hash, absl::string_view stamp) const;

  const std::string cache_file_;
  const absl::Duration settle_;
  mutable Mutex mu_;
  // By stamp. Files that a former process hashed have no pieces.
  mutable std::map<std::string, File> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
