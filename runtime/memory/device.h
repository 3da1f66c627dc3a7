#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

class Device;

// Zeroed memory of a device, charged to the device's budget. Aligned to 4096
// bytes. Move-only; the device must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  // A device address, which the host must not dereference.
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {as<std::byte>(), bytes_}; }

 private:
  friend class Device;
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryCharge charge_;
};

// Keeps host memory pinned for one device, or for none. The memory must outlive
// the pin, which may outlive the device. Move-only.
class HostPin {
 public:
  HostPin() = default;
  explicit HostPin(std::function<void()> unpin) : unpin_(std::move(unpin)) {}
  HostPin(HostPin&& other) noexcept { *this = std::move(other); }
  HostPin& operator=(HostPin&& other) noexcept {
    std::swap(unpin_, other.unpin_);
    return *this;
  }
  ~HostPin() { Release(); }
  void Release() {
    if (unpin_ != nullptr) std::exchange(unpin_, nullptr)();
  }

 private:
  std::function<void()> unpin_;
};

// A compute device with memory of its own: that memory, and the copy streams
// between it and the host's. Host and device never dereference each other's
// addresses; data is copied between them here. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  // Charges the budget under `name`, in whole 4096 bytes. kResourceExhausted if
  // the budget or the device has no room.
  absl::StatusOr<DeviceBuffer> Allocate(const std::string& name, size_t bytes);

  // Begin a copy, of spans of the same size, and return; one part of `done`,
  // for which Expect() must have been called, is done at its end. Copies of one
  // direction are done in the order of their calls, each visible to work begun
  // after its completion. kInternal, through `done`, if a span is not where it
  // should be: on the device, or off it. The memory must live until then.
  virtual void CopyIn(std::span<std::byte> device,
                      std::span<const std::byte> host, IoCompletion* done,
                      const IoLabel& label = {}) = 0;
  virtual void CopyOut(std::span<std::byte> host,
                       std::span<const std::byte> device, IoCompletion* done,
                       const IoLabel& label = {}) = 0;
  // Copies within the device, without its copy streams. Spans must not overlap.
  virtual void CopyWithin(std::span<std::byte> to,
                          std::span<const std::byte> from,
                          IoCompletion* done) = 0;

  // Whether all of these bytes lie on the device, or some do.
  virtual bool Contains(const void* data, size_t bytes) const = 0;
  virtual bool Touches(const void* data, size_t bytes) const = 0;

  // Pins host memory that is copied again and again, if that makes copies
  // faster and their callers not wait; whole pages, no part of which is pinned
  // already. Memory that cannot be pinned can still be copied: the device logs
  // it.
  virtual HostPin Pin(std::span<std::byte> host) { return {}; }

  // The bytes copied, host to device and back, and the seconds in which the
  // copy streams were busy.
  struct Totals {
    uint64_t h2d_bytes = 0;
    uint64_t d2h_bytes = 0;
    double h2d_busy_seconds = 0;
    double d2h_busy_seconds = 0;
  };
  virtual Totals totals() const = 0;

 protected:
  explicit Device(MemoryBudget* budget) : budget_(budget) {}
  // Takes and gives back zeroed memory in whole 4096 bytes.
  virtual absl::StatusOr<void*> Take(const std::string& name, size_t bytes) = 0;
  virtual void GiveBack(void* data, size_t bytes) = 0;

 private:
  friend class DeviceBuffer;
  MemoryBudget* const budget_;
};

}  // namespace sluice
