// A record of the log is the piece's number, with the highest bit set if it
// went, and a checksum of that, both of 32 bits. Appends of 8 bytes stay whole,
// whoever else appends. A record that is damaged, or cut by a crash, is
// skipped: at worst its piece is fetched again, or found damaged.

#include "runtime/model/pieces/piece_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/host/file_descriptor.h"
#include "common/host/read_file.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/content_hashes.h"
#include "runtime/model/checkpoint/whole_file.h"

namespace sluice {
namespace {

constexpr uint32_t kWent = uint32_t{1} << 31;
static_assert(NumPieces(kMaxPiecedFileBytes) < kWent);
constexpr size_t kMaxStampBytes = 4096;
constexpr size_t kLogReadBytes = size_t{1} << 16;
constexpr size_t kMaxParts = 512;  // of one write; less than IOV_MAX

struct Record {
  uint32_t what;
  uint32_t check;
};
static_assert(sizeof(Record) == 8 && kLogReadBytes % sizeof(Record) == 0);

Record MakeRecord(uint64_t piece, bool present) {
  const uint32_t what = static_cast<uint32_t>(piece) | (present ? 0 : kWent);
  return {what, static_cast<uint32_t>(XXH3_64bits(&what, sizeof(what)))};
}

std::string LogPath(const std::string& path) { return path + ".present"; }
std::string SettledPath(const std::string& path) { return path + ".settled"; }

}  // namespace

absl::Status PieceFile::Failed(const char* what, int error) const {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return absl::Status(
      full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
      absl::StrCat(
          path_, ": can't ", what, ": ", std::strerror(error),
          full ? "; make room there, or choose another --cache-dir" : ""));
}

absl::StatusOr<std::shared_ptr<PieceFile>> PieceFile::Open(
    const std::filesystem::path& path, PieceListPtr list, bool only_user) {
  std::shared_ptr<PieceFile> file(
      new PieceFile(path.string(), std::move(list)));
  SLUICE_RETURN_IF_ERROR(file->OpenFiles());
  const uint64_t settled = file->SettledBytes();
  if (only_user) file->TrimLog();
  file->Replay(settled, only_user);
  return file;
}

void PieceFile::Replay(uint64_t settled, bool only_user) {
  MutexLock lock(&mu_);
  states_.assign(list_->size(), State::kAbsent);
  ReplayLocked(settled, State::kPresent);
  ReplayLocked(UINT64_MAX, State::kRecorded);
  unsettled_ = replayed_ != settled;
  if (!only_user || !unsettled_) return;
  for (uint64_t i = 0; i < states_.size();) {
    uint64_t end = i;
    while (end < states_.size() && states_[end] == State::kAbsent) ++end;
    if (end > i) Punch(i, end);
    i = end + 1;
  }
}

PieceFile::~PieceFile() {
  if (fd_ >= 0) close(fd_);
  if (log_fd_ >= 0) close(log_fd_);
}

absl::Status PieceFile::OpenFiles() {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) return Failed("open", errno);
  struct stat info;
  if (fstat(fd_, &info) != 0) return Failed("open", errno);
  // A file of another size is no work of ours: its pieces will show.
  if (static_cast<uint64_t>(info.st_size) != list_->file_bytes() &&
      ftruncate(fd_, static_cast<off_t>(list_->file_bytes())) != 0) {
    return Failed("make", errno);
  }
  const std::string log = LogPath(path_);
  log_fd_ = open(log.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  return log_fd_ < 0 ? Failed("open its record", errno) : absl::OkStatus();
}

uint64_t PieceFile::SettledBytes() const {
  const absl::StatusOr<std::string> settled =
      ReadSmallFile(SettledPath(path_), kMaxStampBytes);
  const absl::StatusOr<std::string> stamp = FileStamp(path_, fd_);
  if (!settled.ok() || !stamp.ok()) return 0;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(*settled, absl::MaxSplits(' ', 1));
  uint64_t bytes = 0;
  if (parts.first != *stamp || !absl::SimpleAtoi(parts.second, &bytes)) {
    return 0;
  }
  return bytes;
}

void PieceFile::TrimLog() const {
  struct stat info;
  if (fstat(log_fd_, &info) != 0) return;
  const auto extra = info.st_size % static_cast<off_t>(sizeof(Record));
  if (extra == 0) return;
  // Otherwise, the records behind it are lost, too.
  [[maybe_unused]] const int ignored = ftruncate(log_fd_, info.st_size - extra);
}

void PieceFile::ReplayLocked(uint64_t end, State as) {
  std::array<char, kLogReadBytes> buffer;
  while (replayed_ < end) {
    const ssize_t n = pread(
        log_fd_, buffer.data(),
        static_cast<size_t>(std::min<uint64_t>(buffer.size(), end - replayed_)),
        static_cast<off_t>(replayed_));
    if (n < 0 && errno == EINTR) continue;
    const size_t whole =
        n <= 0 ? 0 : static_cast<size_t>(n) / sizeof(Record) * sizeof(Record);
    if (whole == 0) return;
    replayed_ += whole;
    for (size_t at = 0; at < whole; at += sizeof(Record)) {
      Record record;
      std::memcpy(&record, buffer.data() + at, sizeof(record));
      const uint64_t piece = record.what & ~kWent;
      const bool present = (record.what & kWent) == 0;
      if (piece >= states_.size() ||
          record.check != MakeRecord(piece, present).check) {
        continue;
      }
      State& state = states_[piece];
      if (present && state == State::kAbsent) {
        state = as;
        recorded_bytes_ += list_->bytes(piece);
      } else if (!present && state != State::kAbsent) {
        state = State::kAbsent;
        recorded_bytes_ -= list_->bytes(piece);
      }
    }
  }
}

absl::Status PieceFile::RecordLocked(uint64_t piece, bool present) {
  State& state = states_[piece];
  if (present != (state == State::kAbsent)) {
    if (present) state = State::kPresent;
    return absl::OkStatus();
  }
  const Record record = MakeRecord(piece, present);
  ssize_t n;
  do {
    n = write(log_fd_, &record, sizeof(record));
  } while (n < 0 && errno == EINTR);
  if (n != sizeof(record)) {
    return Failed("write its record", n < 0 ? errno : ENOSPC);
  }
  state = present ? State::kPresent : State::kAbsent;
  unsettled_ = true;
  if (present) {
    recorded_bytes_ += list_->bytes(piece);
  } else {
    recorded_bytes_ -= list_->bytes(piece);
  }
  return absl::OkStatus();
}

PieceFile::State PieceFile::state(uint64_t piece) const {
  MutexLock lock(&mu_);
  return piece < states_.size() ? states_[piece] : State::kAbsent;
}

uint64_t PieceFile::recorded_bytes() const {
  MutexLock lock(&mu_);
  return recorded_bytes_;
}

absl::StatusOr<bool> PieceFile::Check(uint64_t piece) {
  std::string bytes(list_->bytes(piece), '\0');
  const bool right = ReadPiece(fd_, path_, *list_, piece, bytes.data()).ok() &&
                     HashPiece(bytes) == list_->hash(piece);
  MutexLock lock(&mu_);
  if (states_[piece] == State::kAbsent) return false;
  if (!right) {
    SLUICE_RETURN_IF_ERROR(RecordLocked(piece, false));
  } else {
    states_[piece] = State::kPresent;
  }
  return right;
}

absl::Status PieceFile::Write(uint64_t piece,
                              std::span<const absl::string_view> parts) {
  uint64_t offset = piece * kPieceBytes;
  std::vector<iovec> vectors;
  size_t next = 0;
  while (next < parts.size() || !vectors.empty()) {
    while (next < parts.size() && vectors.size() < kMaxParts) {
      if (!parts[next].empty()) {
        vectors.push_back(
            {const_cast<char*>(parts[next].data()), parts[next].size()});
      }
      ++next;
    }
    if (vectors.empty()) break;
    const ssize_t n =
        pwritev(fd_, vectors.data(), static_cast<int>(vectors.size()),
                static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("write", n < 0 ? errno : ENOSPC);
    offset += static_cast<uint64_t>(n);
    auto written = static_cast<size_t>(n);
    size_t done = 0;
    while (done < vectors.size() && vectors[done].iov_len <= written) {
      written -= vectors[done++].iov_len;
    }
    vectors.erase(vectors.begin(), vectors.begin() + static_cast<long>(done));
    if (!vectors.empty()) {
      vectors[0].iov_base = static_cast<char*>(vectors[0].iov_base) + written;
      vectors[0].iov_len -= written;
    }
  }
  // The disk begins at once, so that Settle has little left to wait for. Where
  // it can't, Settle does it all.
  [[maybe_unused]] const int ignored = sync_file_range(
      fd_, static_cast<off_t>(piece * kPieceBytes),
      static_cast<off_t>(list_->bytes(piece)), SYNC_FILE_RANGE_WRITE);
  MutexLock lock(&mu_);
  return RecordLocked(piece, true);
}

absl::Status PieceFile::Read(uint64_t piece, char* to) {
  const auto absent = [&] {
    return NotFound("piece ", piece, " of ", path_, " is not here");
  };
  if (state(piece) != State::kPresent) return absent();
  SLUICE_RETURN_IF_ERROR(ReadPiece(fd_, path_, *list_, piece, to));
  // It may have been dropped meanwhile.
  return state(piece) == State::kPresent ? absl::OkStatus() : absent();
}

void PieceFile::Doubt() {
  // What can't be mended shows when pieces are written.
  struct stat info;
  if (fstat(fd_, &info) == 0 &&
      static_cast<uint64_t>(info.st_size) != list_->file_bytes()) {
    [[maybe_unused]] const int ignored =
        ftruncate(fd_, static_cast<off_t>(list_->file_bytes()));
  }
  MutexLock lock(&mu_);
  for (State& state : states_) {
    if (state == State::kPresent) state = State::kRecorded;
  }
}

bool PieceFile::InPlace() const {
  return IsOpenAt(fd_, path_) && IsOpenAt(log_fd_, LogPath(path_));
}

void PieceFile::Refresh() {
  MutexLock lock(&mu_);
  ReplayLocked(UINT64_MAX, State::kPresent);
}

absl::Status PieceFile::Reserve(std::span<const uint64_t> pieces) {
  for (size_t i = 0; i < pieces.size();) {
    size_t end = i + 1;
    while (end < pieces.size() && pieces[end] == pieces[end - 1] + 1) ++end;
    const uint64_t begin = pieces[i] * kPieceBytes;
    const uint64_t bytes =
        pieces[end - 1] * kPieceBytes + list_->bytes(pieces[end - 1]) - begin;
    int result;
    do {
      result = fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                         static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
      if (errno == EOPNOTSUPP || errno == ENOSYS) return absl::OkStatus();
      return Failed("set space aside", errno);
    }
    i = end;
  }
  return absl::OkStatus();
}

void PieceFile::Punch(uint64_t first, uint64_t end) const {
  const uint64_t begin = first * kPieceBytes;
  const uint64_t bytes =
      std::min(end * kPieceBytes, list_->file_bytes()) - begin;
  // Without holes in files, the space stays taken until the model goes.
  [[maybe_unused]] const int ignored =
      fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(begin), static_cast<off_t>(bytes));
}

absl::Status PieceFile::Drop(std::span<const uint64_t> pieces) {
  for (const uint64_t piece : pieces) {
    {
      MutexLock lock(&mu_);
      if (states_[piece] == State::kAbsent) continue;
      SLUICE_RETURN_IF_ERROR(RecordLocked(piece, false));
    }
    Punch(piece, piece + 1);
  }
  return absl::OkStatus();
}

absl::Status PieceFile::Settle() {
  {
    MutexLock lock(&mu_);
    if (!std::exchange(unsettled_, false)) return absl::OkStatus();
  }
  absl::Status status = BringToDisk();
  if (status.ok()) return status;
  MutexLock lock(&mu_);
  unsettled_ = true;
  return status;
}

absl::Status PieceFile::BringToDisk() const {
  struct stat log;
  // Records that others add meanwhile are not settled.
  if (fstat(log_fd_, &log) != 0) return Failed("ask for its record", errno);
  if (fdatasync(fd_) != 0 || fdatasync(log_fd_) != 0) {
    return Failed("bring it to disk", errno);
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string stamp, FileStamp(path_, fd_));
  return ReplaceFile(SettledPath(path_), absl::StrCat(stamp, " ", log.st_size));
}

}  // namespace sluice
