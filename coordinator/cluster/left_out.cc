#include "coordinator/cluster/left_out.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr size_t kMaxEntries = 1024;
constexpr int kMaxDoublings = 30;

}  // namespace

void LeftOut::Add(const std::string& name, const std::string& why,
                  absl::Duration now) {
  if (entries_.size() >= kMaxEntries && !entries_.contains(name)) {
    entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                    [](const auto& a, const auto& b) {
                                      return a.second.until < b.second.until;
                                    }));
  }
  Entry& entry = entries_[name];
  // Failures so long ago say nothing about now.
  if (entry.times > 0 && now - entry.until > max_) entry.times = 0;
  entry.times = std::min(entry.times + 1, kMaxDoublings);
  entry.why = why;
  entry.since = now;
  entry.until =
      now + std::min(max_, first_ * (int64_t{1} << (entry.times - 1)));
}

const LeftOut::Entry* LeftOut::Find(const std::string& name,
                                    absl::Duration now) const {
  const auto it = entries_.find(name);
  return it == entries_.end() || it->second.until <= now ? nullptr
                                                         : &it->second;
}

}  // namespace sluice
