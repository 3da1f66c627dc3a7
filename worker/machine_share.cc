#include "worker/machine_share.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "common/host/logging.h"
#include "common/status_macros.h"
#include "runtime/exec/weights/packed_store.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/host_memory.h"

namespace sluice {

absl::StatusOr<MachineShare> ParseMachine(const MachineFlags& flags) {
  MachineShare machine;
  SLUICE_ASSIGN_OR_RETURN(machine.host_memory_bytes,
                          ParseHostMemory(flags.host_memory));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<DeviceChoice> devices,
                          ParseDevices(flags.device, flags.tensor_parallel));
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
  const auto ranks = static_cast<int32_t>(machine.ranks.size());
  if (machine.threads < ranks && machine.device.backend != BackendKind::kCuda) {
    LogWarning("--tensor-parallel ", ranks, " with ", machine.threads,
               machine.threads == 1 ? " thread" : " threads",
               ": each rank computes with one of its own, so that they take "
               "turns on the cores; give no more ranks than --threads");
  }
  return machine;
}

absl::Status PrepareDisk(MachineShare* machine) {
  const std::string& dir = machine->disk_dir;
  if (dir.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return FailedPrecondition("--disk-dir: can't make the directory ", dir,
                              ": ", error.message());
  }
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
