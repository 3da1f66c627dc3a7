#include "runtime/memory/disk/disk_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/blocks.h"
#include "common/host/logging.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr char kOtherDir[] = "choose another directory with --disk-dir";

std::string DirOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The status code of errors of opening files or directories.
absl::StatusCode OpenCode(int error) {
  switch (error) {
    case EROFS:
    case ETXTBSY:
      return absl::StatusCode::kPermissionDenied;
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
      return absl::StatusCode::kFailedPrecondition;
    case EDQUOT:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::ErrnoToStatusCode(error);
  }
}

absl::Status CreateError(const std::string& what, const std::string& dir,
                         int error) {
  const char* advice = error == ENOENT    ? "create it, or "
                       : error == ENOTDIR ? "it is no directory: "
                       : error == EROFS   ? "it is read-only: "
                       : error == EACCES || error == EPERM
                           ? "let this user write there, or "
                           : "";
  return absl::Status(
      OpenCode(error),
      absl::StrCat("cannot create ", what, " in directory ", dir, ": ",
                   strerror(error), "; ", advice, kOtherDir));
}

// Gets the bytes free for this user. False if they cannot be read, or if the
// file system has none: some in user space, and ramfs, have no blocks at all.
bool FreeBytes(int fd, uint64_t* bytes) {
  struct statvfs stats;
  if (fstatvfs(fd, &stats) != 0 || stats.f_blocks == 0) return false;
  *bytes = static_cast<uint64_t>(stats.f_bavail) * stats.f_frsize;
  return true;
}

absl::Status NoRoom(const std::string& name, uint64_t bytes, int fd,
                    absl::string_view why) {
  uint64_t free = 0;
  std::string left = "an unknown number of";
  if (FreeBytes(fd, &free)) left = absl::StrCat(free);
  return ResourceExhausted(name, ": no room on the disk for ", bytes,
                           " bytes: ", left, " bytes are free (", why,
                           "); free some, lower ", "--disk-space, or ",
                           kOtherDir);
}

void WarnOnce(const std::string& dir, absl::string_view why) {
  static Mutex mu;
  static std::set<std::string>* const warned = new std::set<std::string>();
  {
    MutexLock lock(&mu);
    if (!warned->insert(dir).second) return;
  }
  LogWarning("dir=", dir, " files there are read and written ",
             "through the page cache: ", why);
}

}  // namespace

absl::StatusOr<uint64_t> FreeDiskBytes(const std::string& dir) {
  struct statvfs stats;
  if (statvfs(dir.c_str(), &stats) != 0) {
    const int error = errno;
    return absl::Status(
        OpenCode(error),
        absl::StrCat("cannot read how much is free in directory ", dir, ": ",
                     strerror(error), "; ",
                     error == ENOENT ? "create it, or " : "", kOtherDir));
  }
  if (stats.f_blocks == 0) {
    return FailedPrecondition(
        "the file system of directory ", dir,
        " does not say how much is free; say how much may be ",
        "used with --disk-space");
  }
  return static_cast<uint64_t>(stats.f_bavail) * stats.f_frsize;
}

DiskFile::DiskFile(int fd, std::string name, Access access, std::string dir)
    : fd_(fd), name_(std::move(name)), access_(access), dir_(std::move(dir)) {}

DiskFile::~DiskFile() { close(fd_); }

absl::StatusOr<std::unique_ptr<DiskFile>> DiskFile::CreateTemporary(
    const std::string& dir, const std::string& name, uint64_t bytes,
    MemoryBudget* budget, bool direct) {
  bytes = RoundUpToDiskBlock(bytes);
  SLUICE_ASSIGN_OR_RETURN(MemoryCharge charge, budget->Charge(name, bytes));
  int fd = open(dir.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    // This file system cannot make files without a name.
    std::string path = absl::StrCat(dir, "/sluice-XXXXXX");
    fd = mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) unlink(path.c_str());
  }
  if (fd < 0) return CreateError(name, dir, errno);
  std::unique_ptr<DiskFile> file(new DiskFile(
      fd, absl::StrCat(dir, "/(", name, ")"), Access::kReadWrite, dir));
  file->charge_ = std::move(charge);
  SLUICE_RETURN_IF_ERROR(file->Reserve(bytes));
  file->UseDirectIfPossible(direct);
  return file;
}

absl::StatusOr<std::unique_ptr<DiskFile>> DiskFile::Create(
    const std::string& path, uint64_t bytes, MemoryBudget* budget,
    bool direct) {
  bytes = RoundUpToDiskBlock(bytes);
  SLUICE_ASSIGN_OR_RETURN(MemoryCharge charge, budget->Charge(path, bytes));
  // The old file is removed, not emptied, as others may have it open.
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return CreateError(path, DirOf(path), errno);
  }
  const int fd =
      open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
  if (fd < 0) return CreateError(path, DirOf(path), errno);
  std::unique_ptr<DiskFile> file(
      new DiskFile(fd, path, Access::kReadWrite, DirOf(path)));
  file->charge_ = std::move(charge);
  if (absl::Status status = file->Reserve(bytes); !status.ok()) {
    unlink(path.c_str());
    return status;
  }
  file->UseDirectIfPossible(direct);
  return file;
}

absl::StatusOr<std::unique_ptr<DiskFile>> DiskFile::OpenForRead(
    const std::string& path, bool direct) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat stats;
  if (fd < 0 || fstat(fd, &stats) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return absl::Status(OpenCode(error), absl::StrCat("cannot open ", path,
                                                      ": ", strerror(error)));
  }
  std::unique_ptr<DiskFile> file(
      new DiskFile(fd, path, Access::kRead, DirOf(path)));
  if (!S_ISREG(stats.st_mode)) {
    return FailedPrecondition("cannot open ", path, ": it is no regular file");
  }
  file->bytes_ = static_cast<uint64_t>(stats.st_size);
  file->UseDirectIfPossible(direct);
  return file;
}

absl::Status DiskFile::Reserve(uint64_t bytes) {
  bytes_ = bytes;
  if (bytes == 0) return absl::OkStatus();
  // Asking first keeps a hopeless reservation from filling the disk for a
  // moment, and the process from SIGXFSZ.
  uint64_t free = 0;
  if (FreeBytes(fd_, &free) && bytes > free) {
    return NoRoom(name_, bytes, fd_, strerror(ENOSPC));
  }
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return NoRoom(name_, bytes, fd_,
                  absl::StrCat("and this process may write files of ",
                               limit.rlim_cur, " bytes, see ulimit -f"));
  }
  int result;
  do {
    result = fallocate(fd_, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  if (errno == EOPNOTSUPP) {
    // This file system reserves nothing: a full disk shows at a write.
    if (ftruncate(fd_, static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
  }
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return NoRoom(name_, bytes, fd_, strerror(error));
  }
  return absl::Status(OpenCode(error),
                      absl::StrCat(name_, ": cannot reserve ", bytes,
                                   " bytes: ", strerror(error)));
}

void DiskFile::UseDirectIfPossible(bool direct) {
  std::string why = "asked for";
  if (direct) {
    struct statfs stats;
    struct statx alignment;
    const int flags = fcntl(fd_, F_GETFL);
    if (fstatfs(fd_, &stats) == 0 && stats.f_type == TMPFS_MAGIC) {
      why = "it is a tmpfs, whose files are memory and not disk";
    } else if (statx(fd_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &alignment) == 0 &&
               (alignment.stx_mask & STATX_DIOALIGN) != 0 &&
               (alignment.stx_dio_offset_align == 0 ||
                alignment.stx_dio_offset_align > kDiskBlockBytes ||
                alignment.stx_dio_mem_align > kDiskBlockBytes)) {
      why = absl::StrCat("its direct I/O wants an alignment of ",
                         alignment.stx_dio_offset_align,
                         " bytes (0: there is none)");
    } else if (fcntl(fd_, F_SETFL, flags | O_DIRECT) != 0) {
      why = absl::StrCat("it has no direct I/O: ", strerror(errno));
    } else {
      // Some file systems refuse O_DIRECT only at a read.
      alignas(kDiskBlockBytes) std::byte probe[kDiskBlockBytes];
      if (bytes_ < kDiskBlockBytes || pread(fd_, probe, sizeof probe, 0) >= 0 ||
          errno != EINVAL) {
        direct_ = true;
        return;
      }
      fcntl(fd_, F_SETFL, flags);
      why = absl::StrCat("it refuses direct reads: ", strerror(EINVAL));
    }
    WarnOnce(dir_, why);
  }
  // Without read-ahead, no data beyond a request stays in the cache.
  posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
}

absl::Status DiskFile::CheckRange(uint64_t offset, const void* memory,
                                  size_t bytes, bool write) const {
  if (offset % kDiskBlockBytes != 0 || bytes % kDiskBlockBytes != 0 ||
      reinterpret_cast<uintptr_t>(memory) % kDiskBlockBytes != 0) {
    return InvalidArgument(name_, ": ", bytes, " bytes at offset ", offset,
                           " are not aligned to ", kDiskBlockBytes,
                           " on disk and in memory");
  }
  if (write && access_ == Access::kRead) {
    return absl::PermissionDeniedError(
        absl::StrCat(name_, ": opened for reading, not for writing"));
  }
  if (offset > bytes_ || bytes > bytes_ - offset) {
    const std::string message =
        absl::StrCat(name_, ": ", bytes, " bytes at offset ", offset,
                     " reach past its end at ", bytes_);
    return write ? absl::InvalidArgumentError(message)
                 : absl::DataLossError(message);
  }
  return absl::OkStatus();
}

absl::Status DiskFile::RequestError(uint64_t offset, size_t bytes, bool write,
                                    int error) const {
  const std::string message =
      absl::StrCat(write ? "writing " : "reading ", bytes, " bytes at offset ",
                   offset, write ? " to " : " of ", name_, ": ",
                   error == 0 ? "the file ends there" : strerror(error));
  switch (error) {
    case 0:
    case EIO:
    case ENODATA:
    case EILSEQ:
    case EBADMSG:
    case EUCLEAN:
      return absl::DataLossError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhausted(message, "; free some room, or ", kOtherDir);
    default:
      return absl::Status(OpenCode(error), message);
  }
}

void DiskFile::DropFromCache(uint64_t offset, size_t bytes, bool write) const {
  if (direct_) return;
  const off_t begin = static_cast<off_t>(offset);
  if (!write) {
    posix_fadvise(fd_, begin, static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
    return;
  }
  // Dirty pages cannot be dropped: start to write these now, and wait for
  // those written some requests ago.
  sync_file_range(fd_, begin, static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
  Written oldest;
  {
    MutexLock lock(&mu_);
    oldest = std::exchange(written_[next_written_], {offset, bytes});
    next_written_ = (next_written_ + 1) % kWritten;
  }
  if (oldest.bytes == 0) return;
  sync_file_range(fd_, static_cast<off_t>(oldest.offset),
                  static_cast<off_t>(oldest.bytes),
                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                      SYNC_FILE_RANGE_WAIT_AFTER);
  posix_fadvise(fd_, static_cast<off_t>(oldest.offset),
                static_cast<off_t>(oldest.bytes), POSIX_FADV_DONTNEED);
}

absl::Status DiskFile::Read(uint64_t offset, std::span<std::byte> out) const {
  SLUICE_RETURN_IF_ERROR(CheckRange(offset, out.data(), out.size(), false));
  return Transfer(offset, out.data(), out.size(), /*write=*/false);
}

absl::Status DiskFile::Write(uint64_t offset, std::span<const std::byte> in) {
  SLUICE_RETURN_IF_ERROR(CheckRange(offset, in.data(), in.size(), true));
  return Transfer(offset, const_cast<std::byte*>(in.data()), in.size(),
                  /*write=*/true);
}

absl::Status DiskFile::Transfer(uint64_t offset, std::byte* memory,
                                size_t bytes, bool write) const {
  size_t done = 0;
  while (done < bytes) {
    const off_t at = static_cast<off_t>(offset + done);
    const ssize_t n = write ? pwrite(fd_, memory + done, bytes - done, at)
                            : pread(fd_, memory + done, bytes - done, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || AtEnd(offset + done + n, bytes - done - n)) {
      return RequestError(offset, bytes, write, n < 0 ? errno : 0);
    }
    done += static_cast<size_t>(n);
  }
  DropFromCache(offset, bytes, write);
  return absl::OkStatus();
}

bool DiskFile::AtEnd(uint64_t offset, size_t wanted) const {
  struct stat stats;
  return wanted > 0 && fstat(fd_, &stats) == 0 &&
         offset >= static_cast<uint64_t>(stats.st_size);
}

absl::Status DiskFile::Sync() {
  if (fdatasync(fd_) != 0) {
    const int error = errno;
    return absl::Status(
        RequestError(0, 0, true, error).code(),
        absl::StrCat(name_, ": cannot be synced: ", strerror(error)));
  }
  if (!direct_) posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

}  // namespace sluice
