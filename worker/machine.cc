#include "worker/machine.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice {

int32_t UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1u, std::thread::hardware_concurrency());
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
