#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/memory/device.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Makes the system back all of a mapping, on several threads if it is large,
// and keeps its contents. Pinning untouched memory would do that on one thread.
void Touch(std::span<std::byte> memory);

// Zeroed host memory, charged to a budget. Aligned to 64 bytes; from 4096 bytes
// on to 4096, for disk I/O; to a huge page, backed when touched, if it fills
// one. The size is rounded up to whole 4096 bytes. Move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  // kResourceExhausted if `budget` or the system has no room. With `copies`,
  // the buffer is pinned for that device, as by PinFor().
  static absl::StatusOr<HostBuffer> Create(const std::string& name,
                                           size_t bytes, MemoryBudget* budget,
                                           Device* copies = nullptr);

  // Pins memory that is copied to or from `device`, which may be null: see
  // Device::Pin. Less than a page is not pinned.
  void PinFor(Device* device);

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryCharge charge_;
  HostPin pin_;
};

}  // namespace sluice
