#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/machine_profile.h"
#include "sluice/v1/pipeline.pb.h"

// The speeds of links between workers, for planning: workers measure them when
// they are asked. Pure functions.

namespace sluice {

// The links that the worker at `place` is to measure: to the next kMaxLinkPeers
// workers after it, in a ring, except those in `asked` (names). So each worker
// has another order, and no peer is first for all. The names are added to
// `asked`.
inline constexpr size_t kMaxLinkPeers = 16;
v1::MeasureLinks LinksToMeasure(const std::vector<const v1::Register*>& workers,
                                size_t place,
                                absl::flat_hash_set<std::string>* asked);

// Adds the measured links to the profile. Its link to any peer, which was
// measured over the loopback, becomes the slowest of them. Returns why some
// were not measured, or are invalid, for people; "" if all is well.
std::string AddMeasuredLinks(const v1::LinksMeasured& measured,
                             const absl::flat_hash_set<std::string>& asked,
                             MachineProfile* profile);

// Finds the worker to blame when links between workers can't be opened. Workers
// are known by name. Thread-compatible.
//
// One failure does not tell which end is to blame; mostly it is the far one,
// which can't be reached: a wrong address, a firewall. But a worker that fails
// to reach two others, which all others reach, is itself cut off.
class LinkBlame {
 public:
  struct Verdict {
    std::string culprit;
    // Workers blamed before for failures that now are the culprit's.
    std::vector<std::string> innocent;
  };
  // `from` could not open its link to `to`.
  Verdict OnUnreached(const std::string& from, const std::string& to);
  void OnReached(const std::string& from, const std::string& to);
  // Forgets all findings about this worker.
  void Forget(const std::string& name);

 private:
  // The workers that each failed to reach since it last reached them.
  std::map<std::string, std::set<std::string>> unreached_;
};

}  // namespace sluice
