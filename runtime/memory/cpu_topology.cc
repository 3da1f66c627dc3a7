#include "runtime/memory/cpu_topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "runtime/memory/control_groups.h"

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

// What this process may use.
void FillUsable(CpuSet* usable) {
  if (sched_getaffinity(0, CpuSet::bytes(), usable->get()) == 0) return;
  const int threads =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int i = 0; i < std::min(threads, kMaxCores); ++i) usable->Add(i);
}

hwloc_obj_type_t TypeOf(CoreGroupKind kind) {
  switch (kind) {
    case CoreGroupKind::kCore:
      return HWLOC_OBJ_CORE;
    case CoreGroupKind::kL3:
      return HWLOC_OBJ_L3CACHE;
    case CoreGroupKind::kNumaNode:
      break;
  }
  return HWLOC_OBJ_NUMANODE;
}

// The usable hardware threads of a set; all of them if `usable` is null.
std::vector<int> ThreadsOf(hwloc_const_bitmap_t set, const CpuSet* usable) {
  std::vector<int> threads;
  for (int thread = hwloc_bitmap_first(set); thread >= 0 && thread < kMaxCores;
       thread = hwloc_bitmap_next(set, thread)) {
    if (usable == nullptr || usable->Has(thread)) threads.push_back(thread);
  }
  return threads;
}

std::vector<CoreGroup> GroupsFromHwloc(CoreGroupKind kind, const CpuSet* usable,
                                       const std::string& synthetic) {
  std::vector<CoreGroup> groups;
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return groups;
  // Disks and network cards take long to look up and are not asked for.
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  const bool described =
      synthetic.empty() ||
      hwloc_topology_set_synthetic(topology, synthetic.c_str()) == 0;
  if (described && hwloc_topology_load(topology) == 0) {
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology, TypeOf(kind),
                                                object)) != nullptr) {
      CoreGroup group = {.cpus = ThreadsOf(object->cpuset, usable)};
      if (group.cpus.empty()) continue;
      hwloc_obj_t core = nullptr;
      while ((core = hwloc_get_next_obj_inside_cpuset_by_type(
                  topology, object->cpuset, HWLOC_OBJ_CORE, core)) != nullptr) {
        if (!ThreadsOf(core->cpuset, usable).empty()) ++group.cores;
      }
      group.cores = std::max(1, group.cores);
      if (kind == CoreGroupKind::kNumaNode && object->attr != nullptr) {
        group.memory_bytes = object->attr->numanode.local_memory;
      }
      groups.push_back(std::move(group));
    }
  }
  hwloc_topology_destroy(topology);
  return groups;
}

}  // namespace

std::vector<int> UsableCores() {
  CpuSet usable;
  FillUsable(&usable);
  std::vector<int> cores;
  for (const CoreGroup& core :
       GroupsFromHwloc(CoreGroupKind::kCore, &usable, "")) {
    cores.push_back(core.cpus.front());
  }
  if (!cores.empty()) return cores;
  for (int i = 0; i < kMaxCores; ++i) {
    if (usable.Has(i)) cores.push_back(i);
  }
  return cores;
}

std::vector<CoreGroup> CoreGroups(CoreGroupKind kind,
                                  const std::string& synthetic) {
  CpuSet usable;
  FillUsable(&usable);
  return GroupsFromHwloc(kind, synthetic.empty() ? &usable : nullptr,
                         synthetic);
}

double CpuQuota(absl::string_view groups, const std::string& root) {
  double min = 0;
  const auto limit = [&](double quota, double period) {
    if (!(quota > 0) || !(period > 0)) return;
    const double cores = quota / period;
    if (min == 0 || cores < min) min = cores;
  };
  ForEachControlGroup(
      groups, "cpu", [&](const std::string& path, bool first_version) {
        double quota = 0;
        double period = 0;
        if (first_version) {
          const std::string at = absl::StrCat(root, "/cpu", path, "/");
          std::ifstream(at + "cpu.cfs_quota_us") >> quota;
          std::ifstream(at + "cpu.cfs_period_us") >> period;
        } else {
          std::ifstream(absl::StrCat(root, path, "/cpu.max")) >> quota >>
              period;  // "max" is no number: no limit
        }
        limit(quota, period);
      });
  return min;
}

double CpuQuota() {
  std::ifstream groups("/proc/self/cgroup");
  std::ostringstream text;
  text << groups.rdbuf();
  return CpuQuota(text.str(), "/sys/fs/cgroup");
}

int UsableCoreCount(std::span<const int> cores) {
  const int count = std::max(1, static_cast<int>(cores.size()));
  const double quota = CpuQuota();
  if (quota <= 0 || quota >= count) return count;
  const int whole = static_cast<int>(quota);
  return std::max(1, whole + (quota > whole ? 1 : 0));
}

std::vector<int> NumaNodesOf(std::span<const int> cores) {
  std::vector<int> nodes(cores.size(), 0);
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return nodes;
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  if (hwloc_topology_load(topology) == 0) {
    hwloc_obj_t node = nullptr;
    for (int number = 0; (node = hwloc_get_next_obj_by_type(
                              topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;
         ++number) {
      for (size_t i = 0; i < cores.size(); ++i) {
        if (hwloc_bitmap_isset(node->cpuset, cores[i])) nodes[i] = number;
      }
    }
  }
  hwloc_topology_destroy(topology);
  return nodes;
}

std::vector<std::vector<int>> DivideCores(std::span<const int> cores,
                                          std::span<const int> nodes,
                                          int parts) {
  std::vector<int> order;  // nodes, as they come
  for (const int node : nodes) {
    if (std::find(order.begin(), order.end(), node) == order.end()) {
      order.push_back(node);
    }
  }
  const size_t count = parts;
  std::vector<std::vector<int>> divided(count);
  const bool by_node = !order.empty() && order.size() % count == 0;
  for (size_t i = 0; i < cores.size(); ++i) {
    const size_t node =
        std::find(order.begin(), order.end(), nodes[i]) - order.begin();
    divided[by_node ? node * count / order.size() : i * count / cores.size()]
        .push_back(cores[i]);
  }
  return divided;
}

void BindThisThread(std::span<const int> cores) {
  if (cores.empty()) return;
  CpuSet set;
  for (int core : cores) {
    if (core >= 0 && core < kMaxCores) set.Add(core);
  }
  if (sched_setaffinity(0, CpuSet::bytes(), set.get()) != 0) {
    LogDebug("a thread is left unpinned: core ", cores[0], " of ", cores.size(),
             ": ", strerror(errno));
  }
}

}  // namespace sluice
