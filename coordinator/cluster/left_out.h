#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace sluice {

// Workers that plans do without for a while, since plans failed because of
// them. They go by name: one that attaches again is the same worker. Times are
// a clock's. Thread-compatible.
class LeftOut {
 public:
  struct Entry {
    std::string why;  // for people
    absl::Duration since;
    absl::Duration until;
    int times = 0;  // in a row
  };

  // The time for which a worker is left out begins with `first` and doubles, up
  // to `most`, each time that it is added before it was pardoned.
  LeftOut(absl::Duration first, absl::Duration most)
      : first_(first), most_(most) {}

  void Add(const std::string& name, const std::string& why, absl::Duration now);
  // It did its part, or was not to blame.
  void Pardon(const std::string& name) { entries_.erase(name); }
  // Null if plans may have it.
  const Entry* Find(const std::string& name, absl::Duration now) const;
  bool empty() const { return entries_.empty(); }

 private:
  const absl::Duration first_;
  const absl::Duration most_;
  absl::flat_hash_map<std::string, Entry> entries_;
};

}  // namespace sluice
