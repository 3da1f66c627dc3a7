#include "runtime/memory/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "runtime/memory/control_groups.h"

namespace sluice {
namespace {

// The first number of a one-line file; empty if there is none ("max").
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Reads the number of a line "Key:  <number> kB" of a file.
std::optional<uint64_t> ReadKib(const char* path, absl::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    uint64_t kib = 0;
    if (absl::ConsumePrefix(&rest, key) && absl::ConsumeSuffix(&rest, "kB") &&
        absl::SimpleAtoi(absl::StripAsciiWhitespace(rest), &kib)) {
      return kib * 1024;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> CgroupMemoryLeft(absl::string_view groups,
                                         const std::string& root) {
  std::optional<uint64_t> min;
  const auto consider = [&](const std::string& dir, const char* limit_file,
                            const char* usage_file) {
    const std::optional<uint64_t> limit = ReadNumber(dir + limit_file);
    const std::optional<uint64_t> usage = ReadNumber(dir + usage_file);
    if (!limit || !usage) return;
    const uint64_t left = *limit > *usage ? *limit - *usage : 0;
    min = min ? std::min(*min, left) : left;
  };
  ForEachControlGroup(
      groups, "memory", [&](const std::string& path, bool first_version) {
        if (first_version) {
          consider(absl::StrCat(root, "/memory", path, "/"),
                   "memory.limit_in_bytes", "memory.usage_in_bytes");
        } else {
          consider(absl::StrCat(root, path, "/"), "memory.max",
                   "memory.current");
        }
      });
  // A container may see its own group at the root, whatever its path says.
  consider(root + "/", "memory.max", "memory.current");
  consider(root + "/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes");
  return min;
}

uint64_t AvailableHostMemory() {
  const uint64_t available =
      ReadKib("/proc/meminfo", "MemAvailable:").value_or(0);
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream groups;
  groups << file.rdbuf();
  const std::optional<uint64_t> left =
      CgroupMemoryLeft(groups.str(), "/sys/fs/cgroup");
  if (!left) return available;
  return available == 0 ? *left : std::min(available, *left);
}

uint64_t PeakResidentMemory() {
  return ReadKib("/proc/self/status", "VmHWM:").value_or(0);
}

uint64_t DefaultHostMemory() { return AvailableHostMemory() / 4 * 3; }

uint64_t MachineMemory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page_bytes > 0
             ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes)
             : 0;
}

absl::StatusOr<uint64_t> ParseHostMemory(const std::string& text, bool warn) {
  if (text.empty()) return DefaultHostMemory();
  SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes,
                          Annotate(ParseByteSize(text), "--host-memory"));
  const uint64_t there = MachineMemory();
  if (warn && there > 0 && bytes > there) {
    LogWarning("--host-memory ", text, ": this machine has only ", there >> 20,
               " MiB");
  }
  return bytes;
}

}  // namespace sluice
