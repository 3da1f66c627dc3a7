#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/threads/mutex.h"

namespace sluice {

// A first-fit allocator of a device's memory. Freed pieces join their free
// neighbours. Thread-safe.
class DeviceArena {
 public:
  // The arena does not own the memory.
  DeviceArena(std::byte* base, size_t bytes);

  // kResourceExhausted if no such piece is free; the error has `name`.
  absl::StatusOr<void*> Take(const std::string& name, size_t bytes);
  void GiveBack(void* data, size_t bytes);

  // Whether all of these bytes lie in the arena, or some do.
  bool Contains(const void* data, size_t bytes) const;
  bool Touches(const void* data, size_t bytes) const;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  const size_t bytes_;
  Mutex mu_;
  // Free ranges: offset to size; no two are neighbours.
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
