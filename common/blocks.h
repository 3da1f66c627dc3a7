#pragma once

#include <cstdint>

namespace sluice {

// Offsets, lengths and addresses of all disk I/O are multiples of this, which
// suits all common disks and is the page size of common processors; allocations
// on a device are, too.
inline constexpr uint64_t kDiskBlockBytes = 4096;

inline constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}
inline constexpr uint64_t RoundUpTo(uint64_t bytes, uint64_t multiple) {
  return CeilDiv(bytes, multiple) * multiple;
}
inline constexpr uint64_t RoundUpToDiskBlock(uint64_t bytes) {
  return RoundUpTo(bytes, kDiskBlockBytes);
}
inline constexpr uint64_t RoundDownToDiskBlock(uint64_t bytes) {
  return bytes / kDiskBlockBytes * kDiskBlockBytes;
}

}  // namespace sluice
