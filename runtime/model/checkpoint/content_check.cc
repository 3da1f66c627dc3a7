#include "runtime/model/checkpoint/content_check.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/content_hash.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/threads/deadline.h"

namespace sluice {
namespace {

constexpr char kConfigFile[] = "config.json";
// These threads suffice for an array of disks; more would only seek.
constexpr size_t kMaxThreads = 4;
// The interval of polling while another process hashes.
constexpr absl::Duration kLockPoll = absl::Milliseconds(50);
// The delay after which files that are being written may be complete.
constexpr absl::Duration kRetry = absl::Seconds(2);
// The size from which hashing takes long enough to log its progress.
constexpr uint64_t kLongBytes = uint64_t{4} << 30;

// Holds "PATH.lock" for one process at a time, if that file can be made.
class HashLock {
 public:
  explicit HashLock(const std::string& path, const std::atomic<bool>& stop) {
    if (path.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path(), ignored);
    fd_ = open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    while (fd_ >= 0 && !stop && flock(fd_, LOCK_EX | LOCK_NB) != 0 &&
           (errno == EWOULDBLOCK || errno == EINTR)) {
      absl::SleepFor(kLockPoll);
    }
  }
  ~HashLock() {
    if (fd_ >= 0) close(fd_);
  }
  HashLock(const HashLock&) = delete;
  HashLock& operator=(const HashLock&) = delete;

 private:
  int fd_ = -1;
};

std::string StampAt(const std::string& path) {
  return FileStamp(path).value_or("none");
}

// Returns a substitute for a hash where files are compared with themselves.
absl::StatusOr<std::string> SizeAndTime(const std::string& path, int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return DataLoss(path, ": can't read: ", std::strerror(errno));
  }
  return absl::StrFormat("%d-%d.%09d", info.st_size, info.st_mtim.tv_sec,
                         info.st_mtim.tv_nsec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ContentCheck>> ContentCheck::Start(
    Options options) {
  std::unique_ptr<ContentCheck> check(new ContentCheck(std::move(options)));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsSource> source,
                          check->Look());
  // A thread's body must be copyable.
  auto shared =
      std::make_shared<std::unique_ptr<SafetensorsSource>>(std::move(source));
  check->thread_ = Thread("hashing", [self = check.get(), shared] {
    self->Run(std::move(*shared));
  });
  return check;
}

ContentCheck::~ContentCheck() {
  stop_ = true;
  {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
  }
  thread_.Join();
}

ContentCheck::State ContentCheck::state() const {
  MutexLock lock(&mu_);
  State state = state_;
  state.hashed_bytes = std::min<uint64_t>(hashed_bytes_, state.bytes_to_hash);
  return state;
}

ContentCheck::State ContentCheck::WaitKnown(absl::Duration max_wait) {
  {
    const Deadline deadline = Deadline::In(max_wait);
    MutexLock lock(&mu_);
    while (!stop_ && wanted_ && !deadline.passed()) {
      changed_.WaitFor(&mu_, deadline.left());
    }
  }
  return state();
}

PieceListPtr ContentCheck::Pieces(const std::string& name) const {
  MutexLock lock(&mu_);
  const auto it = pieces_.find(name);
  return it == pieces_.end() ? nullptr : it->second;
}

KnownPieces ContentCheck::AllPieces() const {
  MutexLock lock(&mu_);
  return state_.known() ? pieces_ : KnownPieces();
}

void ContentCheck::Distrust() {
  Stamps stamps;
  {
    MutexLock lock(&mu_);
    stamps = stamps_;
  }
  ContentHashes hashes(options_.cache_file);
  for (const auto& [path, stamp] : stamps) hashes.Forget(path, -1);
  MutexLock lock(&mu_);
  state_.outdated = true;
}

bool ContentCheck::SameFiles() const {
  Stamps stamps;
  {
    MutexLock lock(&mu_);
    stamps = stamps_;
  }
  // The lock is not held, since a file server may be slow.
  return std::all_of(stamps.begin(), stamps.end(), [](const auto& file) {
    return StampAt(file.first) == file.second;
  });
}

absl::Status ContentCheck::Verify() {
  const bool same = SameFiles();
  MutexLock lock(&mu_);
  if (!state_.known()) {
    return absl::UnavailableError("the model's files are being compared");
  }
  if (same && !state_.outdated) return absl::OkStatus();
  state_.outdated = true;
  return Unavailable("files in ", options_.model->path().string(),
                     " were changed; they are compared anew");
}

ContentCheck::State ContentCheck::Refresh() {
  const bool same = SameFiles();
  {
    MutexLock lock(&mu_);
    if (!wanted_ && (!same || state_.outdated || !state_.error.ok())) {
      for (ModelContent::File& file : state_.content.files) file.hash.clear();
      pieces_.clear();
      state_.error = absl::OkStatus();
      state_.outdated = false;
      wanted_ = true;
      changed_.NotifyAll();
    }
  }
  return state();
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> ContentCheck::Look() {
  const ModelDir& model = *options_.model;
  std::unique_ptr<SafetensorsSource> source;
  State found;
  Stamps stamps;
  found.content.files.push_back(
      {kConfigFile, model.config().size(), HexHash(model.config())});
  if (options_.dummy_weights) {
    found.fingerprint = model.DummyFingerprint();
  } else {
    SLUICE_ASSIGN_OR_RETURN(source, SafetensorsSource::Open(model.path()));
    found.fingerprint = source->Fingerprint(model.config());
    for (const SafetensorsSource::FileInfo& file : source->Files()) {
      found.content.files.push_back({file.name, file.bytes, ""});
      found.bytes_to_hash += file.bytes;
      SLUICE_ASSIGN_OR_RETURN(std::string stamp, FileStamp(file.path, file.fd));
      stamps.emplace_back(file.path, std::move(stamp));
    }
    found.content.copies = source->Copies();
    const std::string index = (model.path() / kShardIndexFile).string();
    stamps.emplace_back(index, StampAt(index));
  }
  std::sort(found.content.files.begin(), found.content.files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  hashed_bytes_ = 0;
  MutexLock lock(&mu_);
  state_ = std::move(found);
  stamps_ = std::move(stamps);
  return source;
}

void ContentCheck::Run(std::unique_ptr<SafetensorsSource> source) {
  bool opened = true;
  while (!stop_) {
    absl::Status status;
    if (!opened) {
      absl::StatusOr<std::unique_ptr<SafetensorsSource>> again = Look();
      status = again.status();
      if (status.ok()) source = *std::move(again);
    }
    opened = false;
    if (status.ok() && source != nullptr) status = Hash(*source);
    source.reset();
    const bool again = absl::IsAborted(status);
    if (again) LogInfo(status.message(), "; reading it again");
    const Deadline retry = Deadline::In(kRetry);
    MutexLock lock(&mu_);
    while (again && !stop_ && !retry.passed()) {
      changed_.WaitFor(&mu_, retry.left());
    }
    if (again) continue;
    if (!stop_) state_.error = status;
    wanted_ = false;
    changed_.NotifyAll();
    while (!wanted_ && !stop_) changed_.Wait(&mu_);
  }
}

absl::Status ContentCheck::Hash(const SafetensorsSource& source) {
  const std::vector<SafetensorsSource::FileInfo> files = source.Files();
  std::vector<ContentHashes::File> found(files.size());
  const auto publish = [&] {
    MutexLock lock(&mu_);
    for (size_t i = 0; i < files.size(); ++i) {
      if (found[i].pieces != nullptr) {
        pieces_[files[i].name] = found[i].pieces;
      }
      for (ModelContent::File& file : state_.content.files) {
        if (file.name == files[i].name) file.hash = found[i].hash;
      }
    }
  };
  if (!options_.hash) {
    for (size_t i = 0; i < files.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(found[i].hash,
                              SizeAndTime(files[i].path, files[i].fd));
    }
    publish();
    return absl::OkStatus();
  }
  const auto know_all = [&](const ContentHashes& hashes) {
    for (size_t i = 0; i < files.size(); ++i) {
      std::optional<ContentHashes::File> hash =
          hashes.Known(files[i].path, files[i].fd);
      if (!hash) return false;
      found[i] = *std::move(hash);
    }
    return true;
  };
  if (know_all(ContentHashes(options_.cache_file))) {
    publish();
    return absl::OkStatus();
  }
  const HashLock lock(options_.cache_file, stop_);
  // The lock's last holder may have hashed these files.
  ContentHashes hashes(options_.cache_file);
  uint64_t total = 0;
  for (const auto& file : files) total += file.bytes;
  std::atomic<size_t> next{0};
  std::atomic<int> told{-1};
  std::vector<absl::Status> errors(std::min(kMaxThreads, files.size()));
  std::atomic<bool> failed{false};
  const auto hash_some = [&](absl::Status* error) {
    for (size_t i; (i = next++) < files.size() && !failed && !stop_;) {
      uint64_t of_file = 0;
      absl::StatusOr<ContentHashes::File> hash = hashes.Of(
          files[i].path, files[i].fd, [&](uint64_t bytes) -> absl::Status {
            of_file += bytes;
            const uint64_t done = hashed_bytes_ += bytes;
            const int tenth =
                static_cast<int>(done * 10 / std::max<uint64_t>(1, total));
            int before = told;
            if (total >= kLongBytes && tenth > before && tenth < 10 &&
                told.compare_exchange_strong(before, tenth)) {
              LogInfo(
                  "checking the model's weights (once; what was "
                  "found is kept): ",
                  10 * tenth, " % of ", total >> 20, " MiB");
            }
            if (stop_) return absl::CancelledError("the program ends");
            return absl::OkStatus();
          });
      if (!hash.ok()) {
        failed = true;
        *error = hash.status();
        return;
      }
      if (of_file == 0) hashed_bytes_ += files[i].bytes;  // the hash was known
      found[i] = *std::move(hash);
    }
  };
  {
    std::vector<Thread> threads;
    for (absl::Status& error : errors) {
      threads.emplace_back("hashing", [&] { hash_some(&error); });
    }
  }
  for (const absl::Status& error : errors) SLUICE_RETURN_IF_ERROR(error);
  if (stop_) return absl::CancelledError("the program ends");
  publish();
  return absl::OkStatus();
}

}  // namespace sluice
