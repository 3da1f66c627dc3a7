#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/threads/mutex.h"

namespace sluice {

// Returns a stamp of a file that changes whenever its content may have: its
// path, size, inode and times of change, as a word without spaces. kDataLoss if
// they can't be read.
absl::StatusOr<std::string> FileStamp(const std::string& path, int fd);
absl::StatusOr<std::string> FileStamp(const std::string& path);

// Hashes (ContentHash) of whole files, remembered in a small text file for
// as long as their stamps stay the same. Thread-safe; several processes may
// share the text file.
class ContentHashes {
 public:
  // Unreadable lines of `cache_file` are ignored; "": nothing is kept. A file
  // that was changed less than `settle` ago is not remembered, since it may
  // change again within the resolution of its times.
  explicit ContentHashes(std::string cache_file,
                         absl::Duration settle = absl::Seconds(2));

  // Called after each piece read; an error ends hashing and is returned.
  using Progress = absl::FunctionRef<absl::Status(uint64_t bytes)>;
  // Returns the hash in hex. kDataLoss if the file cannot be read, kAborted if
  // it changed meanwhile.
  absl::StatusOr<std::string> Of(const std::string& path, int fd,
                                 Progress progress);
  // Returns the hash if it is known without reading the file.
  std::optional<std::string> Known(const std::string& path, int fd) const;

 private:
  void Remember(const std::string& stamp, const std::string& hash);

  const std::string cache_file_;
  const absl::Duration settle_;
  mutable Mutex mu_;
  std::map<std::string, std::string> known_ ABSL_GUARDED_BY(mu_);  // by stamp
};

}  // namespace sluice
