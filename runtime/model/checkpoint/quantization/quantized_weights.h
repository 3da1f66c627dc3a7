#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "runtime/model/checkpoint/quantization/quantization_config.h"
#include "runtime/model/checkpoint/quantization/quantized_weight.h"

namespace sluice {

// The quantized weights of a checkpoint. Those that were read last stay loaded,
// as many as packing reads from at a time: rows are read in small runs, by
// several threads and ranks, and gate and up take turns. Thread-safe.
class QuantizedWeights {
 public:
  // `tensors` must outlive this.
  QuantizedWeights(QuantizationConfig config, const StoredTensors* tensors)
      : config_(std::move(config)), tensors_(*tensors) {}

  const QuantizationConfig& config() const { return config_; }
  // Returns a weight that is not loaded; null if it is not quantized. The
  // errors of OpenQuantizedWeight.
  absl::StatusOr<std::unique_ptr<QuantizedWeight>> Open(
      const WeightPlace& place) const {
    return OpenQuantizedWeight(config_, tensors_, place);
  }
  // Returns a loaded weight; null if it is not quantized. The errors of
  // OpenQuantizedWeight and of Load.
  absl::StatusOr<std::shared_ptr<const QuantizedWeight>> Get(
      const WeightPlace& place);

 private:
  static constexpr size_t kKept = 4;
  struct Entry {
    std::string module;
    int64_t in_stack = 0;
    bool loading = true;
    absl::Status status;
    std::shared_ptr<const QuantizedWeight> weight;
  };

  const QuantizationConfig config_;
  const StoredTensors& tensors_;
  Mutex mu_;
  CondVar changed_;
  // In the order of their last use.
  std::vector<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
