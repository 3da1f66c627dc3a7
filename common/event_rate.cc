#include "common/event_rate.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr absl::Duration kLump = absl::Milliseconds(500);
constexpr absl::Duration kWindow = absl::Seconds(5);
// The number of lumps that are kept however long ago they were.
constexpr size_t kMinLumps = 5;

}  // namespace

void EventRate::Add(absl::Duration now, int64_t count) {
  if (lumps_.empty() || now - lumps_.back().begin >= kLump) {
    lumps_.push_back({.begin = now});
    while (lumps_.size() > kMinLumps && now - lumps_.front().end > kWindow) {
      lumps_.pop_front();
    }
  }
  lumps_.back().end = now;
  lumps_.back().count += count;
}

double EventRate::PerSecond(absl::Duration now) const {
  if (lumps_.size() < 2) return 0;
  // A lump's events were made in the time since the one before.
  int64_t count = 0;
  for (size_t i = 1; i < lumps_.size(); ++i) count += lumps_[i].count;
  const absl::Duration span = lumps_.back().end - lumps_.front().end;
  const absl::Duration interval = span / (lumps_.size() - 1);
  const absl::Duration overdue =
      std::max(absl::ZeroDuration(), now - lumps_.back().end - 2 * interval);
  return static_cast<double>(count) / absl::ToDoubleSeconds(span + overdue);
}

}  // namespace sluice
