#include "common/host/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

absl::Status FileError(absl::string_view what,
                       const std::filesystem::path& path, int error) {
  const absl::StatusCode code = error == EISDIR || error == ENOTDIR
                                    ? absl::StatusCode::kFailedPrecondition
                                    : absl::ErrnoToStatusCode(error);
  return absl::Status(code, absl::StrCat("cannot ", what, " ", path.string(),
                                         ": ", std::strerror(error)));
}

// Writes all of `text` and syncs it to disk. Returns an errno, or 0.
int WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return fsync(fd) == 0 ? 0 : errno;
}

}  // namespace

absl::Status ReplaceFile(const std::filesystem::path& path,
                         absl::string_view contents) {
  std::string beside = path.string() + ".XXXXXX";
  const int fd = mkostemp(beside.data(), O_CLOEXEC);
  if (fd < 0) return FileError("write", path, errno);
  int error = fchmod(fd, 0644) == 0 ? 0 : errno;
  if (error == 0) error = WriteAll(fd, contents);
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(beside.c_str());
  return FileError("write", path, error);
}

absl::Status MakeDirectory(absl::string_view what,
                           const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directory(dir, error);
  if (!error) return absl::OkStatus();
  if (error == std::errc::no_such_file_or_directory) {
    std::filesystem::path parent = dir.parent_path();
    if (!dir.has_filename()) parent = parent.parent_path();  // "a/b/"
    return InvalidArgument(what, " ", dir.string(), ": there is no directory ",
                           parent.string(),
                           "; make it first, or name another one");
  }
  return FailedPrecondition(what, ": can't make the directory ", dir.string(),
                            ": ", error.message());
}

absl::Status SyncDirectory(const std::filesystem::path& dir) {
  const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int error = fd >= 0 && fsync(fd) == 0 ? 0 : errno;
  if (fd >= 0) close(fd);
  // EINVAL comes from a file system without fsync.
  return error == 0 || error == EINVAL ? absl::OkStatus()
                                       : FileError("sync", dir, error);
}

}  // namespace sluice
