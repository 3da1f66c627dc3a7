#include "coordinator/jobs/model_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/content_hash.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/content_hashes.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr char kFirstLine[] = "sluice model 1\n";
constexpr uintmax_t kMaxBytes = uintmax_t{16} << 20;

std::string EndLine(const std::string& text) {
  return absl::StrCat("end ", HexHash(text), "\n");
}

absl::Status WriteAll(const fs::path& path, absl::string_view text) {
  const auto failed = [&] {
    return absl::Status(absl::ErrnoToStatusCode(errno),
                        absl::StrCat("can't write ", path.string(), ": ",
                                     std::strerror(errno)));
  };
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return failed();
  absl::Status status;
  while (!text.empty() && status.ok()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      status = failed();
    }
  }
  if (status.ok() && fsync(fd) != 0) status = failed();
  close(fd);
  return status;
}

}  // namespace

absl::Status WriteModelRecord(const fs::path& path,
                              const ModelContent& content) {
  std::string text = kFirstLine;
  for (const ModelContent::File& file : content.files) {
    absl::StrAppend(&text, file.bytes, " ", file.hash, " ", file.name, "\n");
  }
  text += EndLine(text);
  const fs::path temporary = path.string() + ".new";
  if (absl::Status status = WriteAll(temporary, text); !status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::Status(absl::ErrnoToStatusCode(errno),
                        absl::StrCat("can't rename ", temporary.string(), ": ",
                                     std::strerror(errno)));
  }
  const int dir =
      open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    fsync(dir);
    close(dir);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelContent> ReadModelRecord(const fs::path& path) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) {
    return NotFound(path.string(), " is not there");
  }
  const absl::Status damaged = DataLoss(path.string(), " is damaged");
  if (error || bytes > kMaxBytes) return damaged;
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)),
                         std::istreambuf_iterator<char>());
  const size_t end = text.rfind("end ");
  if (text.rfind(kFirstLine, 0) != 0 || end == std::string::npos ||
      text.substr(end) != EndLine(text.substr(0, end))) {
    return damaged;
  }
  ModelContent content;
  const size_t begin = sizeof(kFirstLine) - 1;
  for (absl::string_view line :
       absl::StrSplit(absl::string_view(text).substr(begin, end - begin), '\n',
                      absl::SkipEmpty())) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 2));
    ModelContent::File file;
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &file.bytes)) {
      return damaged;
    }
    file.hash = std::string(words[1]);
    file.name = std::string(words[2]);
    content.files.push_back(std::move(file));
  }
  return content;
}

}  // namespace sluice
