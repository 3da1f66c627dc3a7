#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/memory/device.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/backend_kind.h"
#include "runtime/profile/stage_probe.h"

namespace sluice {

struct LayerProbeOptions {
  // A backend with its own memory, and its device. They outlive the probe.
  BackendKind backend = BackendKind::kCuda;
  Device* device = nullptr;
  const MemoryBudget* device_budget = nullptr;  // the device's
  MemoryBudget* host_budget = nullptr;
  DType dtype = DType::kBFloat16;
  WeightFormat format = WeightFormat::kFull;
  // Overheads of the same device: the part of a layer's time beside its GEMMs.
  LayerOverheads overheads;
  int threads = 1;         // of the backend on the host
  std::vector<int> cores;  // as in BackendOptions
  int32_t max_rows = 2048;
};

// Measures GEMMs of devices, which only the backend computes: whole layers
// without attention, as the executor calls them. Copies of the layer take
// turns, so that few rows find their weights in memory and not in a cache. The
// weights' values make little difference to the time.
class LayerProbe {
 public:
  // The layer is of a 7B model (hidden 4096), or half as wide, and so on, if a
  // third of the device's room is too small for that. kUnimplemented if there
  // are no GEMMs of this dtype here; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<LayerProbe>> Create(
      const LayerProbeOptions& options);

  // Measures flops per second by rows, in about `seconds`.
  absl::StatusOr<RateCurve> FlopsByRows(double seconds,
                                        const std::atomic<bool>* cancelled);
  // Measures the bytes per second of dequantized weights. REQUIRES: a quantized
  // format.
  absl::StatusOr<double> DequantizedBytes(double seconds,
                                          const std::atomic<bool>* cancelled);

 private:
  explicit LayerProbe(const LayerProbeOptions& options) : options_(options) {}
  absl::Status Init(int32_t hidden);
  // Makes copies of the layer that together exceed all caches.
  absl::Status MakePackedFiles();
  absl::StatusOr<double> LayerSeconds(int32_t rows, double seconds,
                                      const std::atomic<bool>* cancelled);

  const LayerProbeOptions options_;
  DecoderSpec spec_;
  BackendParts parts_;
  std::vector<DeviceBuffer> packed_;
  DeviceBuffer x_;
  DeviceBuffer dequantized_;
};

}  // namespace sluice
