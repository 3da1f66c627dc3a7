#include "worker/probe/worker_profile.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/profile_json.h"
#include "common/status_macros.h"
#include "runtime/memory/cpu_topology.h"
#include "worker/machine.h"
#include "worker/probe/link_profile.h"

namespace sluice {

absl::StatusOr<ProfilerOptions> ProfilerOptionsOf(
    const Worker::Options& options) {
  ProfilerOptions machine;
  machine.device = options.device;
  machine.cores = UsableCores();
  machine.threads = options.compute_threads > 0
                        ? options.compute_threads
                        : UsableCoreCount(machine.cores);
  if (!options.pin_threads ||
      machine.cores.size() != static_cast<size_t>(machine.threads)) {
    machine.cores.clear();
  }
  machine.device_memory_bytes = options.device_memory_bytes;
  machine.host_memory_bytes = options.host_memory_bytes;
  machine.disk_dir = options.disk_dir;
  machine.disk_bytes = options.disk_space_bytes;
  if (!options.disk_dir.empty()) {
    absl::Status made = MakeDiskDir(options.disk_dir);
    if (made.ok() && machine.disk_bytes == 0) {
      absl::StatusOr<uint64_t> space = DefaultDiskSpace(options.disk_dir);
      made = space.status();
      machine.disk_bytes = space.value_or(0);
    }
    SLUICE_RETURN_IF_ERROR(Annotate(made, "--disk-dir"));
  }
  return machine;
}

absl::StatusOr<MachineProfile> MeasureWorkerMachine(
    const ProfilerOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled) {
  constexpr double kLinkShare = 0.02;
  const ProfileProgress before_link = [&](absl::string_view what,
                                          double share) {
    if (progress && share < 1) progress(what, share * (1 - kLinkShare));
  };
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile,
                          MeasureMachine(options, before_link, cancelled));
  if (progress) progress("link", 1 - kLinkShare);
  absl::StatusOr<LinkProfile> link =
      MeasureLoopbackLink(kLinkShare * options.seconds, cancelled);
  if (link.ok()) {
    profile.step_seconds = 2 * link->latency_seconds;
    profile.links.push_back(*std::move(link));
  } else if (absl::IsCancelled(link.status())) {
    return link.status();
  } else {
    profile.remarks.push_back(absl::StrCat(
        "no link could be measured: ", std::string(link.status().message())));
  }
  if (progress) progress("done", 1);
  return profile;
}

ProfileCacheOptions ProfileCacheOf(const ProfilerOptions& machine) {
  return {.machine = machine,
          .cache_dir = ProfileCacheDir(machine.disk_dir),
          .measure = MeasureWorkerMachine};
}

absl::StatusOr<MachineProfile> ReadWorkerProfile(
    const std::string& path, const ProfilerOptions& machine) {
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile, ReadProfileFile(path));
  SLUICE_RETURN_IF_ERROR(Annotate(SetCapacities(machine, &profile), path));
  return profile;
}

}  // namespace sluice
