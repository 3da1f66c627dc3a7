#include "runtime/model/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/lfs_pointer.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxJsonFileBytes = size_t{64} << 20;

// Deepest nesting of brackets outside of strings. Exact for valid JSON; for
// anything else the parser complains later.
int NestingDepth(absl::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path,
                                          size_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string message =
        absl::StrCat(path.string(), ": cannot open: ", std::strerror(errno));
    return errno == ENOENT || errno == ENOTDIR
               ? absl::NotFoundError(message)
               : absl::FailedPreconditionError(message);
  }
  struct stat info;
  std::string text;
  absl::Status status;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": not a regular file"));
  } else if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    status = absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": ", info.st_size, " bytes, but at most ",
                     max_bytes, " are accepted"));
  } else {
    text.resize(static_cast<size_t>(info.st_size));
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = read(fd, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        status = absl::DataLossError(absl::StrCat(
            path.string(), ": cannot read: ", std::strerror(errno)));
        break;
      }
      if (n == 0) break;  // it shrank meanwhile
      done += static_cast<size_t>(n);
    }
    text.resize(done);
  }
  close(fd);
  if (!status.ok()) return status;
  if (IsLfsPointer(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": ", kLfsPointerAdvice));
  }
  return text;
}

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text) {
  if (NestingDepth(text) > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON is nested more than ", kMaxDepth, " deep"));
  }
  try {
    nlohmann::json value =
        nlohmann::json::parse(text.data(), text.data() + text.size());
    if (!value.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat("must be a JSON object, but is ", value.type_name()));
    }
    return value;
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON: ", e.what()));
  }
}

absl::StatusOr<nlohmann::json> ReadJsonObject(
    const std::filesystem::path& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(path, kMaxJsonFileBytes));
  absl::StatusOr<nlohmann::json> value = ParseJsonObject(text);
  if (!value.ok()) return Annotate(value.status(), path.string());
  return value;
}

}  // namespace sluice
