#pragma once

#include <span>
#include <vector>

namespace sluice {

// Returns the physical cores that this process may use (its affinity mask,
// which a cgroup's cpuset narrows), in the machine's order: neighbours share
// caches and memory. A core is named by the operating system's number of its
// first usable hardware thread. Never empty: if the topology cannot be read,
// the hardware threads of the affinity mask stand for cores.
std::vector<int> UsableCores();

// Returns the processor time of the cgroup's quota, in cores, rounded up; the
// number of usable cores if there is no quota or a larger one. More compute
// threads than this only wait for each other. `cores` are UsableCores().
int UsableCoreCount(std::span<const int> cores);

// Lets the calling thread run on these cores only (all of them at once; one
// core to pin it). Best effort: a refusal of the system is only logged for
// debugging, and an empty list changes nothing.
void BindThisThread(std::span<const int> cores);

}  // namespace sluice
