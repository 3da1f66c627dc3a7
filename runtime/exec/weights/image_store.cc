#include "runtime/exec/weights/image_store.h"

#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "runtime/memory/checksum.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/placement/buffer_sizes.h"
#include "runtime/weights/packed_weights.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr char kChargeName[] = "weight images";
constexpr char kImageSuffix[] = ".img";

fs::path ImagesDir(const std::string& disk_dir) {
  return fs::path(disk_dir) / "images";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageStore>> ImageStore::Create(
    const Options& options, TensorSource::Progress progress) {
  SLUICE_ASSIGN_OR_RETURN(
      const std::string content,
      options.source->ContentId(
          (fs::path(options.disk_dir) / "content-hashes").string(), progress));
  std::string key = absl::StrCat(content, ";", options.weights->ImageKey());
  const fs::path dir =
      ImagesDir(options.disk_dir) /
      absl::StrFormat("%016x",
                      BlockChecksum(std::as_bytes(
                          std::span<const char>(key.data(), key.size()))));
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    return absl::Status(
        absl::ErrnoToStatusCode(error.value()),
        absl::StrCat("can't make the directory ", dir.string(), ": ",
                     error.message(), "; choose another --disk-dir"));
  }
  return std::unique_ptr<ImageStore>(
      new ImageStore(options, std::move(key), dir));
}

void ImageStore::RemoveOrphans(const std::string& disk_dir) {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(ImagesDir(disk_dir), error)) {
    removed += ImageFile::RemoveOrphans(entry.path());
  }
  if (removed > 0) {
    LogInfo(absl::StrCat("removed ", removed, " unfinished images from ",
                         disk_dir));
  }
}

uint64_t ImageStore::DiskBytes(const std::string& disk_dir) {
  uint64_t bytes = 0;
  std::error_code error;  // what can't be read counts for nothing
  fs::recursive_directory_iterator file(ImagesDir(disk_dir), error);
  for (const fs::recursive_directory_iterator end; !error && file != end;
       file.increment(error)) {
    if (file->path().extension() != kImageSuffix) continue;
    std::error_code gone;
    const uintmax_t size = file->file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<ImageFile>> ImageStore::Get(
    const std::string& name, size_t bytes, Pack pack, Use use) const {
  const fs::path path = dir_ / absl::StrCat(name, kImageSuffix);
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<ImageFile>> {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<ImageFile> image,
                            ImageFile::Open(path, key_, bytes));
    SLUICE_ASSIGN_OR_RETURN(
        MemoryCharge charge,
        options_.disk->Charge(kChargeName, ImageFileBytes(bytes)));
    image->Hold(std::move(charge));
    SLUICE_RETURN_IF_ERROR(use(*image));
    return image;
  };
  absl::StatusOr<std::unique_ptr<ImageFile>> image = open();
  const absl::Status& status = image.status();
  if (!absl::IsNotFound(status) && !absl::IsFailedPrecondition(status) &&
      !absl::IsDataLoss(status)) {
    return image;
  }
  if (!absl::IsNotFound(status)) {
    LogWarning(absl::StrCat(status.message(), "; making it anew"));
  }
  {
    SLUICE_ASSIGN_OR_RETURN(
        HostBuffer window,
        HostBuffer::Create("image being made", ImageWindowBytes(bytes),
                           options_.memory));
    SLUICE_RETURN_IF_ERROR(ImageFile::Write(
        path, key_, bytes, {window.as<std::byte>(), window.bytes()}, pack,
        options_.disk));
  }
  return open();
}

}  // namespace sluice
