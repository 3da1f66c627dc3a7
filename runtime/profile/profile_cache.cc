#include "runtime/profile/profile_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <span>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/codec/profile_json.h"
#include "common/host/logging.h"
#include "common/host/user_cache.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "runtime/memory/checksum.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/profile/machine_facts.h"

namespace sluice {
namespace {

// The interval of polling while another process measures.
constexpr absl::Duration kLockPoll = absl::Milliseconds(50);
constexpr int kReadPolls = 10;
// A disturbed measurement counts for so long, so that a worker that is started
// again and again on a busy machine does not measure each time.
constexpr std::chrono::hours kDisturbedKept{1};

// Locks a directory for one process at a time, if the file system supports it.
class DirLock {
 public:
  ~DirLock() {
    if (fd_ >= 0) close(fd_);
  }
  absl::Status Take(const std::string& dir, const ProfileProgress& progress,
                    const std::atomic<bool>* cancelled) {
    fd_ = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int polls = 0; fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 &&
                        (errno == EWOULDBLOCK || errno == EINTR);
         ++polls) {
      SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
      // One that only reads has the lock for a moment.
      if (polls == kReadPolls && progress) progress(kAwaitsMeasurement, 0);
      absl::SleepFor(kLockPoll);
    }
    return absl::OkStatus();
  }

 private:
  int fd_ = -1;
};

std::string CacheFile(const std::string& dir, const std::string& fingerprint) {
  const uint64_t hash = BlockChecksum(
      std::as_bytes(std::span(fingerprint.data(), fingerprint.size())));
  return absl::StrCat(dir, "/sluice-profile-",
                      absl::Hex(hash, absl::kZeroPad16), ".json");
}

// Returns the cached profile; kNotFound, or the reason why it is unusable.
absl::StatusOr<MachineProfile> Find(const std::string& path,
                                    const std::string& fingerprint,
                                    const ProfilerOptions& machine) {
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile, ReadProfileFile(path));
  if (profile.fingerprint != fingerprint) {
    return InvalidArgument(path, ": it is of another machine");
  }
  SLUICE_RETURN_IF_ERROR(Annotate(SetCapacities(machine, &profile), path));
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  if (profile.disturbed &&
      (error || std::filesystem::file_time_type::clock::now() - written >
                    kDisturbedKept)) {
    return FailedPrecondition(path, ": other work disturbed the measurement");
  }
  return profile;
}

}  // namespace

std::string ProfileCacheDir(const std::string& disk_dir) {
  return disk_dir.empty() ? UserCacheDir() : disk_dir;
}

absl::Status SetCapacities(const MachineShare& machine,
                           MachineProfile* profile) {
  const bool device = machine.device.has_memory();
  if (device != profile->has_device()) {
    return InvalidArgument(
        "the profile is of a machine ", device ? "without" : "with",
        " a device that has memory of its own, but --device is ",
        DeviceName(machine.device));
  }
  profile->machine = MachineId();
  profile->cores = UsableCoreCount(UsableCores());
  profile->threads = machine.threads;
  profile->host_memory_bytes = machine.host_memory_bytes;
  profile->device_memory_bytes = machine.device_memory_bytes;
  const bool disk = profile->disk.read_bytes_per_second > 0 &&
                    profile->disk.write_bytes_per_second > 0;
  profile->disk_bytes = disk ? machine.disk_bytes : 0;
  return absl::OkStatus();
}

absl::StatusOr<MachineProfile> CachedProfile(
    const ProfileCacheOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(options.machine.Validate());
  SLUICE_ASSIGN_OR_RETURN(
      const std::string fingerprint,
      MachineFingerprint(options.machine, ReleaseVersion()));
  DirLock lock;
  std::string path;
  if (!options.cache_dir.empty()) {
    // A directory that cannot be made shows when the profile is written.
    std::error_code ignored;
    std::filesystem::create_directories(options.cache_dir, ignored);
    SLUICE_RETURN_IF_ERROR(lock.Take(options.cache_dir, progress, cancelled));
    path = CacheFile(options.cache_dir, fingerprint);
    absl::StatusOr<MachineProfile> found =
        Find(path, fingerprint, options.machine);
    if (found.ok() && !options.refresh) return found;
    if (!found.ok() && !absl::IsNotFound(found.status())) {
      LogWarning("measuring the machine again: ",
                 std::string(found.status().message()));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(
      MachineProfile profile,
      options.measure(options.machine, progress, cancelled));
  profile.fingerprint = fingerprint;
  if (!path.empty()) {
    const absl::Status written = WriteProfileFile(profile, path);
    if (!written.ok()) {
      LogWarning("the machine will be measured again: ",
                 std::string(written.message()));
    }
  }
  return profile;
}

}  // namespace sluice
