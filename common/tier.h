#pragma once

#include <cstddef>

namespace sluice {

// The levels of one worker's memory, nearest first.
enum class Tier { kDevice, kHost, kDisk };
inline constexpr size_t kNumTiers = 3;

// "device", "host", "disk".
inline const char* TierName(Tier tier) {
  constexpr const char* kNames[kNumTiers] = {"device", "host", "disk"};
  return kNames[static_cast<size_t>(tier)];
}

}  // namespace sluice
