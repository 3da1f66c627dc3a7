#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "common/tier.h"

namespace sluice {

class MemoryBudget;

// Bytes charged to a budget; released when destroyed. Move-only.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(MemoryCharge&& other) noexcept { *this = std::move(other); }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept;
  ~MemoryCharge() { Release(); }
  void Release();
  uint64_t bytes() const { return bytes_; }

 private:
  friend class MemoryBudget;
  MemoryBudget* budget_ = nullptr;
  std::string name_;
  uint64_t bytes_ = 0;
};

// A hard limit for one tier of one worker. Every large allocation is charged
// under a name before it is made, so that running out is an error with a table
// of the holders, never an OOM kill. Must outlive its charges. Thread-safe.
class MemoryBudget {
 public:
  MemoryBudget(Tier tier, uint64_t limit_bytes)
      : tier_(tier), limit_(limit_bytes) {}
  // Makes a part of a budget of the same tier, which outlives it: what is
  // charged to the part is charged to the whole, too.
  MemoryBudget(MemoryBudget* whole, uint64_t limit_bytes)
      : tier_(whole->tier()), limit_(limit_bytes), whole_(whole) {}

  // kResourceExhausted with the bytes asked for, left, and held by each name.
  absl::StatusOr<MemoryCharge> Charge(const std::string& name, uint64_t bytes);

  Tier tier() const { return tier_; }
  uint64_t limit_bytes() const { return limit_; }
  uint64_t used_bytes() const;
  uint64_t free_bytes() const { return limit_ - used_bytes(); }
  uint64_t peak_bytes() const;
  std::map<std::string, uint64_t> holders() const;

 private:
  friend class MemoryCharge;
  void Return(const std::string& name, uint64_t bytes);

  absl::StatusOr<MemoryCharge> ChargeThis(const std::string& name,
                                          uint64_t bytes);

  const Tier tier_;
  const uint64_t limit_;
  MemoryBudget* const whole_ = nullptr;
  mutable Mutex mu_;
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t peak_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, uint64_t> holders_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
