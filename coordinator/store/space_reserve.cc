#include "coordinator/store/space_reserve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

namespace sluice {
namespace {

constexpr int64_t kMinBytes = 64 << 10;

}  // namespace

int64_t SpaceReserve::held_bytes() const {
  struct stat info;
  if (stat(path_.c_str(), &info) != 0) return 0;
  return std::min<int64_t>(info.st_size, int64_t{512} * info.st_blocks);
}

void SpaceReserve::Fill() {
  const int64_t held = held_bytes();
  struct statvfs disk;
  if (held >= bytes_ || statvfs(path_.parent_path().c_str(), &disk) != 0) {
    return;
  }
  const auto free =
      static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  const int64_t wanted = std::min(bytes_, held + free / 4);
  if (wanted < held + kMinBytes) return;
  const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return;
  // It may fail half-way, if others take the room first.
  if (posix_fallocate(fd, 0, wanted) != 0 && ftruncate(fd, held) != 0) {
  }
  close(fd);
}

void SpaceReserve::Release() {
  if (truncate(path_.c_str(), 0) != 0) {  // then there is no reserve
  }
}

}  // namespace sluice
