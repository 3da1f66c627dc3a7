#include "worker/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "runtime/memory/disk_file.h"

namespace sluice {

absl::Status MakeDiskDir(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't make the directory ", dir, ": ", error.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DefaultDiskSpace(const std::string& dir) {
  SLUICE_RETURN_IF_ERROR(MakeDiskDir(dir));
  SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes, FreeDiskBytes(dir));
  return bytes / 10 * 9;
}

std::string DescribeCpu() {
  std::ifstream file("/proc/cpuinfo");
  std::ostringstream text;
  text << file.rdbuf();
  return DescribeCpu(text.str());
}

std::string DescribeCpu(absl::string_view cpuinfo) {
  std::string model = "unknown";
  std::vector<absl::string_view> flags;
  for (absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(parts.first);
    if (key == "model name" && model == "unknown") {
      model = std::string(absl::StripAsciiWhitespace(parts.second));
    } else if ((key == "flags" || key == "Features") && flags.empty()) {
      flags = absl::StrSplit(parts.second, ' ', absl::SkipEmpty());
    }
  }
  static constexpr std::pair<absl::string_view, absl::string_view> kSets[] = {
      {"amx_bf16", "AMX"},    {"avx512_bf16", "AVX-512 bf16"},
      {"avx512f", "AVX-512"}, {"avx2", "AVX2"},
      {"sve", "SVE"},         {"asimd", "NEON"},
  };
  for (const auto& [flag, name] : kSets) {
    if (std::find(flags.begin(), flags.end(), flag) != flags.end()) {
      return absl::StrCat("cpu: ", model, ", ", name);
    }
  }
  return absl::StrCat("cpu: ", model, ", baseline");
}

}  // namespace sluice
