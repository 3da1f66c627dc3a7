#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Host memory that a device reads and writes itself, charged to a budget; what
// it holds at first is undefined. At a multiple of 4096 bytes. Move-only.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  // kResourceExhausted if `budget` or the system has no room.
  static absl::StatusOr<PinnedBuffer> Create(const std::string& name,
                                             size_t bytes,
                                             MemoryBudget* budget);

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryCharge charge_;
};

}  // namespace sluice
