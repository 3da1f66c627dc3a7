#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Hashes (XXH3, 128 bits) of whole files, remembered in a small text file for
// as long as size, time of change and inode stay the same. Not thread-safe;
// several processes may share the text file.
class ContentHashes {
 public:
  // What cannot be read there is hashed again.
  explicit ContentHashes(std::string cache_file);

  // Hex. kDataLoss if the file cannot be read.
  absl::StatusOr<std::string> Of(const std::string& path, int fd);

 private:
  const std::string cache_file_;
  std::map<std::string, std::string> known_;  // by what stays the same
};

}  // namespace sluice
