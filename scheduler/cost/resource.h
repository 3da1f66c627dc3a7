#pragma once

#include <array>

#include "absl/strings/string_view.h"

namespace sluice {

// A resource that the work of a stage shares; its times add up.
enum class Resource {
  kDiskRead,
  kDiskWrite,
  kHostToDevice,
  kDeviceToHost,
  kDeviceCompute,  // of a CPU-only worker: its cores
  kHostCompute,    // attention beside a device
  kLink,           // to the next stage
};
inline constexpr int kNumResources = 7;
absl::string_view ResourceName(Resource resource);  // "disk read"
using ResourceSeconds = std::array<double, kNumResources>;

}  // namespace sluice
