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

// Whether two outputs name the same file that does not exist yet.
bool SameName(const OutputFile& a, const OutputFile& b) {
  if (!a.replaces() || !b.replaces()) return false;
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
    const StopSignals* signals) {
  const bool is_stdout = path == "-" || path == "/dev/stdout";
  std::unique_ptr<OutputFile> file(
      new OutputFile(is_stdout ? "-" : path, flag, signals));
  if (is_stdout) return file;
  const auto wrong = [&](const auto&... what) {
    return InvalidArgument(flag, " ", path, ": ", what...);
  };
  if (path.empty()) return wrong("the name is empty");
  file->target_ = FollowLinks(path).string();
  // A link in /proc leads to the open file, whatever its text is.
  if (absl::StartsWith(file->target_, "/proc/")) return file;
  struct stat info {};
  const char* const target = file->target_.c_str();
  if (stat(target, &info) == 0) {
    if (S_ISDIR(info.st_mode)) return wrong("this is a directory; name a file");
    if (access(target, W_OK) != 0) {
      return wrong("can't be written: ", strerror(errno));
    }
    file->replaces_ = S_ISREG(info.st_mode);
    if (!file->replaces_) return file;
  } else if (errno != ENOENT) {
    return wrong("can't be written: ", strerror(errno));
  }
  file->replaces_ = true;
  if (file->target_.back() == '/') {
    return wrong("this names a directory; name a file");
  }
  const std::string folder = FolderOf(file->target_);
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return wrong("there is no directory ", folder,
                 "; make it first, or write elsewhere");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return wrong("no file can be made in ", folder, ": ", strerror(errno));
  }
  file->partial_ = file->target_ + kSuffix;
  return file;
}

OutputFile::~OutputFile() {
  if (open_ && replaces_ && !committed_ && !partial_.empty()) {
    unlink(partial_.c_str());
  }
  if (fd_ >= 0 && fd_ != STDOUT_FILENO) close(fd_);
}

absl::Status OutputFile::Open(bool append) {
  if (open_) return absl::OkStatus();
  if (path_ == "-") {
    fd_ = STDOUT_FILENO;
  } else if (append || !replaces_) {
    partial_.clear();
    SLUICE_ASSIGN_OR_RETURN(fd_, OpenTarget(append));
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
      return FailedPrecondition(
          flag_, " ", path_,
          ": another process is writing it; wait for its end, or "
          "write elsewhere");
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
  buffer_.append(data.data(), data.size());
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status OutputFile::Flush() {
  absl::string_view left = buffer_;
  absl::Status status;
  while (!left.empty() && status.ok()) {
    size_t bytes = left.size();
    if (!replaces_ && signals_ != nullptr) {
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
  SLUICE_RETURN_IF_ERROR(Flush());
  if (partial_.empty()) return absl::OkStatus();
  // EINVAL comes from a file system without fsync.
  if (fsync(fd_) != 0 && errno != EINVAL)
    return Error("can't be brought to disk", errno);
  committed_ = true;  // the destructor keeps it
  if (rename(partial_.c_str(), target_.c_str()) != 0) {
    return Error(absl::StrCat("can't take the place of what was there (it is "
                              "whole in ",
                              partial_, ")"),
                 errno);
  }
  SyncDirectory(FolderOf(target_)).IgnoreError();
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
