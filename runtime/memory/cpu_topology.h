#pragma once

#include <span>
#include <vector>

namespace sluice {

// The physical cores that this process may use (its affinity mask, which a
// cgroup's cpuset narrows), in the machine's order: neighbours share caches
// and memory. A core is named by the operating system's number of its first
// usable hardware thread. Never empty: where the machine cannot be read, the
// hardware threads of the affinity mask stand for cores.
std::vector<int> UsableCores();

// Processor time that the cgroup's quota allows, in cores, rounded up; the
// number of usable cores if there is no quota or a larger one. More compute
// threads than this only wait for each other. `cores` as of UsableCores().
int UsableCoreCount(std::span<const int> cores);

// Lets the calling thread run on these cores only (all of them at once; one
// core to pin it). Best effort: what the system refuses is told in a debug
// message, and an empty list changes nothing.
void BindThisThread(std::span<const int> cores);

}  // namespace sluice
