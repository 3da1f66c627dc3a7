#include "worker/machine.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/weights/image_store.h"
#include "runtime/memory/disk/disk_file.h"

namespace sluice {

absl::Status MakeDiskDir(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't make the directory ", dir, ": ", error.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DefaultDiskSpace(const std::string& dir) {
  SLUICE_RETURN_IF_ERROR(MakeDiskDir(dir));
  SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes, FreeDiskBytes(dir));
  return (bytes + ImageStore::DiskBytes(dir)) / 10 * 9;
}

}  // namespace sluice
