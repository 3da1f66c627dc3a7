#include "runtime/exec/stage_needs.h"

#include <vector>

#include "runtime/exec/weight_placement.h"

namespace sluice {
namespace {

constexpr uint64_t kStagingGroupBytes = uint64_t{8} << 20;

}  // namespace

uint64_t StageNeeds::streamed_bytes(double away) const {
  std::vector<size_t> units(num_layers, layer_bytes);
  units.insert(units.end(), head_sections.begin(), head_sections.end());
  return static_cast<uint64_t>(
      EvenLevel(units, away * static_cast<double>(streamable_bytes())));
}

uint64_t StageNeeds::slot_bytes(double away, int slots,
                                uint64_t rounding) const {
  if (away <= 0) return 0;
  const uint64_t slot =
      std::min(unit_bytes(), streamed_bytes(away) + part_bytes +
                                 2 * PlacementGranule(unit_bytes()));
  return static_cast<uint64_t>(slots) * ((slot + rounding - 1) / rounding) *
         rounding;
}

int64_t StageNeeds::kv_group_pages() const {
  const int64_t batch =
      std::max<int64_t>(1, sequences_per_batch) * max_sequence_pages;
  return std::clamp<int64_t>(
      static_cast<int64_t>(kStagingGroupBytes / layer_page_bytes),
      max_sequence_pages, batch);
}

double LargestShare(absl::FunctionRef<bool(double share)> fits) {
  if (fits(1)) return 1;
  double share = 0;
  for (double step = 0.5; step > 1e-9; step /= 2) {
    if (fits(share + step)) share += step;
  }
  return share;
}

}  // namespace sluice
