#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/blocks.h"
#include "common/threads/mutex.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// The bytes that this process may still write to the file system of `dir`.
// Errors are DiskFile's; kFailedPrecondition also if they are not known.
absl::StatusOr<uint64_t> FreeDiskBytes(const std::string& dir);

// A file that is read and written past the page cache (O_DIRECT).
//
// If the file system cannot do that (or is tmpfs, which is memory itself), the
// file is read and written through the cache, and dropped from it after each
// use; a warning says so once for each directory, and the contents are the
// same. `direct` = false asks for that.
//
// Errors name the file or directory and what to do: kNotFound and
// kPermissionDenied if it cannot be opened, kFailedPrecondition if it is no
// directory, kResourceExhausted for a budget or a disk without room, kDataLoss
// if the disk cannot read or write.
//
// Read and Write are thread-safe; the results of overlapping ones are not
// defined.
class DiskFile {
 public:
  enum class Access { kRead, kReadWrite };

  // Makes a file of `bytes` (rounded up to the alignment) with room on the disk
  // reserved, charged to `budget` under `name`, which messages show, too. It
  // has no name in `dir`, so that its room is freed when this object is
  // destroyed or the process ends, even by kill -9.
  static absl::StatusOr<std::unique_ptr<DiskFile>> CreateTemporary(
      const std::string& dir, const std::string& name, uint64_t bytes,
      MemoryBudget* budget, bool direct = true);

  // Like CreateTemporary, but at `path`, replacing any file there, and not
  // deleted: the owner renames or removes it. A failure leaves no file.
  static absl::StatusOr<std::unique_ptr<DiskFile>> Create(
      const std::string& path, uint64_t bytes, MemoryBudget* budget,
      bool direct = true);

  static absl::StatusOr<std::unique_ptr<DiskFile>> OpenForRead(
      const std::string& path, bool direct = true);

  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  // Block until all bytes are done, or an error. Ranges and memory must be
  // aligned (kInvalidArgument); a read past the end is kDataLoss, a write past
  // it kInvalidArgument: the reserved room never grows. For more than a header,
  // see IoEngine.
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const;
  absl::Status Write(uint64_t offset, std::span<const std::byte> in);

  // Returns when all that was written survives a power cut (fdatasync).
  absl::Status Sync();

  // The name for people: the path, or a temporary file's directory and name.
  const std::string& name() const { return name_; }
  uint64_t bytes() const { return bytes_; }
  // False if the file is accessed through the page cache.
  bool direct() const { return direct_; }
  int fd() const { return fd_; }

  // The methods below are for IoEngine.

  // Reads or writes all of a range that CheckRange() accepted. Blocking.
  absl::Status Transfer(uint64_t offset, std::byte* memory, size_t bytes,
                        bool write) const;
  // Checks that such a request is valid.
  absl::Status CheckRange(uint64_t offset, const void* memory, size_t bytes,
                          bool write) const;
  // The error of a request that failed with `error` (an errno; 0 if the file
  // ended in it).
  absl::Status RequestError(uint64_t offset, size_t bytes, bool write,
                            int error) const;
  // Whether the file ends at or before `offset`, with `wanted` bytes missing.
  bool AtEnd(uint64_t offset, size_t wanted) const;
  // Must be called after each request, so that the page cache drops it. May
  // wait for earlier writes to reach the disk.
  void DropFromCache(uint64_t offset, size_t bytes, bool write) const;

 private:
  struct Written {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  // Writes that may be under way from the cache to the disk at a time.
  static constexpr size_t kWritten = 8;

  DiskFile(int fd, std::string name, Access access, std::string dir);
  absl::Status Reserve(uint64_t bytes);
  void UseDirectIfPossible(bool direct);

  const int fd_;
  const std::string name_;
  const Access access_;
  const std::string dir_;
  bool direct_ = false;
  uint64_t bytes_ = 0;
  MemoryCharge charge_;
  mutable Mutex mu_;
  mutable Written written_[kWritten] ABSL_GUARDED_BY(mu_);
  mutable size_t next_written_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice
