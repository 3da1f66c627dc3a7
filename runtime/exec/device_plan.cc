#include "runtime/exec/device_plan.h"

#include <algorithm>
#include <cmath>

#include "common/status_macros.h"
#include "runtime/exec/tier_table.h"
#include "runtime/exec/weight_placement.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/disk/disk_file.h"

namespace sluice {
namespace {

// Rounding of one allocation.
constexpr uint64_t kRounding = kDiskAlignment;
// Activations that are in use or on their way at a time: of a micro-batch that
// computes, one that waits for its attention, one that comes and one that goes.
constexpr int kActivationSlots = 4;
constexpr int kFewestActivationSlots = 2;

uint64_t ResidentBytes(const StageNeeds& needs, double device) {
  return static_cast<uint64_t>(device *
                               static_cast<double>(needs.streamable_bytes()));
}

uint64_t SlotBytes(const StageNeeds& needs, double device, int slots) {
  return needs.slot_bytes(1 - device, slots, kRounding);
}

uint64_t WeightBytes(const StageNeeds& needs, double device, int slots) {
  // Each unit is rounded to granules and is an allocation.
  const uint64_t rounding =
      PlacementGranule(needs.unit_bytes()) + kRounding * needs.num_units();
  return ResidentBytes(needs, device) + SlotBytes(needs, device, slots) +
         (device > 0 ? rounding : 0);
}

}  // namespace

absl::StatusOr<DevicePlan> PlanDevice(const StageNeeds& needs,
                                      const Policy& policy,
                                      const MemoryBudget& device) {
  DevicePlan plan;
  const uint64_t free = device.free_bytes();
  const uint64_t page = needs.layer_page_bytes * needs.num_layers;
  uint64_t room = free;
  const auto take = [&](uint64_t bytes) { room -= std::min(room, bytes); };
  take(needs.expanded_bytes);

  // Activations.
  const int batches = policy.num_microbatches;
  const uint64_t activation = RoundUpToDisk(needs.activation_bytes);
  const int few_slots =
      policy.overlap ? kActivationSlots : kFewestActivationSlots;
  if (policy.automatic_activations) {
    const auto fit = static_cast<int64_t>(room / 4 / activation);
    plan.resident_batches =
        fit >= batches
            ? batches
            : static_cast<int>(std::max<int64_t>(0, fit - few_slots));
  } else {
    plan.resident_batches =
        static_cast<int>(std::lround(policy.activations.device * batches));
  }
  if (plan.resident_batches < batches) {
    plan.activation_slots =
        std::max(kFewestActivationSlots,
                 std::min(few_slots, batches - plan.resident_batches));
  }
  const uint64_t activations =
      activation * (plan.resident_batches + plan.activation_slots);
  take(activations);

  // KV cache that the policy puts somewhere.
  const bool staged = policy.attention_site == AttentionSite::kDevice;
  const int64_t group = needs.kv_group_pages();
  const int groups = policy.overlap ? 3 : 1;
  const uint64_t staging =
      groups *
      (RoundUpToDisk(static_cast<uint64_t>(group) * needs.layer_page_bytes +
                     KvLayout::kSlackBytes));
  const auto stage = [&] {
    plan.staging_pages = group;
    plan.staging_slots = groups;
    take(staging);
  };
  const auto kv_bytes = [&](int64_t pages) {
    return pages == 0 ? 0 : static_cast<uint64_t>(pages) * page + kRounding;
  };
  if (!policy.automatic_kv_cache) {
    plan.kv_pages = std::llround(policy.kv_cache.device *
                                 static_cast<double>(needs.kv_pages));
    // A tier that has pages has them for a sequence at least.
    if (plan.kv_pages > 0) {
      plan.kv_pages = std::max(plan.kv_pages, needs.max_sequence_pages);
    }
    if (staged && plan.kv_pages < needs.kv_pages) stage();
    take(kv_bytes(plan.kv_pages));
  }

  // Weights; then what is left is for KV.
  const int slots = needs.weight_slots(policy.overlap, room);
  const auto weights_in = [&](uint64_t bytes) {
    if (!policy.automatic_weights) return policy.weights.device;
    return LargestShare([&](double share) {
      return WeightBytes(needs, share, slots) <= bytes;
    });
  };
  plan.weights = weights_in(room);
  if (policy.automatic_kv_cache) {
    const auto left = [&] {
      const uint64_t weights = WeightBytes(needs, plan.weights, slots);
      return room > weights + kRounding ? room - weights - kRounding : 0;
    };
    if (left() / page >= static_cast<uint64_t>(needs.kv_pages)) {
      plan.kv_pages = needs.kv_pages;
    } else {
      if (staged) {
        stage();
        plan.weights = weights_in(room);
      }
      plan.kv_pages = static_cast<int64_t>(left() / page);
      if (plan.kv_pages < needs.max_sequence_pages) plan.kv_pages = 0;
    }
  }
  plan.weight_slots = plan.weights < 1 ? slots : 0;

  SLUICE_RETURN_IF_ERROR(CheckFits(
      device,
      {{"expanded layer", needs.expanded_bytes},
       {"activations", activations},
       {"weights", WeightBytes(needs, plan.weights, 0)},
       {"weight slots", SlotBytes(needs, plan.weights, plan.weight_slots)},
       {"kv cache", kv_bytes(plan.kv_pages)},
       {"kv staging", plan.staging_slots > 0 ? staging : 0}},
      "give it more with --device-memory, or put more into host memory or on "
      "disk with --policy"));
  return plan;
}

StageNeeds NeedsBesideDevice(const StageNeeds& needs, const DevicePlan& plan) {
  StageNeeds rest = needs;
  const uint64_t level = needs.streamed_bytes(1 - plan.weights);
  rest.layer_bytes = std::min(needs.layer_bytes, level);
  rest.device_layer_bytes = needs.layer_bytes - rest.layer_bytes;
  rest.device_head_sections.clear();
  for (uint64_t& section : rest.head_sections) {
    const uint64_t here = std::min(section, level);
    rest.device_head_sections.push_back(section - here);
    section = here;
  }
  // On its way to the device a unit is in host memory as a whole.
  rest.loading_bytes = plan.weights > 0 ? needs.unit_bytes() : 0;
  rest.expanded_bytes = 0;
  rest.kv_pages = std::max<int64_t>(0, needs.kv_pages - plan.kv_pages);
  rest.kv_on_device = plan.kv_pages > 0;
  return rest;
}

Policy PolicyBesideDevice(const Policy& policy, const DevicePlan& plan) {
  Policy rest = policy;
  const auto without_device = [](const TierFractions& f) {
    const double left = f.host + f.disk;
    return left > 0 ? TierFractions{0, f.host / left, f.disk / left}
                    : TierFractions{0, 1, 0};
  };
  rest.weights = without_device(policy.weights);
  rest.kv_cache = without_device(policy.kv_cache);
  rest.activations = without_device(policy.activations);
  return rest;
}

TierFractions WithDevice(const DevicePlan& plan, const TierFractions& rest) {
  const double left = 1 - plan.weights;
  return {plan.weights, left * rest.host, left * rest.disk};
}

}  // namespace sluice
