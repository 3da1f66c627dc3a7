// DIR/space.lock is held while room is made. DIR/MODEL/lock is held, shared, by
// each process that uses the model, and changes its time whenever one opens it.

#include "runtime/model/pieces/model_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/content_hash.h"
#include "common/host/file_descriptor.h"
#include "common/host/logging.h"
#include "common/host/read_file.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "runtime/model/checkpoint/shard_index.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr char kConfigFile[] = "config.json";
constexpr char kLockFile[] = "lock";
constexpr size_t kMaxFiles = 10'001;
constexpr size_t kMaxNameBytes = 200;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr int kMaxOpens = 10;
constexpr absl::Duration kLockPoll = absl::Milliseconds(20);
// Room for names and records beside the pieces, and for other programs.
constexpr uint64_t kSpareBytes = uint64_t{64} << 20;

bool IsShardName(absl::string_view name) {
  return name.size() <= kMaxNameBytes && name[0] != '.' &&
         (absl::EndsWith(name, ".safetensors") ||
          absl::EndsWith(name, ".gguf")) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
         });
}

std::string ModelKey(const ModelContent& content) {
  ContentHash hash;
  for (const ModelContent::File& file : content.files) {
    hash.Add(absl::StrCat(file.name, "\n", file.bytes, "\n", file.hash, "\n"));
  }
  hash.Add(content.copies);
  return hash.Hex();
}

bool IsModelKey(const std::string& name) {
  return name.size() == 2 * sizeof(PieceHash) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isxdigit(c); });
}

std::string SizeText(uint64_t bytes) {
  return BytesText(static_cast<double>(bytes));
}

// Opens a lock file; -1 if that fails, which then shows elsewhere.
int OpenLock(const fs::path& path) {
  return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
}

int Flock(int fd, int how) {
  int result;
  do {
    result = flock(fd, how);
  } while (result != 0 && errno == EINTR);
  return result;
}

uint64_t BytesIn(const fs::path& dir) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; it != end;
       it.increment(error)) {
    struct stat info;
    if (lstat(it->path().c_str(), &info) == 0) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

absl::Status CannotMake(const fs::path& path, const std::string& why) {
  return FailedPrecondition("--cache-dir: can't make ", path.string(), ": ",
                            why);
}

}  // namespace

absl::Status CheckFetchable(const ModelContent& content,
                            const std::string& config) {
  if (content.files.empty() || content.files.size() > kMaxFiles) {
    return InvalidArgument("a model of ", content.files.size(), " files");
  }
  bool has_config = false;
  for (const ModelContent::File& file : content.files) {
    if (file.name == kConfigFile) {
      has_config = true;
      if (config.size() > kMaxConfigBytes || file.bytes != config.size() ||
          file.hash != HexHash(config)) {
        return absl::InvalidArgumentError(
            "the model's config.json is not the one that came");
      }
    } else if (file.name.empty() || !IsShardName(file.name)) {
      return InvalidArgument("a model with a file '",
                             absl::CHexEscape(file.name.substr(0, 40)),
                             "', which is no name of weights");
    } else if (file.bytes > kMaxPiecedFileBytes ||
               !IsPieceListHash(file.hash)) {
      return InvalidArgument("the model's file ", file.name, " has ",
                             file.bytes, " bytes and no hash by which it ",
                             "could be fetched");
    }
  }
  if (!has_config) return absl::InvalidArgumentError("no config.json");
  return ParseCopiesText(content.copies).status();
}

// -- One model.

absl::Status CachedModel::Open(const std::string& config) {
  SLUICE_ASSIGN_OR_RETURN(quantization_, ParseQuantizationText(config));
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) return CannotMake(path_, error.message());
  lock_fd_ = OpenLock(path_ / kLockFile);
  if (lock_fd_ < 0) return CannotMake(path_ / kLockFile, strerror(errno));
  if (LockAlone()) {
    for (const ModelContent::File& file : content_.files) {
      OpenKnown(file.name, /*only_user=*/true);
    }
  }
  LockShared();
  // Its age is that of the last use.
  futimens(lock_fd_, nullptr);
  struct stat info;
  if (fstat(lock_fd_, &info) != 0 || info.st_nlink == 0) {
    return Unavailable(path_.string(), " was removed by another process");
  }
  const absl::StatusOr<std::string> present =
      ReadSmallFile(path_ / kConfigFile, kMaxConfigBytes);
  if (present.ok() && *present == config) return absl::OkStatus();
  return ReplaceFile(path_ / kConfigFile, config);
}

CachedModel::~CachedModel() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

bool CachedModel::LockAlone() {
  return Flock(lock_fd_, LOCK_EX | LOCK_NB) == 0;
}

void CachedModel::LockShared() { Flock(lock_fd_, LOCK_SH); }

std::shared_ptr<PieceFile> CachedModel::Find(const std::string& name) {
  {
    MutexLock lock(&mu_);
    if (const auto it = files_.find(name); it != files_.end()) {
      return it->second;
    }
  }
  return OpenKnown(name, /*only_user=*/false);
}

std::shared_ptr<PieceFile> CachedModel::OpenKnown(const std::string& name,
                                                  bool only_user) {
  const auto content = std::find_if(
      content_.files.begin(), content_.files.end(),
      [&](const ModelContent::File& file) { return file.name == name; });
  if (content == content_.files.end() || name == kConfigFile) return nullptr;
  const absl::StatusOr<std::string> packed =
      ReadSmallFile(path_ / (name + ".hashes"),
                    NumPieces(content->bytes) * sizeof(PieceHash));
  if (!packed.ok()) return nullptr;
  absl::StatusOr<PieceList> list = PieceList::Create(content->bytes, *packed);
  if (!list.ok() || list->FileHash() != content->hash) return nullptr;
  absl::StatusOr<std::shared_ptr<PieceFile>> file = PieceFile::Open(
      path_ / name, std::make_shared<const PieceList>(*std::move(list)),
      only_user);
  if (!file.ok()) return nullptr;  // Add() tells why
  MutexLock lock(&mu_);
  return files_.emplace(name, *std::move(file)).first->second;
}

absl::StatusOr<std::shared_ptr<PieceFile>> CachedModel::Add(
    const std::string& name, PieceListPtr list) {
  const bool right = std::any_of(
      content_.files.begin(), content_.files.end(), [&](const auto& file) {
        return file.name == name && file.bytes == list->file_bytes() &&
               file.hash == list->FileHash();
      });
  if (!right || name == kConfigFile) {
    return DataLoss("the hashes that came for ", name,
                    " are not those of this file");
  }
  SLUICE_RETURN_IF_ERROR(
      ReplaceFile(path_ / (name + ".hashes"), list->packed()));
  SLUICE_ASSIGN_OR_RETURN(
      std::shared_ptr<PieceFile> file,
      PieceFile::Open(path_ / name, std::move(list), /*only_user=*/false));
  MutexLock lock(&mu_);
  return files_.emplace(name, std::move(file)).first->second;
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> CachedModel::OpenTensors(
    const std::vector<std::string>& names) {
  std::map<std::string, std::shared_ptr<PieceReader>> files;
  for (const std::string& name : names) {
    files[name] = Find(name);
    if (files[name] == nullptr) return Internal("no hashes of ", name);
  }
  return SafetensorsSource::OpenPieces(path_, files, content_.copies,
                                       quantization_);
}

bool CachedModel::InPlace() const {
  const std::vector<std::shared_ptr<PieceFile>> open = files();
  return IsOpenAt(lock_fd_, path_ / kLockFile) &&
         std::all_of(open.begin(), open.end(),
                     [](const auto& file) { return file->InPlace(); });
}

void CachedModel::Doubt() {
  for (const auto& file : files()) file->Doubt();
}

std::vector<std::shared_ptr<PieceFile>> CachedModel::files() const {
  std::vector<std::shared_ptr<PieceFile>> files;
  MutexLock lock(&mu_);
  for (const auto& [name, file] : files_) files.push_back(file);
  return files;
}

absl::Status CachedModel::DropBut(const PiecesByFile& wanted) {
  for (const auto& file : files()) {
    const auto keep = wanted.find(fs::path(file->path()).filename().string());
    std::vector<uint64_t> drop;
    for (uint64_t i = 0; i < file->list().size(); ++i) {
      if (file->state(i) == PieceFile::State::kAbsent) continue;
      if (keep != wanted.end() &&
          std::binary_search(keep->second.begin(), keep->second.end(), i)) {
        continue;
      }
      drop.push_back(i);
    }
    SLUICE_RETURN_IF_ERROR(file->Drop(drop));
  }
  return absl::OkStatus();
}

// -- All models.

absl::StatusOr<std::unique_ptr<ModelCache>> ModelCache::Create(
    Options options) {
  SLUICE_RETURN_IF_ERROR(MakeDirectory("--cache-dir", options.dir));
  if (access(options.dir.c_str(), W_OK | X_OK) != 0) {
    return FailedPrecondition("--cache-dir: can't write in ",
                              options.dir.string(), ": ", strerror(errno));
  }
  return std::unique_ptr<ModelCache>(new ModelCache(std::move(options)));
}

absl::StatusOr<std::shared_ptr<CachedModel>> ModelCache::Open(
    const ModelContent& content, const std::string& config) {
  SLUICE_RETURN_IF_ERROR(CheckFetchable(content, config));
  for (int attempt = 1;; ++attempt) {
    std::shared_ptr<CachedModel> model(
        new CachedModel(options_.dir / ModelKey(content), content));
    const absl::Status status = model->Open(config);
    if (status.ok()) return model;
    // Another process may just remove it.
    if (!absl::IsUnavailable(status) || attempt == kMaxOpens) return status;
  }
}

uint64_t ModelCache::UsedBytes() const {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(options_.dir, error), end; it != end;
       it.increment(error)) {
    if (IsModelKey(it->path().filename().string())) bytes += BytesIn(*it);
  }
  return bytes;
}

bool ModelCache::RemoveOldest() const {
  std::vector<std::pair<fs::file_time_type, fs::path>> models;
  std::error_code error;
  for (fs::directory_iterator it(options_.dir, error), end; it != end;
       it.increment(error)) {
    if (!IsModelKey(it->path().filename().string())) continue;
    std::error_code none;
    const auto used = fs::last_write_time(it->path() / kLockFile, none);
    models.emplace_back(none ? fs::file_time_type::min() : used, it->path());
  }
  std::sort(models.begin(), models.end());
  for (const auto& [used, path] : models) {
    const int lock = OpenLock(path / kLockFile);
    if (lock < 0) continue;
    const bool mine = Flock(lock, LOCK_EX | LOCK_NB) == 0;
    if (mine) {
      LogInfo("removing ", path.string(),
              " from the cache: ", SizeText(BytesIn(path)),
              " of the model unused for longest");
      fs::remove_all(path, error);
    }
    close(lock);
    if (mine && !error) return true;
  }
  return false;
}

absl::Status ModelCache::Reserve(CachedModel* model, const PiecesByFile& wanted,
                                 const std::atomic<bool>* cancelled) {
  const fs::path lock_path = options_.dir / "space.lock";
  const int lock = OpenLock(lock_path);
  if (lock < 0) return CannotMake(lock_path, strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{lock};
  while (Flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return CannotMake(lock_path, strerror(errno));
    if (cancelled != nullptr && *cancelled) {
      return absl::CancelledError("fetching was cancelled");
    }
    absl::SleepFor(kLockPoll);
  }
  uint64_t all = 0;
  uint64_t missing = 0;
  std::map<std::string, std::vector<uint64_t>> absent;
  for (const auto& [name, pieces] : wanted) {
    const std::shared_ptr<PieceFile> file = model->Find(name);
    if (file == nullptr) return Internal("no hashes of ", name);
    file->Refresh();
    for (const uint64_t piece : pieces) {
      all += file->list().bytes(piece);
      if (file->state(piece) != PieceFile::State::kAbsent) continue;
      missing += file->list().bytes(piece);
      absent[name].push_back(piece);
    }
  }
  bool dropped = false;
  while (missing > 0) {
    struct statvfs disk;
    if (statvfs(options_.dir.c_str(), &disk) != 0) {
      return CannotMake(options_.dir, strerror(errno));
    }
    const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
    const uint64_t used = UsedBytes();
    const uint64_t limit =
        options_.max_bytes > 0 ? options_.max_bytes : (free + used) / 10 * 9;
    if (all > limit) {
      return ResourceExhausted(
          "the weights of this stage take ", SizeText(all), ", but the cache ",
          "in ", options_.dir.string(), " may have ", SizeText(limit),
          options_.max_bytes > 0 ? " (--cache-space)" : " (90 % of the disk)",
          "; give it more, or this worker fewer layers");
    }
    const bool fits = used + missing <= limit;
    if (fits && missing + kSpareBytes <= free) break;
    if (RemoveOldest()) continue;
    if (!std::exchange(dropped, true)) {
      const bool alone = model->LockAlone();
      absl::Status status;
      if (alone) status = model->DropBut(wanted);
      model->LockShared();
      SLUICE_RETURN_IF_ERROR(status);
      if (alone) continue;
    }
    return ResourceExhausted(
        "no room for ", SizeText(missing), " of weights in ",
        options_.dir.string(), ": ",
        fits ? absl::StrCat("its disk has ", SizeText(free), " free, of which ",
                            SizeText(kSpareBytes), " must stay free")
             : absl::StrCat("the cache has ", SizeText(used), " of ",
                            SizeText(limit), ", which other workers use"));
  }
  for (const auto& [name, pieces] : absent) {
    SLUICE_RETURN_IF_ERROR(model->Find(name)->Reserve(pieces));
  }
  return absl::OkStatus();
}

}  // namespace sluice
