#include "tests/bench/paper/flexgen_overlap.h"

#include <algorithm>

namespace sluice {
namespace {

ResourceSeconds Evaluate(const ResourceForms& forms,
                         const Fractions& fractions) {
  ResourceSeconds seconds;
  for (int r = 0; r < kNumResources; ++r) seconds[r] = forms[r].At(fractions);
  return seconds;
}

// The longest of a stretch in which device and host compute in turn and all
// else goes on beside them.
double Longest(const ResourceSeconds& seconds) {
  constexpr int kDevice = static_cast<int>(Resource::kDeviceCompute);
  constexpr int kHost = static_cast<int>(Resource::kHostCompute);
  double longest = seconds[kDevice] + seconds[kHost];
  for (int r = 0; r < kNumResources; ++r) {
    if (r != kDevice && r != kHost) longest = std::max(longest, seconds[r]);
  }
  return longest;
}

}  // namespace

double BarrierSeconds(const StepParts& parts, const Fractions& fractions) {
  const ResourceSeconds weights = Evaluate(parts.weights, fractions);
  const ResourceSeconds kv = Evaluate(parts.kv, fractions);
  const ResourceSeconds activations = Evaluate(parts.activations, fractions);
  const ResourceSeconds attention = Evaluate(parts.attention, fractions);
  const ResourceSeconds rest = Evaluate(parts.rest, fractions);
  const double first_half = parts.first_half;
  const double layers = parts.layers, batches = parts.micro_batches;
  // Each of these is of one micro-batch in one layer; those with weights are of
  // the micro-batch during which the next half's weights come.
  ResourceSeconds first, first_with_weights, second, second_with_weights;
  for (int r = 0; r < kNumResources; ++r) {
    const double each = 1 / (layers * batches);
    first[r] = (kv[r] + activations[r] / 2 + attention[r]) * each;
    second[r] = (activations[r] / 2 + rest[r]) * each;
    // While a half is computed, the weights of the next one come.
    first_with_weights[r] = first[r] + (1 - first_half) * weights[r] / layers;
    second_with_weights[r] = second[r] + first_half * weights[r] / layers;
  }
  const double layer = Longest(first_with_weights) +
                       Longest(second_with_weights) +
                       (batches - 1) * (Longest(first) + Longest(second));
  constexpr int kLink = static_cast<int>(Resource::kLink);
  return std::max(layers * layer, parts.link[kLink].At(fractions));
}

}  // namespace sluice
