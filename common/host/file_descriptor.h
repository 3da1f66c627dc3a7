#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

namespace sluice {

// Owns a file descriptor, which it closes. Thread-compatible.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// Whether the file that is open is the one at `path`: it may have been removed
// or replaced.
inline bool IsOpenAt(int fd, const std::filesystem::path& path) {
  struct stat open_file;
  struct stat there;
  return fstat(fd, &open_file) == 0 && stat(path.c_str(), &there) == 0 &&
         open_file.st_ino == there.st_ino && open_file.st_dev == there.st_dev;
}

}  // namespace sluice
