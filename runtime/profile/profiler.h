#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/profile/machine_facts.h"
#include "runtime/profile/measure.h"

namespace sluice {

// What one worker may use of its machine.
struct MachineShare {
  DeviceChoice device;
  int32_t threads = 1;  // that compute
  // One for each thread, or empty.
  std::vector<int> cores;
  // Hard budgets. device: of one that has memory of its own, else 0.
  uint64_t device_memory_bytes = 0;
  uint64_t host_memory_bytes = 0;
  // "" and 0: no disk tier.
  std::string disk_dir;
  uint64_t disk_bytes = 0;
};

// The disk directory must be there. The budgets bound what is measured with.
struct ProfilerOptions : MachineShare {
  // That it takes, about: probes get shares of it. A slow or busy machine takes
  // longer, since each probe has a least number of repeats, but when half as
  // much again has passed, what is left is measured once each. In less than a
  // second, a GPU is measured with shorter steps than the longest ones.
  double seconds = 20;

  absl::Status Validate() const;
};

// Measures what the planner wants to know of this machine, through the code
// that the runtime itself uses: disk, memory, copies, products, attention,
// (de)quantization, what a layer costs beside these, sampling, threads. Leaves
// the name, the links and step_seconds to the caller. Everything else on the
// machine should be quiet meanwhile; the profile's remarks say if it was not.
//
// With a disk too small to measure, the profile has no disk tier, and a remark.
// The errors of CheckDevice; kResourceExhausted if the memory is too small for
// the probes; kCancelled; the errors of DiskFile. Runs on a thread of its own,
// and calls `progress`, which may be empty, there.
absl::StatusOr<MachineProfile> MeasureMachine(
    const ProfilerOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled);

// What is odd about a machine, and what it means, in lines for people.
// `io_uring`: whether the disk is read through it.
std::vector<std::string> Remarks(const MachineFacts& facts,
                                 const MachineProfile& profile, bool io_uring);

// See FingerprintParts; kUnimplemented where there are no products at all.
absl::StatusOr<std::string> MachineFingerprint(const ProfilerOptions& options,
                                               const std::string& version);

}  // namespace sluice
