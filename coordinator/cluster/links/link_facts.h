#pragma once

#include <cstddef>
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

}  // namespace sluice
