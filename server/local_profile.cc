#include "server/local_profile.h"

#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "runtime/profile/machine_facts.h"
#include "runtime/profile/profile_cache.h"
#include "worker/machine_share.h"
#include "worker/probe/worker_profile.h"

namespace sluice {
namespace {

absl::StatusOr<uint64_t> Size(const char* flag, const std::string& text,
                              uint64_t otherwise) {
  if (text.empty()) return otherwise;
  return Annotate(ParseByteSize(text), flag);
}

}  // namespace

absl::StatusOr<MachineProfile> LocalProfile(
    const LocalProfileOptions& options,
    const std::function<void(absl::string_view what, double share)>& progress) {
  SLUICE_ASSIGN_OR_RETURN(MachineShare machine, ParseMachine(options.machine));
  if (machine.device.has_memory() != (machine.device_memory_bytes > 0)) {
    return InvalidArgument(
        "--device-memory goes with devices that have memory of their own; ",
        options.machine.device,
        machine.device.has_memory() ? " does: say how much of it may be used"
                                    : " has not: its memory is --host-memory");
  }
  SLUICE_RETURN_IF_ERROR(PrepareDisk(&machine));
  ProfileCacheOptions cache = ProfileCacheOf(machine);
  cache.refresh = options.fresh;
  if (!options.measure) {
    cache.measure = [](auto&, auto&, auto*) -> absl::StatusOr<MachineProfile> {
      return NotFound("this machine is not measured yet (`sluice profile`)");
    };
  }
  if (options.seconds > 0) {
    cache.machine.seconds = options.seconds;
    cache.cache_dir.clear();
  }
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile,
                          CachedProfile(cache, progress, options.stop));
  profile.name = HostName();
  return profile;
}

absl::Status SetBudgets(const std::string& host_memory,
                        const std::string& disk_space,
                        MachineProfile* profile) {
  SLUICE_ASSIGN_OR_RETURN(
      profile->host_memory_bytes,
      Size("--host-memory", host_memory, profile->host_memory_bytes));
  if (!disk_space.empty() && profile->disk_bytes == 0) {
    return InvalidArgument(
        "--disk-space: the machine of profile '", profile->name,
        "' has no disk tier; `sluice profile --disk-dir DIR` "
        "measures one");
  }
  SLUICE_ASSIGN_OR_RETURN(profile->disk_bytes, Size("--disk-space", disk_space,
                                                    profile->disk_bytes));
  return absl::OkStatus();
}

}  // namespace sluice
