#include "runtime/gguf/gguf_file.h"

#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "runtime/gguf/gguf_header.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxParts = 9999;
constexpr absl::string_view kPartForm = "-00000-of-00000.gguf";

// The name of one part of a model: PREFIX-00001-of-00003.gguf.
struct PartName {
  std::string prefix;
  int64_t number = 0;  // from 1 on
  int64_t count = 0;
};

std::optional<PartName> ParsePartName(const std::string& name) {
  if (name.size() < kPartForm.size()) return std::nullopt;
  const absl::string_view form =
      absl::string_view(name).substr(name.size() - kPartForm.size());
  for (size_t i = 0; i < form.size(); ++i) {
    const bool digit = form[i] >= '0' && form[i] <= '9';
    if (kPartForm[i] == '0' ? !digit : form[i] != kPartForm[i]) {
      return std::nullopt;
    }
  }
  PartName part;
  part.prefix = name.substr(0, name.size() - kPartForm.size());
  if (!absl::SimpleAtoi(form.substr(1, 5), &part.number) ||
      !absl::SimpleAtoi(form.substr(10, 5), &part.count)) {
    return std::nullopt;
  }
  return part;
}

}  // namespace

bool IsGgufFile(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (absl::EndsWithIgnoreCase(path.string(), ".gguf")) return true;
  std::string magic(kGgufMagic.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(magic.data(), static_cast<std::streamsize>(magic.size()));
  return file.good() && magic == kGgufMagic;
}

absl::StatusOr<std::vector<fs::path>> GgufParts(const fs::path& path) {
  const std::optional<PartName> part = ParsePartName(path.filename().string());
  if (!part) return std::vector<fs::path>{path};
  if (part->number < 1 || part->number > part->count ||
      part->count > kMaxParts) {
    return InvalidArgument(path.string(), ": part ", part->number, " of ",
                           part->count, " is no part of a model");
  }
  std::vector<fs::path> parts;
  for (int64_t i = 1; i <= part->count; ++i) {
    fs::path file =
        path.parent_path() /
        absl::StrFormat("%s-%05d-of-%05d.gguf", part->prefix, i, part->count);
    std::error_code ignored;
    if (!fs::exists(file, ignored)) {
      return InvalidArgument(file.string(), " is missing: it is part ", i,
                             " of ", part->count,
                             "; get all parts into one directory");
    }
    parts.push_back(std::move(file));
  }
  return parts;
}

absl::StatusOr<GgufMetadata> ReadGgufMetadata(const fs::path& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<fs::path> parts, GgufParts(path));
  const std::string name = parts[0].string();
  std::error_code error;
  const uintmax_t bytes = fs::file_size(parts[0], error);
  std::ifstream file(parts[0], std::ios::binary);
  if (error || !file) return DataLoss(name, ": can't be read");
  const auto read = [&](uint64_t begin,
                        uint64_t end) -> absl::StatusOr<std::string> {
    std::string text(end - begin, '\0');
    file.seekg(static_cast<std::streamoff>(begin));
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!file) return DataLoss("can't be read at ", begin);
    return text;
  };
  SLUICE_ASSIGN_OR_RETURN(GgufHeader header,
                          Annotate(ReadGgufHeader(bytes, read), name));
  return std::move(header.metadata);
}

}  // namespace sluice
