#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/memory/cpu_topology.h"

namespace sluice {

// What a machine is made of, as far as workers may be given parts of it.
struct MachineLayout {
  int gpus = 0;
  // All groups of cores that this process may use.
  std::vector<CoreGroup> numa_nodes;
  std::vector<CoreGroup> l3_groups;
  std::vector<CoreGroup> cores;
  double cpu_quota = 0;  // of control groups, in cores; 0: none
};

// Reads this machine's. Counts GPUs only if `gpus`.
MachineLayout ReadMachineLayout(bool gpus);

struct PartsOptions {
  // "auto": a part for each GPU, else for each NUMA node, else for each L3
  // cache; or one of "gpu", "numa", "l3"; or a number of equal parts.
  std::string per = "auto";
  std::string name;                // of the machine, before the parts'
  std::string device = "cpu";      // of the parts without GPUs
  uint64_t host_memory_bytes = 0;  // of all parts together
  uint64_t disk_bytes = 0;         // the same; 0: no disk tier, or each its own
  int32_t threads = 0;             // of each part; 0: one for each core
  std::string tensor_parallel = "1";  // of each part; its GPU is one
  // Of the first part; the others' follow. 0: any free ones.
  int port = 0;
  int metrics_port = 0;
};

// One worker's part of a machine.
struct MachinePart {
  std::string suffix;     // "numa0"
  std::string name;       // "host-numa0"
  std::string device;     // as ParseDevice takes it
  std::vector<int> cpus;  // hardware threads to be bound to; empty: all
  int32_t threads = 1;
  uint64_t host_memory_bytes = 0;
  uint64_t disk_bytes = 0;  // 0: as PartsOptions::disk_bytes
  int port = 0;
  int metrics_port = 0;
};

// Divides the machine. Memory goes by that of the NUMA nodes, where parts are
// these, else evenly; a quota of processor time goes by cores. Cores are
// divided evenly, in the machine's order, among GPUs and numbers of parts.
// kInvalidArgument: `per` is none of the above, more parts than cores, ports
// that meet or do not exist. kFailedPrecondition: "gpu" without one.
// kResourceExhausted: parts of less than 64 MiB of memory.
absl::StatusOr<std::vector<MachinePart>> DivideMachine(
    const MachineLayout& machine, const PartsOptions& options);

// A table for people: a line for each part.
std::string PartsTable(const std::vector<MachinePart>& parts);

}  // namespace sluice
