// The text file has a line for each file: version, hash, stamp, and a checksum
// of these. An incomplete line, as after a full disk or a crash, is ignored.

#include "runtime/model/checkpoint/content_hashes.h"

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
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/content_hash.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kReadBytes = size_t{4} << 20;
constexpr char kLineVersion[] = "2";
// The size for some 100,000 files. A larger file is begun anew.
constexpr off_t kMaxCacheBytes = off_t{16} << 20;

absl::Status CannotRead(const std::string& path) {
  return DataLoss(path, ": can't read: ", std::strerror(errno));
}

absl::StatusOr<struct stat> Ask(const std::string& path, int fd) {
  struct stat info;
  if ((fd >= 0 ? fstat(fd, &info) : stat(path.c_str(), &info)) != 0) {
    return CannotRead(path);
  }
  return info;
}

// The device's number is left out: many file systems get another one each time
// that they are mounted.
std::string StampOf(const std::string& path, const struct stat& info) {
  std::error_code error;
  std::string real = std::filesystem::canonical(path, error).string();
  if (error) real = path;
  return absl::StrFormat(
      "%016x-%d-%d-%d.%09d-%d.%09d", XXH3_64bits(real.data(), real.size()),
      info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
      info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
}

std::string CacheLine(absl::string_view hash, absl::string_view stamp) {
  std::string line = absl::StrCat(kLineVersion, " ", hash, " ", stamp, " ");
  absl::StrAppend(&line, absl::Hex(XXH3_64bits(line.data(), line.size()),
                                   absl::kZeroPad16));
  return line;
}

}  // namespace

absl::StatusOr<std::string> FileStamp(const std::string& path, int fd) {
  SLUICE_ASSIGN_OR_RETURN(const struct stat info, Ask(path, fd));
  return StampOf(path, info);
}

absl::StatusOr<std::string> FileStamp(const std::string& path) {
  return FileStamp(path, -1);
}

ContentHashes::ContentHashes(std::string cache_file, absl::Duration settle)
    : cache_file_(std::move(cache_file)), settle_(settle) {
  struct stat info;
  if (cache_file_.empty() || stat(cache_file_.c_str(), &info) != 0 ||
      !S_ISREG(info.st_mode) || info.st_size > kMaxCacheBytes) {
    return;
  }
  std::ifstream in(cache_file_);
  std::string line;
  while (std::getline(in, line)) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    if (words.size() == 4 && line == CacheLine(words[1], words[2])) {
      known_[std::string(words[2])] = std::string(words[1]);
    }
  }
}

std::optional<std::string> ContentHashes::Known(const std::string& path,
                                                int fd) const {
  const absl::StatusOr<std::string> stamp = FileStamp(path, fd);
  if (!stamp.ok()) return std::nullopt;
  MutexLock lock(&mu_);
  const auto known = known_.find(*stamp);
  if (known == known_.end()) return std::nullopt;
  return known->second;
}

absl::StatusOr<std::string> ContentHashes::Of(const std::string& path, int fd,
                                              Progress progress) {
  if (std::optional<std::string> known = Known(path, fd)) return *known;
  SLUICE_ASSIGN_OR_RETURN(const struct stat info, Ask(path, fd));
  ContentHash content;
  std::vector<char> buffer(kReadBytes);
  off_t offset = 0;
  while (true) {
    const ssize_t n = pread(fd, buffer.data(), buffer.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CannotRead(path);
    if (n == 0) break;
    content.Add({buffer.data(), static_cast<size_t>(n)});
    // The page cache is left to others, as the data is not read again.
    posix_fadvise(fd, offset, n, POSIX_FADV_DONTNEED);
    offset += n;
    SLUICE_RETURN_IF_ERROR(progress(static_cast<uint64_t>(n)));
  }
  const std::string hash = content.Hex();
  const std::string stamp = StampOf(path, info);
  SLUICE_ASSIGN_OR_RETURN(const std::string stamp_now, FileStamp(path, fd));
  if (stamp_now != stamp) {
    return absl::AbortedError(
        absl::StrCat(path, ": it was changed while it was read"));
  }
  if (absl::Now() - absl::TimeFromTimespec(info.st_ctim) >= settle_) {
    Remember(stamp, hash);
  }
  return hash;
}

void ContentHashes::Remember(const std::string& stamp,
                             const std::string& hash) {
  {
    MutexLock lock(&mu_);
    known_[stamp] = hash;
  }
  if (cache_file_.empty()) return;
  // One appending write keeps lines whole, whoever else writes; it begins a new
  // line after an incomplete one. A failure only costs time later.
  std::error_code ignored;
  std::filesystem::create_directories(
      std::filesystem::path(cache_file_).parent_path(), ignored);
  const int out =
      open(cache_file_.c_str(),
           O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (out < 0) return;
  struct stat info;
  if (fstat(out, &info) == 0 && info.st_size > kMaxCacheBytes &&
      ftruncate(out, 0) != 0) {
    close(out);
    return;
  }
  const std::string line = absl::StrCat("\n", CacheLine(hash, stamp), "\n");
  [[maybe_unused]] const ssize_t written = write(out, line.data(), line.size());
  close(out);
}

}  // namespace sluice
