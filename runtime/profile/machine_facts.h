#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// Returns "cpu: <model>, <widest instruction set that matters to the kernels>",
// for people.
std::string DescribeCpu();
// Makes the description from the text of /proc/cpuinfo.
std::string DescribeCpu(absl::string_view cpuinfo);

// Returns "localhost" where the system has none.
std::string HostName();

// Returns an id that is common to all processes that share this machine's
// cores, and unique: the id of the running kernel, else the host's name; and,
// where a process has some cores or a quota of their time (a container), these.
std::string MachineId();

// The system's facts of the machine, and its limits for this process.
struct MachineFacts {
  std::string cpu;                  // DescribeCpu()
  uint64_t memory_bytes = 0;        // of the machine; 0 if unknown
  uint64_t locked_bytes_limit = 0;  // RLIMIT_MEMLOCK; UINT64_MAX: none
  double load = 0;                  // running processes, over the last minute
  int hardware_threads = 0;
  double cpu_quota = 0;  // processor time in cores; 0: no limit
};
MachineFacts ReadMachineFacts();

// The facts that the rates of a profile depend on: a change makes it be
// measured again. Budgets count only as far as they make the probes smaller.
struct FingerprintParts {
  std::string cpu;      // DescribeCpu()
  std::string kernels;  // GemmEngine::LayoutKey()
  std::string device;   // DescribeDevice()
  int32_t threads = 0;
  std::vector<int> cores;
  double cpu_quota = 0;
  uint64_t memory_bytes = 0;  // of the machine
  uint64_t host_memory_bytes = 0, device_memory_bytes = 0, disk_bytes = 0;
  std::string disk_dir;              // "": none
  std::string version;               // of the build
  std::vector<int32_t> rank_counts;  // that are measured
};
// Returns one line for people; it has the disk of a directory.
std::string Fingerprint(const FingerprintParts& parts);

}  // namespace sluice
