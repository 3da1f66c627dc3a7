#include "runtime/placement/weight_placement.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/blocks.h"

namespace sluice {

std::vector<UnitPlacement> PlaceWeights(std::span<const size_t> unit_bytes,
                                        std::span<const size_t> granules,
                                        const TierFractions& fractions) {
  std::vector<UnitPlacement> units;
  units.reserve(unit_bytes.size());
  double all = 0;
  for (const size_t bytes : unit_bytes) all += static_cast<double>(bytes);
  const double off_device =
      EvenLevel(unit_bytes, (fractions.host + fractions.disk) * all);
  const double on_disk = EvenLevel(unit_bytes, fractions.disk * all);
  double want_device = 0, want_host = 0;  // so far, in bytes
  double got_device = 0, got_host = 0;
  const auto cut = [](double bytes, size_t limit, size_t granule) {
    const double granules = std::round(bytes / static_cast<double>(granule));
    const size_t n =
        granules <= 0 ? 0 : static_cast<size_t>(granules) * granule;
    return std::min(n, limit);
  };
  for (size_t i = 0; i < unit_bytes.size(); ++i) {
    const size_t bytes = unit_bytes[i];
    UnitPlacement unit;
    unit.bytes = bytes;
    const auto size = static_cast<double>(bytes);
    want_device += size - std::min(size, off_device);
    want_host += std::min(size, off_device) - std::min(size, on_disk);
    const size_t granule = granules[i];
    unit.device_end = cut(want_device - got_device, bytes, granule);
    got_device += static_cast<double>(unit.device_end);
    unit.host_end = std::min(
        bytes, unit.device_end + cut(want_host - got_host, bytes, granule));
    // The last granule of a packed unit may be a part of one.
    if (fractions.disk == 0) unit.host_end = bytes;
    if (fractions.disk == 0 && fractions.host == 0) unit.device_end = bytes;
    got_host += static_cast<double>(unit.host_end - unit.device_end);
    units.push_back(unit);
  }
  return units;
}

double EvenLevel(std::span<const size_t> unit_bytes, double total) {
  if (total <= 0) return 0;
  // Few units differ in size, of thousands that there may be.
  std::vector<std::pair<size_t, size_t>> counts;  // of each size
  for (const size_t bytes : unit_bytes) {
    const auto same =
        std::find_if(counts.begin(), counts.end(),
                     [&](const auto& count) { return count.first == bytes; });
    if (same == counts.end()) {
      counts.emplace_back(bytes, 1);
    } else {
      ++same->second;
    }
  }
  std::sort(counts.begin(), counts.end());
  size_t left = unit_bytes.size();
  for (const auto& [size, count] : counts) {
    const double level = total / static_cast<double>(left);
    const auto bytes = static_cast<double>(size);
    if (level <= bytes) return level;
    total -= bytes * static_cast<double>(count);
    left -= count;
  }
  return counts.empty() ? 0 : static_cast<double>(counts.back().first);
}

size_t PlacementGranule(size_t unit_bytes) {
  size_t granule = kDiskBlockBytes;
  while (granule < 16 * kDiskBlockBytes && granule * 512 <= unit_bytes) {
    granule *= 2;
  }
  return granule;
}

}  // namespace sluice
