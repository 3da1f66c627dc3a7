#include "runtime/memory/device_arena.h"

#include <cstdint>
#include <iterator>

#include "common/status_macros.h"

namespace sluice {

DeviceArena::DeviceArena(std::byte* base, size_t bytes)
    : base_(base), bytes_(bytes) {
  MutexLock lock(&mu_);
  free_.emplace(0, bytes);
}

bool DeviceArena::Contains(const void* data, size_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const auto base = reinterpret_cast<uintptr_t>(base_);
  return at >= base && bytes <= bytes_ && at - base <= bytes_ - bytes;
}

bool DeviceArena::Touches(const void* data, size_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const auto base = reinterpret_cast<uintptr_t>(base_);
  return at < base + bytes_ && at + bytes > base;
}

absl::StatusOr<void*> DeviceArena::Take(const std::string& name, size_t bytes) {
  MutexLock lock(&mu_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    const size_t at = it->first;
    const size_t rest = it->second - bytes;
    free_.erase(it);
    if (rest > 0) free_.emplace(at + bytes, rest);
    return base_ + at;
  }
  return ResourceExhausted("device memory: no ", bytes,
                           " bytes in one piece for ", name, " are left");
}

void DeviceArena::GiveBack(void* data, size_t bytes) {
  MutexLock lock(&mu_);
  const auto begin = static_cast<size_t>(static_cast<std::byte*>(data) - base_);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(begin, bytes);
}

}  // namespace sluice
