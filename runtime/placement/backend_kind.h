#pragma once

namespace sluice {

enum class BackendKind {
  kCpu,
  // The CPU with device memory of its own beside the host's: every copy that a
  // GPU needs, without one. For tests.
  kCpuDiscrete,
  kCuda,
};

}  // namespace sluice
