#include "coordinator/jobs/requests/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

bool IsInside(const fs::path& root, const fs::path& path) {
  const auto [in_root, in_path] =
      std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return in_root == root.end() && in_path != path.end();
}

absl::Status Outside(const std::string& path) {
  return absl::PermissionDeniedError(
      absl::StrCat("input_path ", QuoteForMessage(path, 512),
                   " leads out of the coordinator's input root; give a path "
                   "under it"));
}

absl::Status OpenError(const std::string& path, int error) {
  const std::string what =
      absl::StrCat("cannot open input_path ", QuoteForMessage(path, 512), ": ",
                   strerror(error));
  return error == ENOENT || error == ENOTDIR
             ? absl::NotFoundError(what)
             : absl::PermissionDeniedError(what);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NamedInputFile>> NamedInputFile::Open(
    const fs::path& root, const std::string& path) {
  if (root.empty()) {
    return absl::PermissionDeniedError(
        "this coordinator reads no files for its clients: it was started "
        "without an input root; upload the file instead");
  }
  if (path.empty() || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("spec.input_path is not a path");
  }
  std::error_code error;
  const fs::path real_root = fs::canonical(root, error);
  if (error) {
    return FailedPrecondition("the input root ", root.string(), ": ",
                              error.message());
  }
  // Paths outside are refused before anything about them is revealed.
  const fs::path wanted = real_root / path;
  if (!IsInside(real_root, wanted.lexically_normal())) return Outside(path);
  const fs::path resolved = fs::weakly_canonical(wanted, error);
  if (error) return OpenError(path, error.value());
  if (!IsInside(real_root, resolved)) return Outside(path);

  // With O_NONBLOCK, opening a FIFO does not wait for a writer.
  const int fd =
      open(resolved.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return OpenError(path, errno);
  std::unique_ptr<NamedInputFile> file(new NamedInputFile(fd, path));
  struct stat info;
  if (fstat(fd, &info) != 0) return OpenError(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument("input_path ", QuoteForMessage(path, 512),
                           " is not a regular file");
  }
  // Links may have changed since they were resolved, so the path of the opened
  // file is checked.
  const fs::path opened =
      fs::read_symlink(absl::StrCat("/proc/self/fd/", fd), error);
  if (error || !IsInside(real_root, opened)) return Outside(path);
  return file;
}

NamedInputFile::~NamedInputFile() { close(fd_); }

absl::StatusOr<size_t> NamedInputFile::Read(char* buffer, size_t size) {
  while (true) {
    const ssize_t n = read(fd_, buffer, size);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR) {
      return Unavailable("cannot read input_path ", QuoteForMessage(path_, 512),
                         ": ", strerror(errno));
    }
  }
}

}  // namespace sluice
