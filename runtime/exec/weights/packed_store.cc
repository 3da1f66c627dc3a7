#include "runtime/exec/weights/packed_store.h"

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

constexpr char kPackedSuffix[] = ".img";

fs::path PackedDir(const std::string& disk_dir) {
  return fs::path(disk_dir) / "images";
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedStore>> PackedStore::Create(
    const Options& options, TensorSource::Progress progress) {
  SLUICE_ASSIGN_OR_RETURN(
      const std::string content,
      options.source->ContentId(
          (fs::path(options.disk_dir) / "content-hashes").string(), progress));
  std::string key = absl::StrCat(content, ";", options.weights->PackedKey());
  const fs::path dir =
      PackedDir(options.disk_dir) /
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
  return std::unique_ptr<PackedStore>(
      new PackedStore(options, std::move(key), dir));
}

void PackedStore::RemoveOrphans(const std::string& disk_dir) {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(PackedDir(disk_dir), error)) {
    removed += PackedFile::RemoveOrphans(entry.path());
  }
  if (removed > 0) {
    LogInfo(absl::StrCat("removed ", removed, " unfinished images from ",
                         disk_dir));
  }
}

uint64_t PackedStore::DiskBytes(const std::string& disk_dir) {
  uint64_t bytes = 0;
  std::error_code error;  // what can't be read counts for nothing
  fs::recursive_directory_iterator file(PackedDir(disk_dir), error);
  for (const fs::recursive_directory_iterator end; !error && file != end;
       file.increment(error)) {
    if (file->path().extension() != kPackedSuffix) continue;
    std::error_code gone;
    const uintmax_t size = file->file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<PackedFile>> PackedStore::Get(
    const std::string& name, size_t bytes, Pack pack, Use use) const {
  const fs::path path = dir_ / absl::StrCat(name, kPackedSuffix);
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<PackedFile>> {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PackedFile> packed,
                            PackedFile::Open(path, key_, bytes));
    SLUICE_ASSIGN_OR_RETURN(
        MemoryCharge charge,
        options_.disk->Charge(kPackedFilesCharge, PackedFileBytes(bytes)));
    packed->Hold(std::move(charge));
    SLUICE_RETURN_IF_ERROR(use(*packed));
    return packed;
  };
  absl::StatusOr<std::unique_ptr<PackedFile>> packed = open();
  const absl::Status& status = packed.status();
  if (!absl::IsNotFound(status) && !absl::IsFailedPrecondition(status) &&
      !absl::IsDataLoss(status)) {
    return packed;
  }
  if (!absl::IsNotFound(status)) {
    LogWarning(absl::StrCat(status.message(), "; making it anew"));
  }
  {
    SLUICE_ASSIGN_OR_RETURN(
        HostBuffer window,
        HostBuffer::Create("image being made", PackedWindowBytes(bytes),
                           options_.memory));
    SLUICE_RETURN_IF_ERROR(PackedFile::Write(
        path, key_, bytes, {window.as<std::byte>(), window.bytes()}, pack,
        options_.disk));
  }
  return open();
}

}  // namespace sluice
