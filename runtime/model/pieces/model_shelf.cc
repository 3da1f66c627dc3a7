#include "runtime/model/pieces/model_shelf.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/status_macros.h"

namespace sluice {
namespace {

class WholeFile : public PieceReader {
 public:
  WholeFile(std::string path, PieceListPtr list)
      : path_(std::move(path)),
        list_(std::move(list)),
        fd_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~WholeFile() override {
    if (fd_ >= 0) close(fd_);
  }
  bool is_open() const { return fd_ >= 0; }

  const PieceList& list() const override { return *list_; }
  absl::Status Read(uint64_t piece, char* to) override {
    uint64_t left = list_->bytes(piece);
    uint64_t offset = piece * kPieceBytes;
    while (left > 0) {
      const ssize_t n = pread(fd_, to, left, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        return DataLoss(path_, ": can't read: ",
                        n < 0 ? std::strerror(errno) : "it was cut short");
      }
      to += n;
      offset += static_cast<uint64_t>(n);
      left -= static_cast<uint64_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const PieceListPtr list_;
  const int fd_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<PieceReader>> ModelShelf::Find(
    const PiecedFile& file) {
  PieceListPtr list = content_->Pieces(file.name);
  if (list == nullptr || list->file_bytes() != file.bytes ||
      list->FileHash() != file.hash) {
    return NotFound("no such file ", file.name, " here");
  }
  auto whole =
      std::make_shared<WholeFile>((dir_ / file.name).string(), std::move(list));
  if (!whole->is_open()) {
    return DataLoss(file.name, ": can't open: ", std::strerror(errno));
  }
  return whole;
}

}  // namespace sluice
