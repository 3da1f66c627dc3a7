#include "worker/machine_share.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/host/logging.h"
#include "common/host/write_file.h"
#include "common/policy.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "runtime/exec/weights/packed_store.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/host_memory.h"

namespace sluice {

namespace {

// What --tensor-parallel says. `auto` is as many as `devices` names, or one for
// each NUMA node.
absl::Status ParseRanks(const MachineFlags& flags, int32_t* ranks,
                        bool* by_plan) {
  const std::string& text = flags.tensor_parallel;
  absl::string_view rest = text;
  *by_plan = absl::ConsumePrefix(&rest, "auto");
  if (*by_plan && rest.empty()) {
    const auto named =
        std::count(flags.device.begin(), flags.device.end(), ',');
    const std::vector<int> nodes = NumaNodesOf(UsableCores());
    const bool cores = !absl::StartsWith(flags.device, "cuda");
    // ParseDevices counts the devices that are named.
    *ranks = named > 0 || !cores
                 ? 1
                 : std::min(kMaxRanks,
                            1 + *std::max_element(nodes.begin(), nodes.end()));
    return absl::OkStatus();
  }
  if (*by_plan && !absl::ConsumePrefix(&rest, ":")) rest = "";
  if (!absl::SimpleAtoi(rest, ranks) || *ranks < 1 || *ranks > kMaxRanks) {
    return InvalidArgument("--tensor-parallel ", text,
                           ": it must be a number of ranks, 1 to ", kMaxRanks,
                           ", auto, or auto:N for up to N");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MachineShare> ParseMachine(const MachineFlags& flags) {
  MachineShare machine;
  SLUICE_ASSIGN_OR_RETURN(machine.host_memory_bytes,
                          ParseHostMemory(flags.host_memory, flags.warn));
  int32_t ranks = 1;
  SLUICE_RETURN_IF_ERROR(ParseRanks(flags, &ranks, &machine.ranks_by_plan));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<DeviceChoice> devices,
                          ParseDevices(flags.device, ranks));
  machine.device = devices[0];
  for (const DeviceChoice& device : devices) {
    SLUICE_RETURN_IF_ERROR(CheckDevice(device));
    SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes,
                            ParseDeviceMemory(device, flags.device_memory));
    // Ranks are alike: the least is what each has.
    machine.device_memory_bytes =
        &device == &devices[0] ? bytes
                               : std::min(machine.device_memory_bytes, bytes);
  }
  if (devices.size() > 1) machine.ranks = devices;
  machine.disk_dir = flags.disk_dir;
  if (!flags.disk_space.empty()) {
    if (flags.disk_dir.empty()) {
      return absl::InvalidArgumentError("--disk-space needs a --disk-dir");
    }
    SLUICE_ASSIGN_OR_RETURN(
        machine.disk_bytes,
        Annotate(ParseByteSize(flags.disk_space), "--disk-space"));
  }
  machine.cores = UsableCores();
  machine.threads =
      flags.threads > 0 ? flags.threads : UsableCoreCount(machine.cores);
  if (machine.cores.size() != static_cast<size_t>(machine.threads)) {
    machine.cores.clear();
  }
  if (flags.warn && devices.size() > 1 &&
      machine.threads < static_cast<int>(devices.size()) &&
      !machine.ranks_by_plan && machine.device.backend != BackendKind::kCuda) {
    LogWarning("--tensor-parallel ", devices.size(), " with ", machine.threads,
               machine.threads == 1 ? " thread" : " threads",
               ": each rank computes with one of its own, so that they take "
               "turns on the cores; give no more ranks than --threads");
  }
  return machine;
}

absl::Status PrepareDisk(MachineShare* machine) {
  const std::string& dir = machine->disk_dir;
  if (dir.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(MakeDirectory("--disk-dir", dir));
  if (machine->disk_bytes > 0) return absl::OkStatus();
  absl::StatusOr<uint64_t> space = DefaultDiskSpace(dir);
  machine->disk_bytes = space.value_or(0);
  return Annotate(space.status(), "--disk-dir");
}

absl::StatusOr<uint64_t> DefaultDiskSpace(const std::string& dir) {
  SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes, FreeDiskBytes(dir));
  return (bytes + PackedStore::DiskBytes(dir)) / 10 * 9;
}

}  // namespace sluice
