#include "runtime/placement/rank_limits.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice {
namespace {

// More than any memory, and small enough to be added to.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

class Division {
 public:
  Division(absl::Span<const StageSizes* const> ranks,
           absl::Span<const uint64_t> device_bytes, const Policy& policy,
           const TierLimits& limits)
      : ranks_(ranks),
        device_bytes_(device_bytes),
        policy_(policy),
        limits_(limits) {}

  std::vector<TierLimits> Make() {
    Need(Pages());
    std::vector<TierLimits> parts(ranks_.size());
    for (size_t i = 0; i < ranks_.size(); ++i) {
      parts[i] = {device_bytes_[i], Part(Tier::kHost, i), Part(Tier::kDisk, i)};
    }
    return parts;
  }

 private:
  // Sets what the ranks need with so many pages of KV.
  void Need(int64_t pages) {
    needs_.clear();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      StageSizes sizes = *ranks_[i];
      sizes.window_pages = ranks_[i]->WindowPagesWith(pages);
      sizes.kv_pages = pages;
      needs_.push_back(
          Place(sizes, policy_, WithoutLimit({device_bytes_[i], 0, 0})));
    }
  }
  uint64_t SumOf(Tier tier) const {
    uint64_t sum = 0;
    for (const StagePlacement& need : needs_)
      sum += need.use(tier).peak_bytes();
    return sum;
  }
  bool Fits(int64_t pages) {
    Need(pages);
    return SumOf(Tier::kHost) <= limits_[static_cast<size_t>(Tier::kHost)] &&
           SumOf(Tier::kDisk) <= limits_[static_cast<size_t>(Tier::kDisk)];
  }
  // The pages that there is room for, where that decides their number.
  int64_t Pages() {
    int64_t most = ranks_[0]->kv_pages;
    int64_t least = std::min(most, ranks_[0]->sequence_pages);
    if (!policy_.automatic_kv_cache || Fits(most) || !Fits(least)) return most;
    while (most - least > 1) {  // `least` fits, `most` does not
      const int64_t middle = least + (most - least) / 2;
      (Fits(middle) ? least : most) = middle;
    }
    return least;
  }
  uint64_t Part(Tier tier, size_t rank) const {
    const uint64_t limit = limits_[static_cast<size_t>(tier)];
    const uint64_t all = SumOf(tier);
    const uint64_t need = needs_[rank].use(tier).peak_bytes();
    if (all <= limit) return need + (limit - all) / needs_.size();
    return static_cast<uint64_t>(static_cast<double>(limit) *
                                 static_cast<double>(need) /
                                 static_cast<double>(all));
  }

  const absl::Span<const StageSizes* const> ranks_;
  const absl::Span<const uint64_t> device_bytes_;
  const Policy& policy_;
  const TierLimits limits_;
  std::vector<StagePlacement> needs_;
};

}  // namespace

TierLimits WithoutLimit(TierLimits limits) {
  limits[static_cast<size_t>(Tier::kHost)] = kNoLimit;
  limits[static_cast<size_t>(Tier::kDisk)] = kNoLimit;
  return limits;
}

std::vector<TierLimits> DivideLimits(absl::Span<const StageSizes* const> ranks,
                                     absl::Span<const uint64_t> device_bytes,
                                     const Policy& policy,
                                     const TierLimits& limits) {
  return Division(ranks, device_bytes, policy, limits).Make();
}

}  // namespace sluice
