#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/collective/collective.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/profile/machine_facts.h"
#include "runtime/profile/measure.h"

namespace sluice {

// The part of its machine that one worker may use.
struct MachineShare {
  DeviceChoice device;
  // The devices of the ranks of a stage, tensor parallel, all of one kind; the
  // first is `device`. Empty: one rank. Threads, cores, host memory and disk
  // are those of all.
  std::vector<DeviceChoice> ranks;
  // Whether a plan says how many of `ranks`, from the first on, compute a
  // stage, one or any number that divides theirs; else all do.
  bool ranks_by_plan = false;
  int32_t threads = 1;  // compute threads
  // One core for each thread, or empty.
  std::vector<int> cores;
  // Hard budgets. Each device's is 0 if it has no memory of its own.
  uint64_t device_memory_bytes = 0;
  uint64_t host_memory_bytes = 0;
  // "" and 0: no disk tier.
  std::string disk_dir;
  uint64_t disk_bytes = 0;

  // The numbers of ranks that a stage may have beside one, ascending.
  std::vector<int32_t> RankCounts() const;
};

// The disk directory must exist. The budgets bound the probes' memory.
struct ProfilerOptions : MachineShare {
  // The approximate time to measure: probes get shares of it. A slow or busy
  // machine takes longer, since each probe has a minimum number of repeats, but
  // after 1.5 times as long, each remaining probe measures once. In less than a
  // second, a GPU is measured with shorter steps than the longest ones.
  double seconds = 20;
  // Makes what so many ranks exchange columns by; null: the memory of this
  // process. For MachineShare::RankCounts.
  std::function<absl::StatusOr<std::unique_ptr<CollectiveGroup>>(int32_t ranks)>
      exchange;

  absl::Status Validate() const;
};

// Measures this machine for the planner, through the runtime's own code: disk,
// memory, copies, GEMMs, attention, (de)quantization, the other costs of a
// layer, sampling, threads. Leaves the name, the links and step_seconds to the
// caller. Everything else on the machine should be quiet meanwhile; the
// profile's remarks say if it was not.
//
// With a disk too small to measure, the profile has no disk tier, and a remark.
// The errors of CheckDevice; kResourceExhausted if the memory is too small for
// the probes; kCancelled; the errors of DiskFile. Runs on a thread of its own,
// and calls `progress`, which may be empty, there.
absl::StatusOr<MachineProfile> MeasureMachine(
    const ProfilerOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled);

// Returns a machine's oddities and their meaning, in lines for people.
// `io_uring` is whether the disk is read through it.
std::vector<std::string> Remarks(const MachineFacts& facts,
                                 const MachineProfile& profile, bool io_uring);

// Returns the fingerprint (see FingerprintParts); kUnimplemented without GEMMs.
absl::StatusOr<std::string> MachineFingerprint(const ProfilerOptions& options,
                                               const std::string& version);

}  // namespace sluice
