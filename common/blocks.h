#pragma once

#include <cstdint>

namespace sluice {

// Disk I/O and allocations on a device come in whole blocks of this many bytes.
inline constexpr uint64_t kBlockBytes = 4096;

inline constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}
inline constexpr uint64_t RoundUpTo(uint64_t bytes, uint64_t multiple) {
  return CeilDiv(bytes, multiple) * multiple;
}
inline constexpr uint64_t RoundUpToBlock(uint64_t bytes) {
  return RoundUpTo(bytes, kBlockBytes);
}
inline constexpr uint64_t RoundDownToBlock(uint64_t bytes) {
  return bytes / kBlockBytes * kBlockBytes;
}

}  // namespace sluice
