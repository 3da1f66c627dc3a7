#include <algorithm>

#include "common/blocks.h"
#include "scheduler/cost/cost_model.h"

// FlexGen A.3's peak memory: that of the runtime's own placement
// (runtime/placement), made linear where it is asked about.

namespace sluice {
namespace {

// Of a link by NCCL at each end: a payload is copied into one while the other
// is on its way.
constexpr uint64_t kPayloadBuffers = 2;

// The bytes by which the largest streamed part of a unit grows with the share
// of streamed weights: every unit gives the same, or all it has (EvenLevel).
double SlotSlope(const StageSizes& sizes, double away) {
  const auto all = static_cast<double>(sizes.streamable);
  const double level = EvenLevel(sizes.units, away * all);
  const auto open = std::count_if(
      sizes.units.begin(), sizes.units.end(),
      [&](size_t bytes) { return static_cast<double>(bytes) >= level; });
  return all / static_cast<double>(std::max<int64_t>(1, open));
}

// Bytes that fractions add to each tier where they lie.
class Slopes {
 public:
  Slopes(const StageCase& stage, const Fractions& at,
         const StagePlacement& placement)
      : kept_(stage.Sizes()),
        sizes_(*kept_),
        at_(at),
        placement_(placement),
        has_device_(stage.machine->has_device()),
        batches_(stage.policy.num_microbatches) {}

  // The weights on `tier`; without a device the host has the device's share.
  LinearForm Weights(TierIndex tier) const {
    return At(kWeights, tier, static_cast<double>(sizes_.streamable));
  }

  LinearForm All(Tier tier) const {
    LinearForm form;
    const double kv = static_cast<double>(sizes_.kv_pages) *
                      static_cast<double>(sizes_.page());
    switch (tier) {
      case Tier::kDevice: {
        form = Weights(kOnDevice);
        form.Add(At(kKv, kOnDevice, kv));
        form.Add(At(kActivations, kOnDevice,
                    batches_ * static_cast<double>(
                                   RoundUpToDiskBlock(sizes_.activation))));
        const double slots = placement_.device_slots *
                             SlotSlope(sizes_, at_[kOnHost] + at_[kOnDisk]);
        form.slope[kOnHost] = form.slope[kOnDisk] = slots;
        break;
      }
      case Tier::kHost:
        form = Weights(kOnHost);
        form.Add(At(kKv, kOnHost, kv));
        form.slope[kOnDisk] =
            placement_.host_slots * SlotSlope(sizes_, at_[kOnDisk]);
        if (placement_.stages_activations()) {
          const double activations =
              batches_ * static_cast<double>(sizes_.activation);
          form.slope[3 * kActivations + kOnDevice] =
              form.slope[3 * kActivations + kOnHost] = activations;
        }
        break;
      case Tier::kDisk:
        form = At(kKv, kOnDisk, kv);
        form.slope[3 * kActivations + kOnDisk] =
            batches_ * static_cast<double>(sizes_.activation);
        break;
    }
    return form;
  }

 private:
  LinearForm At(Kind kind, TierIndex tier, double bytes) const {
    LinearForm form;
    form.slope[3 * kind + tier] = bytes;
    if (tier == kOnHost && !has_device_) form.slope[3 * kind] = bytes;
    return form;
  }

  const std::shared_ptr<const StageSizes> kept_;
  const StageSizes& sizes_;
  const Fractions& at_;
  const StagePlacement& placement_;
  const bool has_device_;
  const double batches_;
};

}  // namespace

bool StageCase::MayUseDisk() const {
  return machine->disk_bytes > 0 &&
         (sluice::MayUseDisk(policy) || MayUse(kWeights, kOnDisk) ||
          MayUse(kKv, kOnDisk) || MayUse(kActivations, kOnDisk));
}

StageShape StageCase::Shape() const {
  const int32_t positions = std::max(1, longest);
  return {.model = model,
          .layers = layers,
          .policy = policy,
          .device = machine->has_gpu()      ? BackendKind::kCuda
                    : machine->has_device() ? BackendKind::kCpuDiscrete
                                            : BackendKind::kCpu,
          .max_model_len = max_model_len > 0 ? max_model_len : positions,
          .kv_positions = positions,
          .max_sequences = policy.gbs * policy.num_microbatches * num_blocks,
          .threads = machine->threads,
          .may_use_disk = MayUseDisk()};
}

std::shared_ptr<const StageSizes> StageCase::Sizes() const {
  return sizes != nullptr ? sizes : std::make_shared<StageSizes>(Shape());
}

TierLimits LimitsOf(const StageCase& stage) {
  const MachineProfile& machine = *stage.machine;
  uint64_t device = machine.device_memory_bytes;
  if (machine.nccl_links && machine.has_gpu()) {
    const uint64_t neighbours =
        (stage.layers.begin > 0 ? 1 : 0) +
        (stage.layers.end < stage.model->num_layers ? 1 : 0);
    const uint64_t payload =
        sizeof(float) * static_cast<uint64_t>(stage.policy.max_step_tokens) *
        static_cast<uint64_t>(stage.model->hidden_size);
    device -= std::min(device, neighbours * kPayloadBuffers * payload);
  }
  return {device, machine.host_memory_bytes, machine.disk_bytes};
}

absl::string_view CapacityName(Tier tier) {
  constexpr absl::string_view kNames[] = {"device memory", "host memory",
                                          "disk space"};
  return kNames[static_cast<size_t>(tier)];
}

StagePlacement PlacementOf(const StageCase& stage, const Fractions& fractions) {
  Policy policy = stage.policy;
  SetFractions(fractions, &policy);
  return Place(*stage.Sizes(), policy, LimitsOf(stage));
}

std::vector<CapacityRow> CapacityRows(const StageCase& stage,
                                      const Fractions& at,
                                      const StagePlacement& placement) {
  const Slopes slopes(stage, at, placement);
  const TierLimits limits = LimitsOf(stage);
  std::vector<CapacityRow> rows;
  const auto add = [&](Tier tier, LinearForm form, uint64_t bytes) {
    form.constant = 0;
    form.constant = static_cast<double>(bytes) - form.At(at);
    rows.push_back(
        {tier, form, static_cast<double>(limits[static_cast<size_t>(tier)])});
  };
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (tier == Tier::kDevice && !stage.machine->has_device()) continue;
    const TierUse& use = placement.use(tier);
    add(tier, slopes.All(tier), use.held_bytes());
    if (use.peak_bytes() > use.held_bytes()) {
      add(tier, slopes.Weights(kOnHost), use.peak_bytes());
    }
  }
  return rows;
}

}  // namespace sluice
