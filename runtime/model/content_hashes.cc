#include "runtime/model/content_hashes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

constexpr size_t kReadBytes = size_t{4} << 20;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

ContentHashes::ContentHashes(std::string cache_file)
    : cache_file_(std::move(cache_file)) {
  std::ifstream in(cache_file_);
  std::string hash, signature;
  while (in >> hash >> signature) known_[signature] = hash;
}

absl::StatusOr<std::string> ContentHashes::Of(const std::string& path, int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return absl::DataLossError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  const std::string signature =
      absl::StrFormat("%d-%d-%d-%d.%09d", info.st_dev, info.st_ino,
                      info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  const auto known = known_.find(signature);
  if (known != known_.end()) return known->second;

  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  if (state == nullptr || XXH3_128bits_reset(state.get()) != XXH_OK) {
    return absl::ResourceExhaustedError("no memory to hash a file");
  }
  std::vector<char> buffer(kReadBytes);
  off_t offset = 0;
  while (true) {
    const ssize_t n = pread(fd, buffer.data(), buffer.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return absl::DataLossError(absl::StrCat(path, ": can't read at ", offset,
                                              ": ", std::strerror(errno)));
    }
    if (n == 0) break;
    XXH3_128bits_update(state.get(), buffer.data(), static_cast<size_t>(n));
    // The cache is of no use to us, and may be of others'.
    posix_fadvise(fd, offset, n, POSIX_FADV_DONTNEED);
    offset += n;
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(state.get());
  std::string hash = absl::StrFormat("%016x%016x", digest.high64, digest.low64);
  known_[signature] = hash;

  // One write of a short line at the end: whole, whoever else writes. That it
  // fails only costs time later.
  std::error_code ignored;
  std::filesystem::create_directories(
      std::filesystem::path(cache_file_).parent_path(), ignored);
  const int out = open(cache_file_.c_str(),
                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (out >= 0) {
    const std::string line = absl::StrCat(hash, " ", signature, "\n");
    [[maybe_unused]] const ssize_t written =
        write(out, line.data(), line.size());
    close(out);
  }
  return hash;
}

}  // namespace sluice
