#include "common/host/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path,
                                          size_t max_bytes) {
  // With O_NONBLOCK, opening a FIFO does not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string message =
        absl::StrCat(path.string(), ": cannot open: ", std::strerror(errno));
    return errno == ENOENT || errno == ENOTDIR
               ? absl::NotFoundError(message)
               : absl::FailedPreconditionError(message);
  }
  struct stat info;
  std::string text;
  absl::Status status;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = InvalidArgument(path.string(), ": not a regular file");
  } else if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    status =
        InvalidArgument(path.string(), ": ", info.st_size,
                        " bytes, but at most ", max_bytes, " are accepted");
  } else {
    text.resize(static_cast<size_t>(info.st_size));
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = read(fd, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        status =
            DataLoss(path.string(), ": cannot read: ", std::strerror(errno));
        break;
      }
      if (n == 0) break;  // the file has shrunk
      done += static_cast<size_t>(n);
    }
    text.resize(done);
  }
  close(fd);
  if (!status.ok()) return status;
  if (IsLfsPointer(text)) {
    return InvalidArgument(path.string(), ": ", kLfsPointerAdvice);
  }
  return text;
}

}  // namespace sluice
