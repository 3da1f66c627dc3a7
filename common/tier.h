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

// Shares of one kind of data on the three tiers; they add up to 1. On a
// CPU-only worker device and host are the same memory.
struct TierFractions {
  double device = 0;
  double host = 1;
  double disk = 0;
  friend bool operator==(const TierFractions&, const TierFractions&) = default;
};

}  // namespace sluice
