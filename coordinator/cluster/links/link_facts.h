#pragma once

#include <cstddef>
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

}  // namespace sluice
