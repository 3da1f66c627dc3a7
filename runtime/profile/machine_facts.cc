#include "runtime/profile/machine_facts.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/machine_profile.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/host_memory.h"

namespace sluice {
namespace {

// The version of the measurements; a change makes machines be measured again.
constexpr int kMeasuring = 3;

// Budgets from this size on allow all that the probes want.
constexpr uint64_t kAmple = uint64_t{1} << 30;

std::string Allows(uint64_t bytes) {
  if (bytes >= kAmple) return "ample";
  uint64_t power = 1;
  while (power * 2 <= bytes) power *= 2;
  return absl::StrCat("at least ", bytes == 0 ? 0 : power);
}

std::string DiskText(const std::string& dir) {
  if (dir.empty()) return "none";
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(dir, error);
  struct stat info;
  if (error || stat(dir.c_str(), &info) != 0) return dir;
  return absl::StrCat(path.string(), " on ", major(info.st_dev), ":",
                      minor(info.st_dev));
}

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

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

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

std::string MachineId() {
  const std::string boot = FirstLine("/proc/sys/kernel/random/boot_id");
  const std::string machine = boot.empty() ? HostName() : boot;
  const std::string own = OwnProcessors();
  return own.empty() ? machine : absl::StrCat(machine, ", ", own);
}

MachineFacts ReadMachineFacts() {
  MachineFacts facts;
  facts.cpu_quota = CpuQuota();
  facts.cpu = DescribeCpu();
  facts.memory_bytes = MachineMemory();
  struct rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    facts.locked_bytes_limit =
        limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
  }
  double load = 0;
  if (getloadavg(&load, 1) == 1) facts.load = load;
  facts.hardware_threads =
      static_cast<int>(std::thread::hardware_concurrency());
  return facts;
}

std::string Fingerprint(const FingerprintParts& parts) {
  return absl::StrCat(
      "profile ", MachineProfile::kVersion, ".", kMeasuring, "; build ",
      parts.version, "; ", parts.cpu, "; ", parts.kernels, "; device ",
      parts.device, "; threads ", parts.threads, " on cores ",
      parts.cores.empty() ? "any" : absl::StrJoin(parts.cores, ","),
      "; time of ", parts.cpu_quota, " cores; memory ", parts.memory_bytes,
      "; room ", Allows(parts.host_memory_bytes), " on the host, ",
      Allows(parts.device_memory_bytes), " on the device, ",
      parts.disk_dir.empty() ? "none" : Allows(parts.disk_bytes),
      " on disk; disk ", DiskText(parts.disk_dir),
      parts.rank_counts.empty()
          ? ""
          : absl::StrCat("; ranks ", absl::StrJoin(parts.rank_counts, ",")));
}

}  // namespace sluice
