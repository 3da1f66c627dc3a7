#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// "cpu: <model>, <widest instruction set that matters to the kernels>", for
// people.
std::string DescribeCpu();
// The same from the text of /proc/cpuinfo.
std::string DescribeCpu(absl::string_view cpuinfo);

// "localhost" where the system has none.
std::string HostName();

// What is the same for all processes that share this machine's cores, and no
// other machine has: the id of the running kernel, else the host's name.
std::string MachineId();

// What the system says of the machine and of what it lets this process do.
struct MachineFacts {
  std::string cpu;                  // DescribeCpu()
  uint64_t memory_bytes = 0;        // of the machine; 0 if unknown
  uint64_t locked_bytes_limit = 0;  // RLIMIT_MEMLOCK; UINT64_MAX: none
  double load = 0;                  // processes that run, over the last minute
  int hardware_threads = 0;
  double cpu_quota = 0;  // cores' worth of time that it gets; 0: no limit
};
MachineFacts ReadMachineFacts();

// What the rates of a profile depend on: measured again when it changes. What
// a budget allows counts only as far as it makes the probes smaller.
struct FingerprintParts {
  std::string cpu;      // DescribeCpu()
  std::string kernels;  // GemmEngine::LayoutKey()
  std::string device;   // DescribeDevice()
  int32_t threads = 0;
  std::vector<int> cores;
  double cpu_quota = 0;
  uint64_t memory_bytes = 0;  // of the machine
  uint64_t host_memory_bytes = 0, device_memory_bytes = 0, disk_bytes = 0;
  std::string disk_dir;  // "": none
  std::string version;   // of the build
};
// One line for people; of a directory, the disk that it lies on.
std::string Fingerprint(const FingerprintParts& parts);

}  // namespace sluice
