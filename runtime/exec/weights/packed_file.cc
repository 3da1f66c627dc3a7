#include "runtime/exec/weights/packed_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/blocks.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"
#include "runtime/memory/checksum.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/placement/buffer_sizes.h"
#include "runtime/placement/weight_placement.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'I', 'M'};
constexpr uint32_t kVersion = 1;
constexpr size_t kWriteBytes = size_t{8} << 20;
constexpr char kTemporarySuffix[] = ".tmp";

struct FixedHeader {
  char magic[8];
  uint32_t version;
  uint32_t key_bytes;
  uint64_t packed_bytes;
  uint64_t granule;
  uint64_t num_granules;
};
static_assert(sizeof(FixedHeader) == kPackedFields);

// A budget for buffers that someone else has charged already.
MemoryBudget* Unlimited() {
  static MemoryBudget* const budget =
      new MemoryBudget(Tier::kHost, ~uint64_t{0});
  return budget;
}

// Makes a temporary file and locks it, against who removes orphans: that may
// take it for one before it is locked, and it is made again then.
absl::StatusOr<std::unique_ptr<DiskFile>> CreateLocked(const fs::path& path,
                                                       uint64_t bytes,
                                                       MemoryBudget* budget) {
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<DiskFile> file,
                            DiskFile::Create(path.string(), bytes, budget));
    struct stat info;
    // Nobody takes the file away where there are no locks either.
    if (flock(file->fd(), LOCK_EX) != 0 || fstat(file->fd(), &info) != 0 ||
        info.st_nlink > 0) {
      return file;
    }
  }
}

// Removes what is not renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(fs::path path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  const fs::path& path() const { return path_; }
  absl::Status Rename(const fs::path& to) {
    if (rename(path_.c_str(), to.c_str()) != 0) {
      return absl::Status(
          absl::ErrnoToStatusCode(errno),
          absl::StrCat("can't rename ", path_.string(), " to ", to.string(),
                       ": ", std::strerror(errno)));
    }
    path_.clear();
    return absl::OkStatus();
  }

 private:
  fs::path path_;
};

}  // namespace

int PackedFile::RemoveOrphans(const fs::path& dir) {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    if (!absl::EndsWith(entry.path().string(), kTemporarySuffix)) continue;
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    const int fd =
        open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        unlink(entry.path().c_str()) == 0) {
      ++removed;
    }
    close(fd);
  }
  return removed;
}

absl::StatusOr<std::unique_ptr<PackedFile>> PackedFile::Open(
    const fs::path& path, const std::string& key, size_t packed_bytes) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return NotFound(path.string(), " is not there");
  }
  std::unique_ptr<PackedFile> self(new PackedFile());
  SLUICE_ASSIGN_OR_RETURN(self->file_, DiskFile::OpenForRead(path.string()));
  const auto other = [&](absl::string_view what) {
    return FailedPrecondition(path.string(), " is an image of another ", what);
  };
  const auto damaged = [&](absl::string_view what) {
    return DataLoss(path.string(), " is damaged: ", what);
  };
  if (self->file_->bytes() < kDiskBlockBytes) return damaged("it is too short");
  const uint64_t header_bytes = PackedHeaderBytes(packed_bytes);
  SLUICE_ASSIGN_OR_RETURN(
      HostBuffer header,
      HostBuffer::Create("image header",
                         std::min(header_bytes, self->file_->bytes()) /
                             kDiskBlockBytes * kDiskBlockBytes,
                         Unlimited()));
  SLUICE_RETURN_IF_ERROR(self->file_->Read(
      0, std::span<std::byte>(header.as<std::byte>(), header.bytes())));
  FixedHeader fixed;
  std::memcpy(&fixed, header.data(), sizeof(fixed));
  if (std::memcmp(fixed.magic, kMagic, sizeof(kMagic)) != 0) {
    return damaged("it does not begin as an image does");
  }
  if (fixed.version != kVersion) return other("version");
  if (fixed.key_bytes > kMaxPackedKey)
    return damaged("its header makes no sense");
  const std::byte* next = header.as<std::byte>() + sizeof(fixed);
  if (fixed.key_bytes != key.size() ||
      std::memcmp(next, key.data(), key.size()) != 0) {
    return other("model, format or machine");
  }
  if (fixed.packed_bytes != packed_bytes ||
      fixed.granule != PlacementGranule(packed_bytes) ||
      fixed.num_granules != PackedGranules(packed_bytes)) {
    return other("size");
  }
  if (self->file_->bytes() < PackedFileBytes(packed_bytes)) {
    return damaged("it is too short");
  }
  const size_t checked =
      sizeof(fixed) + kMaxPackedKey + fixed.num_granules * sizeof(uint64_t);
  uint64_t checksum;
  std::memcpy(&checksum, header.as<std::byte>() + checked, sizeof(checksum));
  if (checksum != BlockChecksum({header.as<std::byte>(), checked})) {
    return damaged("its header does not match its checksum");
  }
  self->packed_offset_ = header_bytes;
  self->granule_ = fixed.granule;
  self->checksums_.resize(fixed.num_granules);
  std::memcpy(self->checksums_.data(),
              header.as<std::byte>() + sizeof(fixed) + kMaxPackedKey,
              fixed.num_granules * sizeof(uint64_t));
  return self;
}

absl::Status PackedFile::Write(const fs::path& path, const std::string& key,
                               size_t packed_bytes, std::span<std::byte> memory,
                               Fill fill, MemoryBudget* budget) {
  if (key.size() > kMaxPackedKey) {
    return absl::InternalError("an image's key is too long");
  }
  const size_t granule = PlacementGranule(packed_bytes);
  if (memory.size() < packed_bytes && memory.size() % granule != 0) {
    return absl::InternalError("an image's window is no multiple of a granule");
  }
  const uint64_t header_bytes = PackedHeaderBytes(packed_bytes);
  SLUICE_ASSIGN_OR_RETURN(
      HostBuffer header,
      HostBuffer::Create("image header", header_bytes, Unlimited()));
  FixedHeader fixed = {};
  std::memcpy(fixed.magic, kMagic, sizeof(kMagic));
  fixed.version = kVersion;
  fixed.key_bytes = static_cast<uint32_t>(key.size());
  fixed.packed_bytes = packed_bytes;
  fixed.granule = granule;
  fixed.num_granules = PackedGranules(packed_bytes);
  std::byte* next = header.as<std::byte>();
  std::memcpy(next, &fixed, sizeof(fixed));
  std::memcpy(next + sizeof(fixed), key.data(), key.size());
  next += sizeof(fixed) + kMaxPackedKey;

  RemoveOrphans(path.parent_path());
  static std::atomic<int> counter{0};
  TemporaryFile temporary(absl::StrCat(path.string(), ".", getpid(), ".",
                                       counter++, kTemporarySuffix));
  {
    SLUICE_ASSIGN_OR_RETURN(
        std::unique_ptr<DiskFile> file,
        CreateLocked(temporary.path(), PackedFileBytes(packed_bytes), budget));
    for (size_t begin = 0; begin < packed_bytes; begin += memory.size()) {
      const std::span<std::byte> window =
          memory.first(std::min(memory.size(), packed_bytes - begin));
      std::memset(window.data(), 0, window.size());
      SLUICE_RETURN_IF_ERROR(
          fill({window.data(), begin, begin + window.size()}));
      for (size_t i = 0; i < window.size(); i += granule) {
        const uint64_t checksum = BlockChecksum(
            window.subspan(i, std::min(granule, window.size() - i)));
        std::memcpy(next, &checksum, sizeof(checksum));
        next += sizeof(checksum);
      }
      for (size_t i = 0; i < window.size(); i += kWriteBytes) {
        SLUICE_RETURN_IF_ERROR(file->Write(
            header_bytes + begin + i,
            window.subspan(i, std::min(kWriteBytes, window.size() - i))));
      }
    }
    const size_t checked = next - header.as<std::byte>();
    const uint64_t checksum = BlockChecksum({header.as<std::byte>(), checked});
    std::memcpy(next, &checksum, sizeof(checksum));
    SLUICE_RETURN_IF_ERROR(
        file->Write(0, {header.as<std::byte>(), header.bytes()}));
    SLUICE_RETURN_IF_ERROR(file->Sync());
    SLUICE_RETURN_IF_ERROR(temporary.Rename(path));
  }
  return SyncDirectory(path.parent_path());
}

absl::Status PackedFile::Check(size_t offset,
                               std::span<const std::byte> data) const {
  size_t index = offset / granule_;
  for (size_t begin = 0; begin < data.size(); begin += granule_, ++index) {
    const size_t size = std::min(granule_, data.size() - begin);
    if (BlockChecksum(data.subspan(begin, size)) != checksums_[index]) {
      return DataLoss(file_->name(), " is damaged: bytes ",
                      packed_offset_ + offset + begin, " to ",
                      packed_offset_ + offset + begin + size,
                      " are not what was written; the next load makes it anew");
    }
  }
  return absl::OkStatus();
}

void PackedFile::Remove() const { unlink(file_->name().c_str()); }

}  // namespace sluice
