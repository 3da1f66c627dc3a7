#include "server/local_profile.h"

#include <unistd.h>

#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/memory/host_memory.h"
#include "runtime/profile/profile_cache.h"
#include "worker/probe/worker_profile.h"

namespace sluice {
namespace {

absl::StatusOr<uint64_t> Size(const char* flag, const std::string& text,
                              uint64_t otherwise) {
  if (text.empty()) return otherwise;
  absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (!bytes.ok()) return Annotate(bytes.status(), flag);
  return bytes;
}

}  // namespace

absl::StatusOr<MachineProfile> LocalProfile(
    const LocalProfileOptions& options,
    const std::function<void(absl::string_view what, double share)>& progress) {
  Worker::Options worker;
  SLUICE_ASSIGN_OR_RETURN(worker.device, ParseDevice(options.device));
  SLUICE_RETURN_IF_ERROR(CheckDevice(worker.device));
  SLUICE_ASSIGN_OR_RETURN(
      worker.device_memory_bytes,
      ParseDeviceMemory(worker.device, options.device_memory));
  if (worker.device.has_memory() != (worker.device_memory_bytes > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device-memory goes with devices that have memory of their own; ",
        options.device,
        worker.device.has_memory() ? " does: say how much of it may be used"
                                   : " has not: its memory is --host-memory"));
  }
  SLUICE_ASSIGN_OR_RETURN(worker.host_memory_bytes,
                          ParseHostMemory(options.host_memory));
  if (options.disk_dir.empty() && !options.disk_space.empty()) {
    return absl::InvalidArgumentError("--disk-space needs a --disk-dir");
  }
  worker.disk_dir = options.disk_dir;
  SLUICE_ASSIGN_OR_RETURN(worker.disk_space_bytes,
                          Size("--disk-space", options.disk_space, 0));
  worker.compute_threads = options.threads;
  worker.pin_threads = true;
  SLUICE_ASSIGN_OR_RETURN(ProfilerOptions machine, ProfilerOptionsOf(worker));
  if (options.seconds > 0) machine.seconds = options.seconds;
  ProfileCacheOptions cache = ProfileCacheOf(machine);
  cache.refresh = options.fresh;
  if (options.seconds > 0) cache.cache_dir.clear();
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile,
                          CachedProfile(cache, progress, nullptr));
  char name[HOST_NAME_MAX + 1] = {};
  profile.name = gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
  return profile;
}

absl::Status SetBudgets(const std::string& host_memory,
                        const std::string& disk_space,
                        MachineProfile* profile) {
  SLUICE_ASSIGN_OR_RETURN(
      profile->host_memory_bytes,
      Size("--host-memory", host_memory, profile->host_memory_bytes));
  if (!disk_space.empty() && profile->disk_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--disk-space: the machine of profile '", profile->name,
                     "' has no disk tier; `sluice profile --disk-dir DIR` "
                     "measures one"));
  }
  SLUICE_ASSIGN_OR_RETURN(profile->disk_bytes, Size("--disk-space", disk_space,
                                                    profile->disk_bytes));
  return absl::OkStatus();
}

}  // namespace sluice
