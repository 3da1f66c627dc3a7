#include "runtime/model/checkpoint/quantization/quantized_weights.h"

#include <algorithm>

#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::shared_ptr<const QuantizedWeight>> QuantizedWeights::Get(
    const WeightPlace& place) {
  std::shared_ptr<Entry> entry;
  {
    MutexLock lock(&mu_);
    const auto it =
        std::find_if(entries_.begin(), entries_.end(), [&](const auto& kept) {
          return kept->module == place.module &&
                 kept->in_stack == place.in_stack;
        });
    if (it != entries_.end()) {
      entry = *it;
      std::rotate(it, it + 1, entries_.end());
      while (entry->loading) changed_.Wait(&mu_);
      if (!entry->status.ok()) return entry->status;
      return entry->weight;
    }
    entry = std::make_shared<Entry>();
    entry->module = place.module;
    entry->in_stack = place.in_stack;
    entries_.push_back(entry);
    // Whoever reads from a weight that goes still has it.
    if (entries_.size() > kKept) entries_.erase(entries_.begin());
  }
  absl::StatusOr<std::unique_ptr<QuantizedWeight>> opened = Open(place);
  absl::Status status = opened.status();
  if (status.ok() && *opened != nullptr) status = (*opened)->Load(tensors_);
  MutexLock lock(&mu_);
  entry->loading = false;
  entry->status = status;
  if (status.ok()) entry->weight = *std::move(opened);
  if (entry->weight == nullptr) std::erase(entries_, entry);
  changed_.NotifyAll();
  if (!status.ok()) return status;
  return entry->weight;
}

}  // namespace sluice
