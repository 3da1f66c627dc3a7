#include "scheduler/steps/usage_profile.h"

#include <algorithm>

namespace sluice {

void UsageProfile::Advance() {
  ++now_;
  if (pages_.empty()) return;
  if (pages_.front() == peak_) peak_ = -1;
  pages_.pop_front();
}

int64_t UsageProfile::PagesAt(const Use& use, int64_t step) const {
  const int64_t position = std::min<int64_t>(
      use.max, use.known + std::max<int64_t>(0, step - use.grows));
  return std::min((position + page_tokens_ - 1) / page_tokens_, max_pages_) -
         use.shared;
}

void UsageProfile::Count(const Use& use, int64_t sign) {
  const int64_t steps = use.end - now_;
  if (steps <= 0 || max_pages_ == 0) return;
  if (steps > static_cast<int64_t>(pages_.size())) pages_.resize(steps);
  for (int64_t i = 0; i < steps; ++i) {
    pages_[i] += sign * PagesAt(use, now_ + i);
  }
  while (!pages_.empty() && pages_.back() == 0) pages_.pop_back();
  peak_ = -1;
}

int64_t UsageProfile::Peak() const {
  if (peak_ < 0) {
    peak_ =
        pages_.empty() ? 0 : *std::max_element(pages_.begin(), pages_.end());
  }
  return peak_;
}

int64_t UsageProfile::PeakWith(const Use& use) const {
  int64_t peak = Peak();
  if (max_pages_ == 0) return peak;
  const auto known = static_cast<int64_t>(pages_.size());
  for (int64_t step = now_; step < use.end; ++step) {
    const int64_t i = step - now_;
    peak = std::max(peak, PagesAt(use, step) + (i < known ? pages_[i] : 0));
  }
  return peak;
}

int64_t PageSteps(int32_t known, int32_t last, int32_t page_tokens) {
  // Sums the pages of sequences of 1 to n positions.
  const auto until = [&](int64_t n) {
    const int64_t full = n / page_tokens;
    return page_tokens * (full * (full + 1) / 2) + n % page_tokens * (full + 1);
  };
  return until(last) - until(known - int64_t{1});
}

}  // namespace sluice
