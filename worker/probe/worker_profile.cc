#include "worker/probe/worker_profile.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/profile_json.h"
#include "common/status_macros.h"
#include "worker/probe/link_profile.h"

namespace sluice {

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

ProfileCacheOptions ProfileCacheOf(const MachineShare& machine) {
  return {.machine = {machine},
          .cache_dir = ProfileCacheDir(machine.disk_dir),
          .measure = MeasureWorkerMachine};
}

absl::StatusOr<MachineProfile> ReadWorkerProfile(const std::string& path,
                                                 const MachineShare& machine) {
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile, ReadProfileFile(path));
  SLUICE_RETURN_IF_ERROR(Annotate(SetCapacities(machine, &profile), path));
  return profile;
}

}  // namespace sluice
