#include "coordinator/jobs/model_record.h"

#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/content_hash.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/content_hashes.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr char kFirstLine[] = "sluice model 1\n";
constexpr char kCopies[] = "copies ";
constexpr uintmax_t kMaxRecordBytes = uintmax_t{16} << 20;

std::string EndLine(const std::string& text) {
  return absl::StrCat("end ", HexHash(text), "\n");
}

}  // namespace

absl::Status WriteModelRecord(const fs::path& path,
                              const ModelContent& content) {
  std::string text = kFirstLine;
  for (const ModelContent::File& file : content.files) {
    absl::StrAppend(&text, file.bytes, " ", file.hash, " ", file.name, "\n");
  }
  if (!content.copies.empty()) {
    absl::StrAppend(&text, kCopies, content.copies, "\n");
  }
  text += EndLine(text);
  SLUICE_RETURN_IF_ERROR(ReplaceFile(path, text));
  return SyncDirectory(path.parent_path());
}

absl::StatusOr<ModelContent> ReadModelRecord(const fs::path& path) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) {
    return NotFound(path.string(), " is not there");
  }
  const absl::Status damaged = DataLoss(path.string(), " is damaged");
  if (error || bytes > kMaxRecordBytes) return damaged;
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
    if (absl::ConsumePrefix(&line, kCopies)) {
      content.copies = std::string(line);
      continue;
    }
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
