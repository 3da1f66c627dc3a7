#include "scheduler/plan/automatic_policy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/string_view.h"
#include "scheduler/cost/cost_model.h"
#include "scheduler/plan/stage_case.h"

namespace sluice {
namespace {

enum Kind { kWeights, kKv, kActivations };
enum TierIndex { kOnDevice, kOnHost, kOnDisk };

// Fractions that grow as long as the capacities named hold.
class Placer {
 public:
  Placer(const PlanRequest& request, int machine, LayerRange layers,
         const BlockShape& block, const Policy& policy)
      : stage_(MakeStageCase(request, machine, layers, policy, block)),
        fractions_(FractionsOf(policy)) {}

  double& At(Kind kind, TierIndex tier) { return fractions_[3 * kind + tier]; }
  const Fractions& fractions() const { return fractions_; }

  // Whether the tier holds what the fractions say.
  bool Holds(absl::string_view what) {
    stage_.may_use = SupportOf(fractions_);
    for (const CapacityRow& row : Capacities(stage_)) {
      if (row.what == what && row.bytes.At(fractions_) > row.limit) {
        return false;
      }
    }
    return true;
  }

  // What is free in it.
  double Room(absl::string_view what) {
    stage_.may_use = SupportOf(fractions_);
    double room = stage_.machine->host_memory_bytes;
    for (const CapacityRow& row : Capacities(stage_)) {
      if (row.what == what) {
        room = std::min(room, row.limit - row.bytes.At(fractions_));
      }
    }
    return room;
  }

  // The largest share up to `most` that the tier holds, with what is left of
  // `all` in the next tier if that is named.
  double Grow(Kind kind, TierIndex tier, double all, double most,
              bool rest_in_next, absl::string_view what) {
    const auto set = [&](double share) {
      At(kind, tier) = share;
      if (rest_in_next) {
        At(kind, static_cast<TierIndex>(tier + 1)) = all - share;
      }
    };
    set(most);
    if (Holds(what)) return most;
    double share = 0;
    for (double step = most / 2; step > 1e-6; step /= 2) {
      set(share + step);
      if (Holds(what)) share += step;
    }
    set(share);
    return share;
  }

 private:
  StageCase stage_;
  Fractions fractions_;
};

// The names that the cost model gives its capacities.
constexpr absl::string_view kDeviceMemory = "device memory";
constexpr absl::string_view kHostMemory = "host memory";

void PlaceOnDevice(const Policy& policy, double device_bytes, Placer& placer) {
  if (policy.automatic_activations) {
    placer.At(kActivations, kOnDevice) = 0;
    const double before = placer.Room(kDeviceMemory);
    placer.At(kActivations, kOnDevice) = 1;
    placer.At(kActivations, kOnHost) = 0;
    if (before - placer.Room(kDeviceMemory) > device_bytes / 4) {
      placer.At(kActivations, kOnDevice) = 0;
      placer.At(kActivations, kOnHost) = 1;
    }
  }
  if (policy.automatic_weights) {
    placer.Grow(kWeights, kOnDevice, 1, 1, true, kDeviceMemory);
  }
  if (policy.automatic_kv_cache) {
    placer.Grow(kKv, kOnDevice, 1, 1, true, kDeviceMemory);
  }
}

}  // namespace

int32_t ResolveAutomatic(const PlanRequest& request, int machine,
                         LayerRange layers, const BlockShape& block,
                         Policy* policy) {
  const MachineProfile& profile = request.machines[machine];
  const bool disk = profile.disk_bytes > 0;
  const Policy asked = *policy;
  // What is automatic begins with nothing placed.
  if (asked.automatic_weights) policy->weights = {0, 0, 0};
  if (asked.automatic_kv_cache) policy->kv_cache = {0, 0, 0};
  if (asked.automatic_activations) policy->activations = {0, 1, 0};
  Placer placer(request, machine, layers, block, *policy);
  if (profile.has_device()) {
    PlaceOnDevice(asked, static_cast<double>(profile.device_memory_bytes),
                  placer);
  }
  // Shares of the rest.
  const double weights = 1 - placer.At(kWeights, kOnDevice);
  const double kv = 1 - placer.At(kKv, kOnDevice);
  double kv_here = kv;
  if (asked.automatic_weights) {
    placer.At(kWeights, kOnHost) = weights;
    placer.At(kWeights, kOnDisk) = 0;
  }
  if (asked.automatic_kv_cache) {
    placer.At(kKv, kOnHost) = 0;
    const double room_beside_weights = placer.Room(kHostMemory);
    if (asked.automatic_weights && disk) {
      placer.At(kWeights, kOnHost) = 0;
      const double room = placer.Room(kHostMemory);
      // The weights yield half of the room, no more than they must.
      const double for_kv = std::max(room_beside_weights, room / 2);
      placer.At(kKv, kOnHost) = kv;
      const double all = room - placer.Room(kHostMemory);
      kv_here = all > for_kv ? kv * std::max(0.0, for_kv / all) : kv;
      placer.At(kKv, kOnHost) = kv_here;
      placer.At(kWeights, kOnHost) = weights;
    } else {
      kv_here = placer.Grow(kKv, kOnHost, kv, kv, false, kHostMemory);
    }
  }
  if (asked.automatic_weights && disk && !placer.Holds(kHostMemory)) {
    placer.Grow(kWeights, kOnHost, weights, weights, true, kHostMemory);
  }
  // As many sequences as there is KV for, each with the whole of its share.
  const double room_for = placer.At(kKv, kOnDevice) + kv_here;
  const double slots = static_cast<double>(block.gbs);
  const auto gbs = static_cast<int32_t>(
      std::clamp(std::floor(slots * room_for / 1.0 + 1e-9), 1.0, slots));
  if (asked.automatic_kv_cache) {
    placer.At(kKv, kOnHost) = kv;
    if (gbs < block.gbs && room_for > 0) {
      // All of what there is, for fewer sequences.
      placer.At(kKv, kOnDevice) /= room_for;
      placer.At(kKv, kOnHost) = 1 - placer.At(kKv, kOnDevice);
    }
  }
  SetFractions(placer.fractions(), policy);
  policy->automatic_weights = false;
  policy->automatic_activations = false;
  policy->automatic_kv_cache =
      asked.automatic_kv_cache && !profile.has_device();
  return gbs;
}

}  // namespace sluice
