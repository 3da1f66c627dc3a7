#include "runtime/model/pieces/model_shelf.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/status_macros.h"
#include "runtime/model/pieces/piece_file.h"

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
    return ReadPiece(fd_, path_, *list_, piece, to);
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
