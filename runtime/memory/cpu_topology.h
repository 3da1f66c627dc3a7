#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// Returns the physical cores that this process may use (its affinity mask,
// which a cgroup's cpuset narrows), in the machine's order: neighbours share
// caches and memory. A core is named by the operating system's number of its
// first usable hardware thread. Never empty: if the topology cannot be read,
// the hardware threads of the affinity mask stand for cores.
std::vector<int> UsableCores();

// What cores have in common.
enum class CoreGroupKind { kCore, kL3, kNumaNode };

struct CoreGroup {
  std::vector<int> cpus;      // hardware threads that this process may use
  int cores = 0;              // that these are of
  uint64_t memory_bytes = 0;  // of a NUMA node; 0 for others, or if unknown
};

// Returns the groups of the machine's cores, in its order, that this process
// may use some of; kCore: each core for itself. Empty if the topology cannot be
// read, or the machine does not say. `synthetic` is another machine, as hwloc
// describes it, "numa:2 l3:2 core:4 pu:2", all of which may be used; for tests.
std::vector<CoreGroup> CoreGroups(CoreGroupKind kind,
                                  const std::string& synthetic = "");

// Returns the time that control groups give a process, in cores: the minimum
// along its path, of both versions; 0 if none limits it. `groups` is the text
// of /proc/self/cgroup; `root` is their mount point.
double CpuQuota(absl::string_view groups, const std::string& root);
// Returns the group of that limit, "/pod/one"; "" if none limits it.
std::string CpuQuotaGroup(absl::string_view groups, const std::string& root);
// Returns this process's own quota.
double CpuQuota();

// Returns which part of the machine's processors is this process's own, for
// people: "cores 0,1" where its affinity mask leaves out some that are online,
// "quota of /pod/one" where a control group limits its time; "" for all of it.
std::string OwnProcessors();

// Returns the processor time that CpuQuota() allows, in cores, rounded up; the
// number of usable cores if there is no quota or a larger one. More compute
// threads than this only wait for each other. `cores` are UsableCores().
int UsableCoreCount(std::span<const int> cores);

// Returns the NUMA node of each core, numbered as they come; all 0 where that
// is unknown.
std::vector<int> NumaNodesOf(std::span<const int> cores);
// Divides cores into parts of whole NUMA nodes if there are as many nodes to
// each part, else of neighbours, as equal as can be. `nodes` are parallel.
// REQUIRES: parts >= 1.
std::vector<std::vector<int>> DivideCores(std::span<const int> cores,
                                          std::span<const int> nodes,
                                          int parts);

// Lets the calling thread run on these cores only (all of them at once; one
// core to pin it). Best effort: a refusal of the system is only logged for
// debugging, and an empty list changes nothing.
void BindThisThread(std::span<const int> cores);

}  // namespace sluice
