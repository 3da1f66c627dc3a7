#include "runtime/memory/cpu_topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/host/logging.h"

namespace sluice {
namespace {

constexpr int kMaxCores = 1 << 16;

// A cpu_set_t of the size that this machine needs.
class CpuSet {
 public:
  CpuSet() : set_(CPU_ALLOC(kMaxCores)) { CPU_ZERO_S(bytes(), set_); }
  ~CpuSet() { CPU_FREE(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  cpu_set_t* get() { return set_; }
  static size_t bytes() { return CPU_ALLOC_SIZE(kMaxCores); }
  void Add(int cpu) { CPU_SET_S(cpu, bytes(), set_); }
  bool Has(int cpu) const { return CPU_ISSET_S(cpu, bytes(), set_); }

 private:
  cpu_set_t* set_;
};

// The first usable hardware thread of each core; empty if hwloc cannot read
// the machine.
std::vector<int> CoresFromHwloc(const CpuSet& usable) {
  std::vector<int> cores;
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return cores;
  // Disks and network cards take long to look up and are not asked for.
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  if (hwloc_topology_load(topology) == 0) {
    hwloc_obj_t core = nullptr;
    while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE,
                                              core)) != nullptr) {
      int thread = hwloc_bitmap_first(core->cpuset);
      while (thread >= 0 && (thread >= kMaxCores || !usable.Has(thread))) {
        thread = hwloc_bitmap_next(core->cpuset, thread);
      }
      if (thread >= 0) cores.push_back(thread);
    }
  }
  hwloc_topology_destroy(topology);
  return cores;
}

// Cores' worth of time that the cgroup (v2 or v1) allows; 0 for no quota.
double CgroupQuota() {
  double quota = 0;
  double period = 0;
  std::string text;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> text >> period) {
    if (!absl::SimpleAtod(text, &quota)) return 0;  // "max"
  } else {
    std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return 0;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

std::vector<int> UsableCores() {
  CpuSet usable;
  if (sched_getaffinity(0, CpuSet::bytes(), usable.get()) != 0) {
    const int threads =
        std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (int i = 0; i < std::min(threads, kMaxCores); ++i) usable.Add(i);
  }
  std::vector<int> cores = CoresFromHwloc(usable);
  if (!cores.empty()) return cores;
  for (int i = 0; i < kMaxCores; ++i) {
    if (usable.Has(i)) cores.push_back(i);
  }
  return cores;
}

int UsableCoreCount(std::span<const int> cores) {
  const int count = std::max(1, static_cast<int>(cores.size()));
  const double quota = CgroupQuota();
  if (quota <= 0 || quota >= count) return count;
  const int whole = static_cast<int>(quota);
  return std::max(1, whole + (quota > whole ? 1 : 0));
}

void BindThisThread(std::span<const int> cores) {
  if (cores.empty()) return;
  CpuSet set;
  for (int core : cores) {
    if (core >= 0 && core < kMaxCores) set.Add(core);
  }
  if (sched_setaffinity(0, CpuSet::bytes(), set.get()) != 0) {
    LogDebug(absl::StrCat("a thread is left unpinned: core ", cores[0], " of ",
                          cores.size(), ": ", strerror(errno)));
  }
}

}  // namespace sluice
