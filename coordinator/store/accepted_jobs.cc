#include "coordinator/store/accepted_jobs.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// The file is one line of fixed length, which is overwritten in place: that
// needs no room on a full disk, and a sector is written whole or not at all.
constexpr size_t kLineBytes = 64;

std::string Line(int64_t accepted) {
  std::string line =
      absl::StrFormat("accepted jobs: %d %d", accepted,
                      ~accepted);  // twice, to detect a torn write
  line.resize(kLineBytes - 1, ' ');
  return line + "\n";
}

}  // namespace

AcceptedJobs::AcceptedJobs(const std::filesystem::path& database)
    : database_(database),
      path_(std::filesystem::path(database).replace_extension(".accepted")) {}

std::optional<int64_t> AcceptedJobs::Read() const {
  std::ifstream in(path_);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  const std::vector<std::string> words =
      absl::StrSplit(line, ' ', absl::SkipEmpty());
  int64_t accepted = 0, inverse = 0;
  if (words.size() != 4 || !absl::SimpleAtoi(words[2], &accepted) ||
      !absl::SimpleAtoi(words[3], &inverse) || accepted < 0 ||
      inverse != ~accepted) {
    return std::nullopt;
  }
  return accepted;
}

absl::Status AcceptedJobs::Write(int64_t accepted) const {
  const std::string line = Line(accepted);
  const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const bool written = fd >= 0 &&
                       pwrite(fd, line.data(), line.size(), 0) ==
                           static_cast<ssize_t>(line.size()) &&
                       fdatasync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (written) return absl::OkStatus();
  return Unavailable("cannot write ", path_.string(), ": ", strerror(error));
}

absl::Status AcceptedJobs::Check(int64_t accepted) const {
  const int64_t written = Read().value_or(0);
  if (written <= accepted) return absl::OkStatus();
  return DataLoss(
      "jobs are missing: ", path_.string(), " says that ", written,
      " were accepted, ", database_.string(), " knows of ", accepted,
      ". Its log, ", database_.filename().string(),
      "-wal, is missing or damaged, or the database is an old copy: put the "
      "right files back, or delete ",
      path_.filename().string(), " to go on with the jobs that are there");
}

}  // namespace sluice
