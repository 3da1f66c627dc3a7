#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/memory/device.h"

namespace sluice {

// The residual stream of one micro-batch: float32 [rows, cols], row-major,
// 64-byte aligned.
class ActivationBuffer {
 public:
  ActivationBuffer() = default;
  ~ActivationBuffer();
  ActivationBuffer(const ActivationBuffer&) = delete;
  ActivationBuffer& operator=(const ActivationBuffer&) = delete;

  // Contents are undefined afterwards. Allocates only when it has to grow;
  // memory allocated with `copies` is pinned for that device: see Device::Pin.
  void Resize(int64_t rows, int64_t cols, Device* copies = nullptr);

  float* data() { return data_; }
  const float* data() const { return data_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  size_t bytes() const {
    return static_cast<size_t>(rows_ * cols_) * sizeof(float);
  }

 private:
  void Free();

  HostPin pin_;
  float* data_ = nullptr;
  size_t capacity_ = 0;  // floats
  int64_t rows_ = 0;
  int64_t cols_ = 0;
};

// Recycles buffers, so that steady state allocates nothing. A buffer is
// returned when its last reference is released, from any thread, even after the
// pool is destroyed. Thread-safe.
class ActivationPool {
 public:
  // With `copies`, buffers are pinned for that device, which must live until
  // Retire().
  explicit ActivationPool(Device* copies = nullptr);
  std::shared_ptr<ActivationBuffer> Acquire(int64_t rows, int64_t cols);
  // Called before the device is destroyed: no memory is pinned for it from now
  // on, and returned buffers are not kept.
  void Retire();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sluice
