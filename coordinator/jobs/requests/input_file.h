#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// A file on the coordinator's side that a client named.
class NamedInputFile {
 public:
  // Opens `path`, relative to `root` or inside it; symbolic links are followed,
  // and their targets must be inside too. kPermissionDenied outside the root or
  // if `root` is ""; kNotFound; kInvalidArgument if it is no regular file.
  static absl::StatusOr<std::unique_ptr<NamedInputFile>> Open(
      const std::filesystem::path& root, const std::string& path);
  ~NamedInputFile();
  NamedInputFile(const NamedInputFile&) = delete;
  NamedInputFile& operator=(const NamedInputFile&) = delete;

  // Reads the next bytes, up to `size` of them; returns 0 at the end.
  absl::StatusOr<size_t> Read(char* buffer, size_t size);

 private:
  NamedInputFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  const int fd_;
  const std::string path_;
};

}  // namespace sluice
