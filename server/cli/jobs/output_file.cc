#include "server/cli/jobs/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host/stop_signals.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr char kSuffix[] = ".sluice-partial";
constexpr size_t kBufferBytes = 64 << 10;
constexpr int kMaxLinks = 40;

// Returns the end of a chain of symbolic links, where no file need exist.
std::filesystem::path FollowLinks(std::filesystem::path path) {
  std::error_code error;
  for (int i = 0; i < kMaxLinks && std::filesystem::is_symlink(path, error) &&
                  !absl::StartsWith(path.string(), "/proc/");
       ++i) {
    const std::filesystem::path next =
        std::filesystem::read_symlink(path, error);
    if (error) break;
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return path;
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The identity of a file.
struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileId&) const = default;
};

// nullopt unless it is a regular file.
std::optional<FileId> IdOf(const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return std::nullopt;
  return FileId{info.st_dev, info.st_ino};
}

std::optional<FileId> IdOfFile(const std::string& path, int standard_fd) {
  struct stat info {};
  const int result =
      path == "-" ? fstat(standard_fd, &info) : stat(path.c_str(), &info);
  return result == 0 ? IdOf(info) : std::nullopt;
}

// Whether a file was mounted over another one, as containers do. Such a file
// can't be replaced.
bool IsMountPoint(const std::string& path) {
  struct statx info {};
  return statx(AT_FDCWD, path.c_str(), 0, STATX_TYPE, &info) == 0 &&
         (info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0 &&
         (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// Returns the ending by which a file's name says that it is compressed; "" if
// it has none.
std::string PromisesPacked(const std::string& path) {
  for (const char* ending : {".gz", ".bz2", ".xz", ".zst", ".zip"}) {
    if (absl::EndsWithIgnoreCase(path, ending)) return ending;
  }
  return "";
}

// Returns false, with errno, if not all could be written.
bool WriteAll(int fd, absl::string_view data) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    data.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Whether two outputs name the same file that does not exist yet.
bool SameName(const OutputFile& a, const OutputFile& b) {
  if (!a.is_file() || !b.is_file()) return false;
  const std::filesystem::path first(a.target());
  const std::filesystem::path second(b.target());
  std::error_code error;
  return first.filename() == second.filename() &&
         std::filesystem::equivalent(FolderOf(a.target()), FolderOf(b.target()),
                                     error);
}

}  // namespace

absl::Status OutputFile::Error(absl::string_view what, int error) const {
  return absl::Status(
      absl::ErrnoToStatusCode(error),
      absl::StrCat(flag_, " ", path_, ": ", what, ": ", strerror(error)));
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Plan(
    const std::string& path, const std::string& flag,
    const StopSignals* signals, bool may_compress) {
  const bool is_stdout = path == "-" || path == "/dev/stdout";
  std::unique_ptr<OutputFile> file(
      new OutputFile(is_stdout ? "-" : path, flag, signals));
  if (is_stdout) return file;
  const auto wrong = [&](const auto&... what) {
    return InvalidArgument(flag, " ", path, ": ", what...);
  };
  if (path.empty()) return wrong("the name is empty");
  file->target_ = FollowLinks(path).string();
  const Compression compression = CompressionOfName(file->target_);
  if (may_compress && compression != Compression::kNone) {
    file->compressor_ = Compressor::Make(compression);
  }
  // A link in /proc leads to the open file, whatever its text is.
  if (absl::StartsWith(file->target_, "/proc/")) return file;
  struct stat info {};
  bool exists = false;
  const char* const target = file->target_.c_str();
  if (stat(target, &info) == 0) {
    if (S_ISDIR(info.st_mode)) return wrong("this is a directory; name a file");
    if (access(target, W_OK) != 0) {
      return wrong("can't be written: ", strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) return file;
    exists = true;
  } else if (errno != ENOENT) {
    return wrong("can't be written: ", strerror(errno));
  }
  file->is_file_ = true;
  if (const std::string packed = PromisesPacked(file->target_);
      !packed.empty() && file->compressor_ == nullptr) {
    return wrong("Sluice does not write ", packed, " files here; ",
                 may_compress ? "name it .gz or .zst, or leave the ending out"
                              : "leave the ending out",
                 " and pack the file when it is whole");
  }
  if (file->target_.back() == '/') {
    return wrong("this names a directory; name a file");
  }
  const std::string folder = FolderOf(file->target_);
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return wrong("there is no directory ", folder,
                 "; make it first, or write elsewhere");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    if (!exists) {
      return wrong("no file can be made in ", folder, ": ", strerror(errno));
    }
    file->folder_writable_ = false;
  }
  file->in_place_ =
      exists && (!file->folder_writable_ || IsMountPoint(file->target_));
  if (!file->in_place_) file->partial_ = file->target_ + kSuffix;
  return file;
}

OutputFile::~OutputFile() {
  if (open_ && !committed_ && !partial_.empty()) {
    unlink(partial_.c_str());
  }
  if (fd_ >= 0 && fd_ != STDOUT_FILENO) close(fd_);
}

absl::Status OutputFile::Open(bool append) {
  if (open_) return absl::OkStatus();
  if (path_ == "-") {
    fd_ = STDOUT_FILENO;
  } else if (in_place_ && !append) {
    SLUICE_RETURN_IF_ERROR(OpenInPlace());
  } else if (append || !is_file_) {
    partial_.clear();
    SLUICE_ASSIGN_OR_RETURN(fd_, OpenTarget(append));
    struct stat info {};
    continues_ = append && fstat(fd_, &info) == 0 && info.st_size > 0;
  } else {
    SLUICE_RETURN_IF_ERROR(OpenPartial());
  }
  open_ = true;
  terminal_ = isatty(fd_) == 1;
  return absl::OkStatus();
}

absl::StatusOr<int> OutputFile::OpenTarget(bool append) const {
  constexpr absl::Duration kRetry = absl::Milliseconds(20);
  struct stat info {};
  const bool is_pipe =
      stat(target_.c_str(), &info) == 0 && S_ISFIFO(info.st_mode);
  const int flags = O_WRONLY | O_CLOEXEC | O_CREAT | (append ? O_APPEND : 0) |
                    (is_pipe && signals_ != nullptr ? O_NONBLOCK : 0);
  int fd;
  while ((fd = open(target_.c_str(), flags, 0666)) < 0 && errno == ENXIO &&
         (flags & O_NONBLOCK) != 0) {
    // Nobody reads the pipe yet.
    if (signals_->WaitFor(kRetry)) return signals_->Check();
  }
  if (fd < 0) return Error("can't be written", errno);
  if ((flags & O_NONBLOCK) != 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  return fd;
}

absl::Status OutputFile::OpenInPlace() {
  fd_ = open(target_.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) return Error("can't be written", errno);
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    close(std::exchange(fd_, -1));
    return BeingWritten();
  }
  if (ftruncate(fd_, 0) != 0) return Error("can't be emptied", errno);
  return absl::OkStatus();
}

absl::Status OutputFile::BeingWritten() const {
  return FailedPrecondition(
      flag_, " ", path_,
      ": another process is writing it; wait for its end, or write elsewhere");
}

absl::Status OutputFile::OpenPartial() {
  // The lock tells a killed process's file from one that is being written.
  while (true) {
    fd_ = open(partial_.c_str(),
               O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd_ < 0) return Error(absl::StrCat("can't make ", partial_), errno);
    struct stat mine {};
    struct stat named {};
    if (fstat(fd_, &mine) != 0 || !S_ISREG(mine.st_mode)) {
      close(std::exchange(fd_, -1));
      return FailedPrecondition(
          flag_, " ", path_, ": ", partial_,
          ", where it would be written until it is whole, is no file; move it "
          "away");
    }
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(std::exchange(fd_, -1));
      return BeingWritten();
    }
    // The other process may have renamed the file to its final name meanwhile.
    if (stat(partial_.c_str(), &named) == 0 && IdOf(named) == IdOf(mine)) break;
    close(std::exchange(fd_, -1));
  }
  open_ = true;  // from here on, this object removes the file
  if (ftruncate(fd_, 0) != 0) return Error("can't be emptied", errno);
  struct stat old {};
  if (stat(target_.c_str(), &old) == 0) {
    // The file gets the old one's attributes. Keeping the owner needs rights
    // that few have; without them the file is the writer's.
    if (fchown(fd_, old.st_uid, old.st_gid) != 0) errno = 0;
    if (fchmod(fd_, old.st_mode & 07777) != 0) {
      return Error("can't get its permissions", errno);
    }
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Write(absl::string_view data) {
  SLUICE_RETURN_IF_ERROR(Open());
  if (compressor_ != nullptr) {
    SLUICE_RETURN_IF_ERROR(compressor_->Add(data, &buffer_));
  } else {
    buffer_.append(data.data(), data.size());
  }
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : WriteBuffer();
}

absl::Status OutputFile::Flush() {
  if (compressor_ != nullptr) {
    SLUICE_RETURN_IF_ERROR(compressor_->Flush(&buffer_));
  }
  return WriteBuffer();
}

absl::Status OutputFile::WriteBuffer() {
  absl::string_view left = buffer_;
  absl::Status status;
  while (!left.empty() && status.ok()) {
    size_t bytes = left.size();
    if (!is_file_ && signals_ != nullptr) {
      status = signals_->WaitToWrite(fd_);
      if (!status.ok()) break;
      bytes = std::min<size_t>(bytes, PIPE_BUF);
    }
    const ssize_t n = write(fd_, left.data(), bytes);
    if (n >= 0) {
      left.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      status = Error("can't be written", errno);
    }
  }
  buffer_.erase(0, buffer_.size() - left.size());
  return status;
}

absl::Status OutputFile::Commit() {
  SLUICE_RETURN_IF_ERROR(Open());
  if (compressor_ != nullptr) {
    SLUICE_RETURN_IF_ERROR(compressor_->Finish(&buffer_));
  }
  SLUICE_RETURN_IF_ERROR(WriteBuffer());
  if (partial_.empty() && !in_place_) return absl::OkStatus();
  // EINVAL comes from a file system without fsync.
  if (fsync(fd_) != 0 && errno != EINVAL)
    return Error("can't be brought to disk", errno);
  if (partial_.empty()) return absl::OkStatus();
  committed_ = true;  // the destructor keeps it
  if (rename(partial_.c_str(), target_.c_str()) != 0) return CopyInPlace();
  SyncDirectory(FolderOf(target_)).IgnoreError();
  return absl::OkStatus();
}

absl::Status OutputFile::CopyInPlace() {
  const int from = open(partial_.c_str(), O_RDONLY | O_CLOEXEC);
  const int to =
      from < 0 ? -1 : open(target_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  int error = to < 0 ? errno : 0;
  std::vector<char> buffer(kBufferBytes);
  while (error == 0) {
    const ssize_t n = read(from, buffer.data(), buffer.size());
    if (n == 0) break;
    if (n < 0 || !WriteAll(to, {buffer.data(), static_cast<size_t>(n)})) {
      error = errno;
    }
  }
  if (error == 0 && fsync(to) != 0 && errno != EINVAL) error = errno;
  if (from >= 0) close(from);
  if (to >= 0) close(to);
  if (error != 0) {
    return Error(absl::StrCat("can't take the place of what was there (it is "
                              "whole in ",
                              partial_, ")"),
                 error);
  }
  unlink(partial_.c_str());
  return absl::OkStatus();
}

absl::Status WriteOutputFile(const std::string& path, const std::string& flag,
                             absl::string_view data) {
  SLUICE_ASSIGN_OR_RETURN(auto file, OutputFile::Plan(path, flag));
  SLUICE_RETURN_IF_ERROR(file->Write(data));
  return file->Commit();
}

absl::Status CheckDistinct(const std::vector<NamedInput>& inputs,
                           const std::vector<const OutputFile*>& outputs) {
  const auto same = [](const std::string& a, const std::string& a_flag,
                       const std::string& b, const std::string& b_flag,
                       absl::string_view remedy) {
    return InvalidArgument(a_flag, " ", a, " and ", b_flag, " ", b,
                           " are one file; ", remedy);
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == nullptr) continue;
    const OutputFile& output = *outputs[i];
    const auto id = IdOfFile(output.path(), STDOUT_FILENO);
    for (const NamedInput& input : inputs) {
      if (id && id == IdOfFile(input.path, STDIN_FILENO)) {
        return same(input.path, input.flag, output.path(), output.flag(),
                    "write elsewhere, so that the input is kept");
      }
    }
    for (size_t j = 0; j < i; ++j) {
      if (outputs[j] == nullptr) continue;
      const OutputFile& other = *outputs[j];
      if ((id && id == IdOfFile(other.path(), STDOUT_FILENO)) ||
          SameName(output, other)) {
        return same(other.path(), other.flag(), output.path(), output.flag(),
                    "give each a file of its own");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
