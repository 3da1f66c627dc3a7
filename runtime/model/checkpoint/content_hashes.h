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

// What a file system tells of a file that changes whenever its content may
// have: where it is, its size, inode, and times of change. A word without
// spaces. kDataLoss if it can't be asked.
absl::StatusOr<std::string> FileStamp(const std::string& path, int fd);
absl::StatusOr<std::string> FileStamp(const std::string& path);

// Hashes (XXH3, 128 bits) of whole files, remembered in a small text file for
// as long as their stamps stay the same. Thread-safe; several processes may
// share the text file.
class ContentHashes {
 public:
  // What cannot be read in `cache_file` is hashed again; "": nothing is kept.
  // A file that was changed less than `settle` ago is not remembered, since it
  // may change again within the grain of its times.
  explicit ContentHashes(std::string cache_file,
                         absl::Duration settle = absl::Seconds(2));

  // Called after each piece that was read; not OK: hashing ends with that.
  using Progress = absl::FunctionRef<absl::Status(uint64_t bytes)>;
  // Hex. kDataLoss if the file cannot be read, kAborted if it changed
  // meanwhile.
  absl::StatusOr<std::string> Of(const std::string& path, int fd,
                                 Progress progress);
  // If it is known without reading the file.
  std::optional<std::string> Known(const std::string& path, int fd) const;

 private:
  void Remember(const std::string& stamp, const std::string& hash);

  const std::string cache_file_;
  const absl::Duration settle_;
  mutable Mutex mu_;
  std::map<std::string, std::string> known_ ABSL_GUARDED_BY(mu_);  // by stamp
};

// Of `bytes`, as ContentHashes does files.
std::string ContentHash(absl::string_view bytes);

}  // namespace sluice
