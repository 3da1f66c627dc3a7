#include "runtime/model/checkpoint/whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/status_macros.h"

namespace sluice {

absl::Status ReadPiece(int fd, const std::string& path, const PieceList& list,
                       uint64_t piece, char* to) {
  uint64_t left = list.bytes(piece);
  uint64_t offset = piece * kPieceBytes;
  while (left > 0) {
    const ssize_t n = pread(fd, to, left, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return DataLoss(path, ": can't read: ",
                      n < 0 ? std::strerror(errno) : "it was cut short");
    }
    to += n;
    offset += static_cast<uint64_t>(n);
    left -= static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

WholeFile::~WholeFile() { close(fd_); }

}  // namespace sluice
