#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/machine_profile.h"
#include "sluice/v1/pipeline.pb.h"

// What links between workers carry, as planning knows it: workers measure them
// when they are asked. Pure.

namespace sluice {

// Which links the worker at `place` of these is to measure: to the next
// kMostLinkPeers after it, as if they stood in a ring, but for those in `asked`
// (names). So each measures in another order, and none is everybody's first.
// The names are added to `asked`.
inline constexpr size_t kMostLinkPeers = 16;
v1::MeasureLinks LinksToMeasure(const std::vector<const v1::Register*>& workers,
                                size_t place,
                                absl::flat_hash_set<std::string>* asked);

// Takes over what was measured of links that were asked for. The link to any
// peer, which a profile has from the loopback, becomes the slowest of those.
// Returns why some were not measured, or that they say nonsense, for people; ""
// if all is well.
std::string AddMeasuredLinks(const v1::LinksMeasured& measured,
                             const absl::flat_hash_set<std::string>& asked,
                             MachineProfile* profile);

// Whose fault it is that links between workers can't be opened. Workers go by
// name. Thread-compatible.
//
// One failure does not tell the two ends apart, and it is mostly the far one
// that can't be reached: a wrong address, a firewall. But one that reaches
// nobody, of those whom nobody else has failed to reach, is itself cut off.
class LinkBlame {
 public:
  struct Verdict {
    std::string culprit;
    // Blamed before, for what now is the culprit's fault.
    std::vector<std::string> innocent;
  };
  // `from` could not open its link to `to`.
  Verdict OnUnreached(const std::string& from, const std::string& to);
  void OnReached(const std::string& from, const std::string& to);
  // What was found of this worker does not hold any more.
  void Forget(const std::string& name);

 private:
  // Whom each could not reach since it last could.
  std::map<std::string, std::set<std::string>> unreached_;
};

}  // namespace sluice
