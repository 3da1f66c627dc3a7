#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/placement/backend_kind.h"

namespace sluice {

class Device;
class MemoryBudget;
class Tracer;

// The device that computes, as --device names it.
struct DeviceChoice {
  BackendKind backend = BackendKind::kCpu;
  int ordinal = 0;  // which GPU, as CUDA counts those that the process may use
  // Tests only: the discrete CPU computes in the memory of this GPU, which an
  // emulation has made the host's.
  bool in_gpu_memory = false;

  // Returns whether it has memory beside the host's; then there is a Device.
  bool has_memory() const { return backend != BackendKind::kCpu; }
};

// Parses "cpu", "cpu-discrete", "cuda", which is the first GPU, or "cuda:N".
// kInvalidArgument for others.
absl::StatusOr<DeviceChoice> ParseDevice(absl::string_view name);
// Parses what --device says of a stage of `ranks` ranks, tensor parallel: one
// device for each, as "cuda:0,cuda:1"; or one for all, of which GPUs stand for
// those from this one on. One rank if there is one device and `ranks` is 1.
// kInvalidArgument for others, for devices of different kinds, and for a GPU
// that is named twice.
absl::StatusOr<std::vector<DeviceChoice>> ParseDevices(absl::string_view names,
                                                       int32_t ranks);
// Returns the name that ParseDevice() takes; a GPU's has its number always.
std::string DeviceName(const DeviceChoice& device);

// Checks that the device is here. kUnimplemented if this build has it not,
// kFailedPrecondition if this machine has not; each says what to do.
absl::Status CheckDevice(const DeviceChoice& device);

// Returns a GPU's number, name and architecture; for others, DeviceName().
std::string DescribeDevice(const DeviceChoice& device);

// Returns what --device-memory says, in bytes. "" is what a GPU has free, but
// for what CUDA, its libraries and NCCL take beside the arena; 0 for others.
// kInvalidArgument names the flag; else the errors of CheckDevice.
absl::StatusOr<uint64_t> ParseDeviceMemory(const DeviceChoice& device,
                                           const std::string& text);

// Makes a device with all that `budget`, which must outlive it, has left.
// `tracer` may be null. REQUIRES: it has memory of its own. kResourceExhausted,
// and the errors of CheckDevice.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const DeviceChoice& device,
                                                     MemoryBudget* budget,
                                                     Tracer* tracer);

}  // namespace sluice
