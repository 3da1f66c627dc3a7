#pragma once

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

// Returns the time that control groups give a process, in cores: the minimum
// along its path, of both versions; 0 if none limits it. `groups` is the text
// of /proc/self/cgroup; `root` is their mount point.
double CpuQuota(absl::string_view groups, const std::string& root);
// Returns this process's own quota.
double CpuQuota();

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
