#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "common/blocks.h"
#include "runtime/placement/rank_limits.h"
#include "runtime/placement/tensor_shard.h"
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

// Bytes that fractions add to each tier where they lie, for one rank.
class Slopes {
 public:
  Slopes(const StageCase& stage, const StageSizes& sizes, const Fractions& at,
         const StagePlacement& placement)
      : sizes_(sizes),
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
    const auto kv = static_cast<double>(sizes_.KvBytes(sizes_.kv_pages));
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

StageShape StageCase::Shape(int32_t rank) const {
  const int32_t positions = std::max(1, longest);
  Policy of_rank = policy;
  // As TensorStage divides them.
  if (machine->ranks > 1 && policy.compute_threads > 0) {
    of_rank.compute_threads =
        std::max(1, policy.compute_threads / machine->ranks);
  }
  return {.model = model,
          .layers = layers,
          .tensor = {rank, machine->ranks},
          .policy = of_rank,
          .device = machine->has_gpu()      ? BackendKind::kCuda
                    : machine->has_device() ? BackendKind::kCpuDiscrete
                                            : BackendKind::kCpu,
          .max_model_len = max_model_len > 0 ? max_model_len : positions,
          .kv_positions = positions,
          .max_sequences = policy.gbs * policy.num_microbatches * num_blocks,
          .threads = machine->rank_threads(),
          .may_use_disk = MayUseDisk()};
}

std::shared_ptr<const StageRanks> StageCase::Ranks() const {
  if (ranks != nullptr) return ranks;
  auto made = std::make_shared<StageRanks>();
  std::map<std::array<int32_t, 8>, size_t>
      kinds;  // by all that sizes depend on
  for (int32_t rank = 0; rank < machine->ranks; ++rank) {
    const TensorRank of = {rank, machine->ranks};
    const TensorShard shard =
        TensorShard::Of(*model, policy.compress_weights, of);
    const auto [kind, is_new] = kinds.try_emplace(
        {of.leads() ? 1 : 0, shard.heads.size(), shard.kv_heads.size(),
         shard.hidden.size(), shard.inner.size(), shard.shared_inner.size(),
         shard.expert_inner.size(), shard.vocab.size()},
        made->kinds.size());
    if (is_new) {
      made->kinds.push_back({StageSizes(Shape(rank))});
    } else {
      ++made->kinds[kind->second].count;
    }
  }
  made->work = RankWorkOf(*model, layers, policy, machine->ranks);
  const ComputeProfile& compute = machine->compute();
  const PackedLayouts& layouts = made->lead().layouts;
  made->full = ProductRates(compute, policy.dtype, {});
  if (layouts.coded()) {
    made->layers = CheckpointRates(*model, layers, compute, policy.dtype);
    made->experts =
        CheckpointExpertRates(*model, layers, compute, policy.dtype);
  } else {
    made->layers = made->experts = {
        {1, ProductRates(compute, policy.dtype, {policy.compress_weights})}};
  }
  if (!layouts.head.empty()) {
    const MatrixLayout& head = layouts.head.front().head;
    made->head = ProductRates(compute, policy.dtype,
                              {head.format, head.codes[0].format});
  }
  return made;
}

std::shared_ptr<const StageSizes> StageCase::Sizes() const {
  const std::shared_ptr<const StageRanks> of = Ranks();
  return {of, &of->lead()};
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

RanksPlacement PlacementOf(const StageCase& stage, const Fractions& fractions) {
  Policy policy = stage.policy;
  SetFractions(fractions, &policy);
  const std::shared_ptr<const StageRanks> ranks = stage.Ranks();
  TierLimits limits = LimitsOf(stage);
  if (ranks->count() > 1) limits = WithoutLimit(limits);
  RanksPlacement placement;
  for (const StageRanks::Kind& kind : ranks->kinds) {
    const StagePlacement& of_kind =
        placement.kinds.emplace_back(Place(kind.sizes, policy, limits));
    for (size_t tier = 0; tier < kNumTiers; ++tier) {
      const TierUse& one = of_kind.uses[tier];
      RanksPlacement::Use& use = placement.uses[tier];
      if (static_cast<Tier>(tier) == Tier::kDevice) {
        use.held_bytes = std::max(use.held_bytes, one.held_bytes());
        use.peak_bytes = std::max(use.peak_bytes, one.peak_bytes());
        continue;
      }
      const auto count = static_cast<uint64_t>(kind.count);
      use.held_bytes += count * one.held_bytes();
      use.peak_bytes += count * one.peak_bytes();
    }
  }
  return placement;
}

std::vector<CapacityRow> CapacityRows(const StageCase& stage,
                                      const Fractions& at,
                                      const RanksPlacement& placement) {
  const std::shared_ptr<const StageRanks> ranks = stage.Ranks();
  const TierLimits limits = LimitsOf(stage);
  std::vector<CapacityRow> rows;
  const auto add = [&](Tier tier, LinearForm form, uint64_t bytes) {
    form.constant = 0;
    form.constant = static_cast<double>(bytes) - form.At(at);
    rows.push_back(
        {tier, form, static_cast<double>(limits[static_cast<size_t>(tier)])});
  };
  // Of the ranks together, but for their devices.
  LinearForm host, loading, disk;
  for (size_t k = 0; k < ranks->kinds.size(); ++k) {
    const StageRanks::Kind& kind = ranks->kinds[k];
    const Slopes slopes(stage, kind.sizes, at, placement.kinds[k]);
    host.Add(slopes.All(Tier::kHost), kind.count);
    loading.Add(slopes.Weights(kOnHost), kind.count);
    disk.Add(slopes.All(Tier::kDisk), kind.count);
    if (!stage.machine->has_device()) continue;
    const TierUse& use = placement.kinds[k].use(Tier::kDevice);
    add(Tier::kDevice, slopes.All(Tier::kDevice), use.held_bytes());
    if (use.peak_bytes() > use.held_bytes()) {
      add(Tier::kDevice, slopes.Weights(kOnHost), use.peak_bytes());
    }
  }
  for (const auto& [tier, form] :
       {std::pair{Tier::kHost, &host}, std::pair{Tier::kDisk, &disk}}) {
    const RanksPlacement::Use& use = placement.use(tier);
    add(tier, *form, use.held_bytes);
    if (use.peak_bytes > use.held_bytes) add(tier, loading, use.peak_bytes);
  }
  return rows;
}

}  // namespace sluice
