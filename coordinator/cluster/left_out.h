#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace sluice {

// The workers that plans exclude for a while, since plans failed because of
// them. They are known by name: one that attaches again is the same worker.
// Times are of a monotonic clock. Thread-compatible.
class LeftOut {
 public:
  struct Entry {
    std::string why;  // for people
    absl::Duration since;
    absl::Duration until;
    int times = 0;  // in a row
  };

  // The time for which a worker is left out begins with `first` and doubles, up
  // to `max`, each time that it is added before it was pardoned.
  LeftOut(absl::Duration first, absl::Duration max)
      : first_(first), max_(max) {}

  void Add(const std::string& name, const std::string& why, absl::Duration now);
  // Forgets failures, as the worker did its part or was not to blame.
  void Pardon(const std::string& name) { entries_.erase(name); }
  // Returns null if plans may use the worker.
  const Entry* Find(const std::string& name, absl::Duration now) const;
  bool empty() const { return entries_.empty(); }

 private:
  const absl::Duration first_;
  const absl::Duration max_;
  absl::flat_hash_map<std::string, Entry> entries_;
};

}  // namespace sluice
