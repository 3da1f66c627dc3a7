#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/kernels/cuda/attention/attention.h"

// The parts of cuda_bench share these: memory, a stopwatch and what the device
// is.

namespace sluice::bench {

// Device memory; freed at the end.
class Buffer {
 public:
  // kResourceExhausted if the device has not so much.
  static absl::StatusOr<Buffer> Zeros(size_t bytes);
  // Bytes below 0x3c, so that they are finite and positive in every format that
  // they may stand for: halves, bfloat16, floats, codes.
  static absl::StatusOr<Buffer> Random(size_t bytes);
  template <typename T>
  static absl::StatusOr<Buffer> Of(const std::vector<T>& values) {
    return Copy(values.data(), values.size() * sizeof(T));
  }

  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* data) const { cudaFree(data); }
  };
  static absl::StatusOr<Buffer> Copy(const void* from, size_t bytes);
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

// The median and the extremes of repeats of one thing, in seconds.
struct Spread {
  double median = 0, low = 0, high = 0;
};

struct Bench {
  // With this set, for the emulation, sizes are such that it ends within a
  // second or two, and each thing is done once. The times are those of one
  // processor and mean nothing.
  bool tiny = false;
  AttentionDevice device;
  cudaStream_t stream = nullptr;
  // The data sheet's rates; 0 where no sheet is known.
  double memory_gb_s = 0;
  double bf16_tflop_s = 0;

  // Seconds that the device takes for what `launch` puts on the stream: it is
  // called until clocks have risen, then in a few repeats of many calls, each
  // between two events.
  absl::StatusOr<Spread> Time(
      absl::FunctionRef<absl::Status(cudaStream_t)> launch) const;
};

// `amount` per second, in units of 10^9 (GB/s) or 10^12 (TFLOP/s) as `unit`
// says, with the slowest and the fastest repeat; appended to `row`.
void AddRate(const Spread& seconds, double amount, const std::string& unit,
             nlohmann::json* row);

// The parts. Each gives rows, or stops at the first error.
absl::StatusOr<nlohmann::json> CopyRates(const Bench& bench);
absl::StatusOr<nlohmann::json> DecodeRates(const Bench& bench);
absl::StatusOr<nlohmann::json> PrefillRates(const Bench& bench);
absl::StatusOr<nlohmann::json> QuantizedRates(const Bench& bench);
absl::StatusOr<nlohmann::json> ProductRates(const Bench& bench);
absl::StatusOr<nlohmann::json> SamplingRates(const Bench& bench);

}  // namespace sluice::bench
