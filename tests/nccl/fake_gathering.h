#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/link/nccl_abi.h"

// What ranks of this process gather from each other.
struct Gathering {
  explicit Gathering(int count) : ranks(count), from(count), bytes(count) {}

  std::mutex mu;
  std::condition_variable changed;
  const int ranks;
  std::map<int, const sluice::cuda::Context*> joined;  // by rank
  std::vector<const char*> from;
  std::vector<size_t> bytes;
  int arrived = 0;
  uint64_t meetings = 0;  // that are over
  bool broken = false;

  void Break() {
    std::lock_guard lock(mu);
    broken = true;
    changed.notify_all();
  }
  // Waits until all are here; returns false if they won't be.
  bool Meet() {
    std::unique_lock lock(mu);
    if (broken) return false;
    const uint64_t meeting = meetings;
    if (++arrived == ranks) {
      arrived = 0;
      ++meetings;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return meetings != meeting || broken; });
    return meetings != meeting;
  }
  // Returns false if a rank is gone, or wants another number of bytes.
  bool AllGather(int rank, const char* data, char* all, size_t count) {
    {
      std::lock_guard lock(mu);
      from[rank] = data;
      bytes[rank] = count;
    }
    if (!Meet()) return false;
    for (int r = 0; r < ranks; ++r) {
      if (bytes[r] != count) return false;
      char* const to = all + r * count;
      if (from[r] != to) std::memcpy(to, from[r], count);
    }
    return Meet();
  }
};

// Gatherings by the cookie of their id, as long as somebody is in one.
inline std::map<uint64_t, std::weak_ptr<Gathering>>& gatherings() {
  static auto* const all = new std::map<uint64_t, std::weak_ptr<Gathering>>();
  return *all;
}
