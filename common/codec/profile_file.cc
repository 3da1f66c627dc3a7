#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/codec/profile_json.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

absl::Status WriteError(const std::string& path, int error) {
  const absl::StatusCode code = error == EISDIR || error == ENOTDIR
                                    ? absl::StatusCode::kFailedPrecondition
                                    : absl::ErrnoToStatusCode(error);
  return absl::Status(code, absl::StrCat("cannot write the profile ", path,
                                         ": ", strerror(error)));
}

// Writes all of `text` and syncs it to disk. Returns an errno, or 0.
int WriteAll(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    done += static_cast<size_t>(n);
  }
  return fsync(fd) == 0 ? 0 : errno;
}

}  // namespace

absl::StatusOr<MachineProfile> ReadProfileFile(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(path, kMaxProfileFileBytes));
  return Annotate(ProfileFromJson(text), path);
}

absl::Status WriteProfileFile(const MachineProfile& profile,
                              const std::string& path) {
  std::string beside = path + ".XXXXXX";
  const int fd = mkostemp(beside.data(), O_CLOEXEC);
  if (fd < 0) return WriteError(path, errno);
  int error = fchmod(fd, 0644) == 0 ? 0 : errno;
  if (error == 0) error = WriteAll(fd, ProfileToJson(profile));
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(beside.c_str());
  return WriteError(path, error);
}

}  // namespace sluice
