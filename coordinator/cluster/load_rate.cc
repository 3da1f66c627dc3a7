#include "coordinator/cluster/load_rate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

// The window is long enough to smooth over reads that outrun packing.
constexpr absl::Duration kWindow = absl::Seconds(15);
// A shorter time tells no rate.
constexpr absl::Duration kMin = absl::Milliseconds(500);

}  // namespace

void LoadRate::Observe(absl::Duration now, uint64_t done, uint64_t total) {
  if (done < done_ || total != total_) seen_.clear();
  done_ = std::min(done, total);
  total_ = total;
  seen_.emplace_back(now, done_);
  // The newest point older than the window stays: the window begins there.
  while (seen_.size() > 2 && now - seen_[1].first >= kWindow) seen_.pop_front();
}

double LoadRate::bytes_per_second() const {
  if (seen_.empty()) return 0;
  const absl::Duration passed = seen_.back().first - seen_.front().first;
  if (passed < kMin) return 0;
  return static_cast<double>(seen_.back().second - seen_.front().second) /
         absl::ToDoubleSeconds(passed);
}

absl::Duration TimeLeft(const LoadRate& load) {
  const auto left = static_cast<double>(load.total() - load.done());
  if (left == 0 && load.total() > 0) return absl::ZeroDuration();
  const double rate = load.bytes_per_second();
  return rate > 0 ? absl::Seconds(left / rate) : absl::InfiniteDuration();
}

std::string RateText(double bytes_per_second, absl::Duration left) {
  if (bytes_per_second <= 0) return "";
  std::string text =
      bytes_per_second >= 1e8
          ? absl::StrFormat(", %.1f GB/s", bytes_per_second / 1e9)
          : absl::StrFormat(", %.1f MB/s", bytes_per_second / 1e6);
  if (left == absl::InfiniteDuration()) return text;
  const auto seconds =
      static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(left)));
  if (seconds >= 3600) {
    absl::StrAppendFormat(&text, ", %d:%02d:%02d left", seconds / 3600,
                          seconds / 60 % 60, seconds % 60);
  } else {
    absl::StrAppendFormat(&text, ", %d:%02d left", seconds / 60, seconds % 60);
  }
  return text;
}

}  // namespace sluice
