// The text file has a line for each file: version, hash, stamp, and a checksum
// of these. An incomplete line, as after a full disk or a crash, is ignored.
// "CACHE_FILE.pieces/HASH" has the hashes of the pieces of a file with this
// hash, which tells whether it is whole.

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
#include "common/host/read_file.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kReadBytes = size_t{4} << 20;
constexpr char kLineVersion[] = "3";
constexpr char kForgotten[] = "-";  // in place of a hash
// The size for some 100,000 files. A larger file is begun anew.
constexpr off_t kMaxCacheBytes = off_t{16} << 20;
// Lists of pieces beyond this number are removed before another is added.
constexpr int kMaxLists = 4096;
static_assert(kReadBytes % kPieceBytes == 0);

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

// Returns null unless the list is there and whole.
PieceListPtr ReadList(const std::string& dir, const std::string& hash,
                      uint64_t file_bytes) {
  if (!IsPieceListHash(hash) || file_bytes > kMaxPiecedFileBytes) {
    return nullptr;
  }
  const absl::StatusOr<std::string> packed =
      ReadSmallFile(std::filesystem::path(dir) / hash,
                    NumPieces(file_bytes) * sizeof(PieceHash));
  if (!packed.ok()) return nullptr;
  absl::StatusOr<PieceList> list = PieceList::Create(file_bytes, *packed);
  if (!list.ok() || list->FileHash() != hash) return nullptr;
  return std::make_shared<const PieceList>(*std::move(list));
}

// A failure only costs time later.
void WriteList(const std::string& dir, const std::string& hash,
               const PieceList& list) {
  std::error_code ignored;
  std::filesystem::create_directories(dir, ignored);
  int others = 0;
  for (std::filesystem::directory_iterator it(dir, ignored), end; it != end;
       it.increment(ignored)) {
    ++others;
  }
  if (others >= kMaxLists) {
    std::filesystem::remove_all(dir, ignored);
    std::filesystem::create_directories(dir, ignored);
  }
  ReplaceFile(std::filesystem::path(dir) / hash, list.packed()).IgnoreError();
}

std::string ListDir(const std::string& cache_file) {
  return cache_file.empty() ? "" : cache_file + ".pieces";
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
      known_[std::string(words[2])].hash = std::string(words[1]);
    }
  }
}

std::optional<ContentHashes::File> ContentHashes::Known(const std::string& path,
                                                        int fd) const {
  const absl::StatusOr<struct stat> info = Ask(path, fd);
  if (!info.ok()) return std::nullopt;
  MutexLock lock(&mu_);
  const auto known = known_.find(StampOf(path, *info));
  if (known == known_.end()) return std::nullopt;
  File& file = known->second;
  if (file.pieces == nullptr) {
    file.pieces = ReadList(ListDir(cache_file_), file.hash,
                           static_cast<uint64_t>(info->st_size));
  }
  if (file.pieces == nullptr) return std::nullopt;
  return file;
}

absl::StatusOr<ContentHashes::File> ContentHashes::Of(const std::string& path,
                                                      int fd,
                                                      Progress progress) {
  if (std::optional<File> known = Known(path, fd)) return *known;
  SLUICE_ASSIGN_OR_RETURN(const struct stat info, Ask(path, fd));
  std::vector<PieceHash> pieces;
  std::string buffer(kReadBytes, '\0');
  uint64_t offset = 0;
  for (bool more = true; more;) {
    size_t have = 0;
    while (have < buffer.size()) {
      const ssize_t n = pread(fd, buffer.data() + have, buffer.size() - have,
                              static_cast<off_t>(offset + have));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return CannotRead(path);
      if (n == 0) break;
      have += static_cast<size_t>(n);
    }
    more = have == buffer.size();
    if (have == 0) break;
    const absl::string_view read(buffer.data(), have);
    for (size_t at = 0; at < have; at += kPieceBytes) {
      pieces.push_back(HashPiece(read.substr(at, kPieceBytes)));
    }
    // The page cache is left to others, as the data is not read again.
    posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(have),
                  POSIX_FADV_DONTNEED);
    offset += have;
    if (offset > kMaxPiecedFileBytes) {
      return InvalidArgument(path, ": larger than ", kMaxPiecedFileBytes >> 40,
                             " TiB, which no model's file may be");
    }
    SLUICE_RETURN_IF_ERROR(progress(have));
  }
  const std::string stamp = StampOf(path, info);
  SLUICE_ASSIGN_OR_RETURN(const std::string stamp_now, FileStamp(path, fd));
  if (stamp_now != stamp) {
    return absl::AbortedError(
        absl::StrCat(path, ": it was changed while it was read"));
  }
  File file;
  file.pieces = std::make_shared<const PieceList>(offset, std::move(pieces));
  file.hash = file.pieces->FileHash();
  if (absl::Now() - absl::TimeFromTimespec(info.st_ctim) >= settle_) {
    Remember(stamp, file);
  }
  return file;
}

void ContentHashes::Remember(const std::string& stamp, const File& file) {
  {
    MutexLock lock(&mu_);
    known_[stamp] = file;
  }
  if (cache_file_.empty()) return;
  WriteList(ListDir(cache_file_), file.hash, *file.pieces);
  AddLine(file.hash, stamp);
}

void ContentHashes::Forget(const std::string& path, int fd) {
  const absl::StatusOr<std::string> stamp = FileStamp(path, fd);
  if (!stamp.ok()) return;
  {
    MutexLock lock(&mu_);
    known_.erase(*stamp);
  }
  // Of a file's lines, the last one counts.
  if (!cache_file_.empty()) AddLine(kForgotten, *stamp);
}

void ContentHashes::AddLine(absl::string_view hash,
                            absl::string_view stamp) const {
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
