#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/memory/device.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/placement/backend_kind.h"

namespace sluice {

struct AttentionProbeOptions {
  KvFormat format = KvFormat::kBFloat16;
  int threads = 1;
  std::vector<int> cores;  // as in BackendOptions
  MemoryBudget* budget = nullptr;
  // The backend; with its own memory, also the device and its budget.
  BackendKind backend = BackendKind::kCpu;
  Device* device = nullptr;
  const MemoryBudget* device_budget = nullptr;
  // The maximum of rows in a step, and of a context's or prompt's length.
  int32_t max_rows = 2048;
};

// Measures attention through the backend, as the executor calls it: new
// positions' K and V are stored and their queries rotated on the way, 4 query
// heads share a KV head, and the pages exceed the caches. If they do not fit
// half of the budget's room, fewer sequences are used. Takes about `seconds`.
// kResourceExhausted.
absl::StatusOr<AttentionRate> MeasureAttention(
    const AttentionProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled);

// Measures bytes of float32 K and V per second that become pages of a quantized
// format. With a device: in sequences of one position, where storing dominates.
absl::StatusOr<double> MeasureKvQuantization(
    const AttentionProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled);

}  // namespace sluice
