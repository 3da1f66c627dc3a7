#include "runtime/model/pieces/model_shelf.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "common/status_macros.h"
#include "runtime/model/checkpoint/whole_file.h"

namespace sluice {

absl::StatusOr<std::shared_ptr<PieceReader>> ModelShelf::Find(
    const PiecedFile& file) {
  PieceListPtr list = content_->Pieces(file.name);
  if (list == nullptr || list->file_bytes() != file.bytes ||
      list->FileHash() != file.hash) {
    return NotFound("no such file ", file.name, " here");
  }
  std::error_code ignored;
  // Parts of a GGUF model lie beside the one that was named.
  const std::filesystem::path dir =
      std::filesystem::is_regular_file(dir_, ignored) ? dir_.parent_path()
                                                      : dir_;
  std::string path = (dir / file.name).string();
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return DataLoss(file.name, ": can't open: ", std::strerror(errno));
  }
  return std::make_shared<WholeFile>(std::move(path), fd, std::move(list));
}

}  // namespace sluice
