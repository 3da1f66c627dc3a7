#include "coordinator/store/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Acquire(
    const std::filesystem::path& state_dir) {
  SLUICE_RETURN_IF_ERROR(MakeDirectory("--state-dir", state_dir));
  const std::string path = (state_dir / "lock").string();
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return FailedPrecondition("cannot open ", path, ": ", strerror(errno));
  }
  std::unique_ptr<StateLock> lock(new StateLock(fd));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return FailedPrecondition("cannot lock ", path, ": ", strerror(errno));
    }
    char pid[32] = {};
    const ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);
    return FailedPrecondition(
        "the state directory ", state_dir.string(),
        " is in use by another coordinator",
        n > 0 ? absl::StrCat(" (process ", absl::StripAsciiWhitespace(pid), ")")
              : "",
        "; stop it, or use another state directory");
  }
  // The pid is only for the message above, so errors are ignored.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) {
  }
  return lock;
}

StateLock::~StateLock() { close(fd_); }

}  // namespace sluice
