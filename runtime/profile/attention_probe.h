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
  std::vector<int> cores;  // as of BackendOptions
  MemoryBudget* budget = nullptr;
  // With a backend that has memory of its own, that, and its budget.
  BackendKind backend = BackendKind::kCpu;
  Device* device = nullptr;
  const MemoryBudget* device_budget = nullptr;
  // Of a step; nor are contexts or prompts any longer.
  int32_t most_rows = 2048;
};

// Measures attention through the backend, as the executor calls it: new
// positions' K and V are stored and their queries rotated on the way, 4 query
// heads share a KV head, and the pages are more than the caches hold. With less
// than all of that in half of the budget's room, on fewer sequences. Takes
// about `seconds`. kResourceExhausted.
absl::StatusOr<AttentionRate> MeasureAttention(
    const AttentionProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled);

// Bytes of float32 K and V per second that become pages of a quantized format.
// With a device: in sequences of one position, of which storing it is the most.
absl::StatusOr<double> MeasureKvQuantization(
    const AttentionProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled);

}  // namespace sluice
