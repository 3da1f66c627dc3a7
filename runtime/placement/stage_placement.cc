#include "runtime/placement/stage_placement.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/blocks.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"

namespace sluice {
namespace {

constexpr auto kDevice = static_cast<size_t>(Tier::kDevice);
constexpr auto kHost = static_cast<size_t>(Tier::kHost);
constexpr auto kDisk = static_cast<size_t>(Tier::kDisk);

// Activations on a device that are in use or on their way at a time: of a
// micro-batch that computes, one that waits for its attention, one that comes
// and one that goes.
constexpr int kActivationSlots = 4;
constexpr int kMinActivationSlots = 2;
// Groups of KV that are staged on a device.
constexpr int kStagedGroups = 3;

uint64_t Left(uint64_t limit, uint64_t used) {
  return limit > used ? limit - used : 0;
}

int64_t Ceil(double share, int64_t count) {
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(count)));
}

// A slot more than two lets the wire go on while the sweep waits for it. Of a
// tenth of the room it did not pay for the weights whose place it took: the
// 1.1B shape in half its bytes ran as fast with either.
int WeightSlots(bool overlap, uint64_t largest_unit, uint64_t room) {
  return overlap && largest_unit <= room / 18 ? 3 : 2;
}

// The units of a mixture are small, and those that its core's computing leaves
// the wire time for are many.
constexpr int kMaxExpertSlots = 16;
int ExpertSlots(uint64_t expert, uint64_t largest_unit, uint64_t room) {
  if (expert == 0) return 0;
  return static_cast<int>(std::min<uint64_t>(
      {kMaxExpertSlots, room / 12 / expert, room / 3 / largest_unit}));
}

// The largest share from 0 to 1, to a millionth or so, for which `fits` holds,
// if it holds for all that are smaller; 0 if it holds for none.
double LargestShare(absl::FunctionRef<bool(double share)> fits) {
  if (fits(1)) return 1;
  double share = 0;
  for (double step = 0.5; step > 1e-9; step /= 2) {
    if (fits(share + step)) share += step;
  }
  return share;
}

class Placer {
 public:
  Placer(const StageSizes& sizes, const Policy& policy,
         const TierLimits& limits)
      : s_(sizes), policy_(policy), limits_(limits) {}

  StagePlacement Place() {
    if (s_.shape.has_device()) PlaceOnDevice();
    // The embedding goes to disk with any weights; where these are automatic,
    // that is known in the end.
    const bool may_move = s_.embedding_on_disk < s_.embedding.bytes;
    p_.embedding_on_disk =
        may_move && !policy_.automatic_weights &&
        (1 - p_.weights.device) * OnDisk(policy_.weights) > 0;
    PlaceBeside();
    if (may_move && !p_.embedding_on_disk && p_.weights.disk > 0) {
      p_.embedding_on_disk = true;
      PlaceBeside();
    }
    p_.uses = {DeviceUse(), HostUse(), DiskUse()};
    return std::move(p_);
  }

 private:
  // Returns the bytes of a group's arena, as `round` makes them whole.
  template <typename Round>
  uint64_t ArenaBytes(size_t tier, Round round) const {
    uint64_t sum = 0;
    for (const KvGroup group : kKvGroups) {
      const uint64_t bytes =
          static_cast<uint64_t>(p_.pages[group][tier]) * s_.page(group);
      if (bytes > 0) sum += round(bytes + KvLayout::kSlackBytes);
    }
    return sum;
  }
  // The arenas of a tier.
  uint64_t num_arenas() const {
    return (s_.kv_groups.sizes[KvGroup::kAll] > 0 ? 1 : 0) +
           (s_.kv_groups.sizes[KvGroup::kWindow] > 0 ? 1 : 0);
  }
  // Returns how many pages of group kAll there is room for, with those of
  // group kWindow that belong to them; `most` at most.
  int64_t PagesIn(uint64_t room, int64_t most) const {
    if (s_.KvBytes(most) <= room) return most;
    int64_t least = 0;  // fits; `most` does not
    while (most - least > 1) {
      const int64_t middle = least + (most - least) / 2;
      (s_.KvBytes(middle) <= room ? least : most) = middle;
    }
    return least;
  }
  // Gives a tier so many pages of group kAll, and those of group kWindow that
  // belong to them.
  void SetPages(size_t tier, int64_t pages) {
    p_.pages[KvGroup::kAll][tier] = pages;
    p_.pages[KvGroup::kWindow][tier] = s_.WindowPagesWith(pages);
  }

  // Cuts the units so that the device has its share and the disk `disk` of the
  // rest.
  void SetWeights(double device, double disk) {
    p_.weights = {device, (1 - device) * (1 - disk), (1 - device) * disk};
    p_.units = PlaceWeights(s_.units, s_.granules, p_.weights);
    p_.device_slot_bytes = p_.host_slot_bytes = 0;
    for (size_t i = 0; i < p_.units.size(); ++i) {
      UnitPlacement& unit = p_.units[i];
      // Most experts are cut as the one before.
      const UnitPlacement* const before =
          s_.weights.all[i].expert > 0 ? &p_.units[i - 1] : nullptr;
      const auto slot = [&](size_t UnitPlacement::*end,
                            size_t UnitPlacement::*split) -> uint64_t {
        const size_t cut = unit.*end;
        unit.*split = cut == 0 || cut == unit.bytes ? cut
                      : before != nullptr && before->*end == cut
                          ? before->*split
                          : s_.PartBegin(i, cut);
        return StreamedBytes(unit.bytes, unit.*split);
      };
      const uint64_t to_device =
          slot(&UnitPlacement::device_end, &UnitPlacement::device_split);
      const uint64_t from_disk =
          slot(&UnitPlacement::host_end, &UnitPlacement::host_split);
      if (s_.shape.has_device()) {
        p_.device_slot_bytes = std::max(p_.device_slot_bytes, to_device);
      }
      p_.host_slot_bytes = std::max(p_.host_slot_bytes, from_disk);
    }
  }

  TierUse DeviceUse() const {
    TierUse use;
    if (!s_.shape.has_device()) return use;
    use.Hold("workspace", s_.device_workspace);
    use.Hold("dequantized layer", RoundUpToDiskBlock(s_.dequantized));
    for (const UnitPlacement& unit : p_.units) {
      use.Hold("weights", RoundUpToDiskBlock(unit.device_end));
    }
    use.Hold("weight slots",
             p_.device_slots * RoundUpToDiskBlock(p_.device_slot_bytes));
    use.Hold("kv cache", ArenaBytes(kDevice, [](uint64_t bytes) {
               return RoundUpToDiskBlock(bytes);
             }));
    use.Hold("activations", (p_.resident_batches + p_.activation_slots) *
                                RoundUpToDiskBlock(s_.activation));
    use.Hold("kv staging",
             p_.staging_slots * RoundUpToDiskBlock(KvSlotBytes(
                                    s_.kv.layer_page_bytes(), s_.group_pages)));
    return use;
  }

  // Returns the host's charges, in the order of loading.
  TierUse HostUse() const {
    TierUse use;
    use.Hold("workspace", s_.host_workspace);
    use.Hold("activations", s_.activation * p_.host_batches);
    use.Hold("link buffers", s_.link_buffers);
    if (!s_.shape.has_device()) use.Hold("dequantized layer", s_.dequantized);
    if (p_.embedding_on_disk) {
      use.Hold("embedding", s_.embedding_on_disk);
      use.Pass("the embedding as it is packed",
               PackedWindowBytes(s_.embedding.bytes) + s_.embedding_staging);
    } else {
      use.Hold("embedding", s_.embedding.bytes);
      use.Pass("the embedding as it is packed", s_.embedding_staging);
    }
    for (size_t i = 0; i < p_.units.size(); ++i) {
      const UnitPlacement& unit = p_.units[i];
      const WeightUnit& of = s_.weights.all[i];
      const uint64_t stays = unit.host_end - unit.device_end;
      if (p_.weights.disk == 0) {
        use.Pass("a layer as it is packed", unit.bytes + s_.unit_staging[i]);
      } else if (of.begin == 0) {
        use.Pass("a layer as it is packed",
                 PackedWindowBytes(s_.weights.packed_bytes(of.packed)) +
                     s_.packed_staging[of.packed]);
      }
      // A unit on its way to the device is in host memory as a whole.
      if (unit.device_end > 0) {
        use.Pass("a layer on its way to the device", unit.host_end + stays);
      }
      use.Hold("weights in memory", stays);
    }
    use.Hold("weight slots", p_.host_slots * p_.host_slot_bytes);
    use.Hold("kv cache",
             ArenaBytes(kHost, [](uint64_t bytes) { return bytes; }));
    use.Hold("kv staging", p_.kv_staging_bytes);
    if (p_.stages_activations()) {
      use.Hold("activations", p_.activations.memory_bytes());
      use.Hold("activation staging", p_.activations.staging_bytes());
    }
    return use;
  }

  TierUse DiskUse() const {
    TierUse use;
    if (p_.weights.disk > 0) {
      for (int i = 0; i < s_.weights.num_packed(); ++i) {
        use.Hold(kPackedFilesCharge,
                 PackedFileBytes(s_.weights.packed_bytes(i)));
      }
    }
    if (p_.embedding_on_disk) {
      use.Hold(kPackedFilesCharge, PackedFileBytes(s_.embedding.bytes));
    }
    uint64_t kv = 0;
    for (const KvGroup group : kKvGroups) {
      kv += static_cast<uint64_t>(p_.pages[group][kDisk]) * s_.page(group);
    }
    use.Hold("kv cache", RoundUpToDiskBlock(kv));
    if (p_.stages_activations()) {
      use.Hold("activations", RoundUpToDiskBlock(p_.activations.disk_bytes()));
    }
    return use;
  }

  // A tier that has pages has them for a sequence at least.
  int64_t WithASequence(int64_t pages) const {
    return pages > 0 ? std::max(pages, s_.sequence_pages) : 0;
  }

  void PlaceOnDevice() {
    const uint64_t limit = limits_[kDevice];
    const auto room = [&] { return Left(limit, DeviceUse().held_bytes()); };
    // Activations.
    const int batches = policy_.num_microbatches;
    const int few = policy_.overlap ? kActivationSlots : kMinActivationSlots;
    if (policy_.automatic_activations) {
      const auto fit =
          static_cast<int64_t>(room() / 4 / RoundUpToDiskBlock(s_.activation));
      p_.resident_batches =
          fit >= batches ? batches
                         : static_cast<int>(std::max<int64_t>(0, fit - few));
    } else {
      p_.resident_batches =
          static_cast<int>(std::lround(policy_.activations.device * batches));
    }
    if (p_.resident_batches < batches) {
      p_.activation_slots = std::max(
          kMinActivationSlots, std::min(few, batches - p_.resident_batches));
    }
    // KV that the policy puts somewhere.
    const bool staged = policy_.attention_site == AttentionSite::kDevice;
    const int groups = policy_.overlap ? kStagedGroups : 1;
    if (!policy_.automatic_kv_cache) {
      const int64_t pages = WithASequence(std::llround(
          policy_.kv_cache.device * static_cast<double>(s_.kv_pages)));
      SetPages(kDevice, pages);
      if (staged && pages < s_.kv_pages) p_.staging_slots = groups;
    }
    // Weights come first; KV gets what is left.
    p_.device_slots = WeightSlots(policy_.overlap, s_.largest_unit, room());
    const auto place_weights = [&] {
      double share = policy_.weights.device;
      if (policy_.automatic_weights) {
        share = LargestShare([&](double device) {
          SetWeights(device, 0);
          return DeviceUse().held_bytes() <= limit;
        });
      }
      SetWeights(share, 0);
    };
    place_weights();
    if (!policy_.automatic_kv_cache) return;
    const auto pages_left = [&] {
      return PagesIn(Left(room(), num_arenas() * kDiskBlockBytes), s_.kv_pages);
    };
    int64_t pages = pages_left();
    if (pages < s_.kv_pages) {
      if (staged) {
        p_.staging_slots = groups;
        place_weights();
      }
      pages = pages_left();
      if (pages < s_.sequence_pages) pages = 0;
    }
    SetPages(kDevice, pages);
  }

  // The shares that host memory and the disk have of what is not on the device.
  double InMemory(const TierFractions& f) const {
    if (!s_.shape.has_device()) return f.device + f.host;
    return f.host + f.disk > 0 ? f.host / (f.host + f.disk) : 1;
  }
  double OnDisk(const TierFractions& f) const {
    if (!s_.shape.has_device()) return f.disk;
    return f.host + f.disk > 0 ? f.disk / (f.host + f.disk) : 0;
  }

  // Decides about the host and the disk all but p_.embedding_on_disk, which is
  // given.
  void PlaceBeside() {
    const double device = s_.shape.has_device() ? p_.weights.device : 0;
    // A single micro-batch has nobody to make room for.
    p_.activations = {
        .num_batches = policy_.num_microbatches - p_.resident_batches,
        .max_rows = policy_.max_step_tokens,
        .hidden = s_.shape.model->hidden_size};
    if (p_.activations.num_batches > 1) {
      p_.activations.disk = OnDisk(policy_.activations);
    }
    p_.host_batches = p_.stages_activations() ? p_.resident_batches
                                              : policy_.num_microbatches;
    for (TierPages& pages : p_.pages) pages[kHost] = pages[kDisk] = 0;
    p_.stranded = {};
    p_.kv_staging_bytes = 0;
    // Find the room that the rest leaves, and the units' bytes off the device.
    p_.units.clear();
    const uint64_t limit = limits_[kHost];
    const uint64_t others = HostUse().held_bytes();
    const uint64_t room =
        Left(limit, others + num_arenas() * KvLayout::kSlackBytes);
    const bool named = !policy_.automatic_weights;
    SetWeights(device, named ? OnDisk(policy_.weights) : 0);
    uint64_t weights = 0, largest = 0;
    for (const UnitPlacement& unit : p_.units) {
      const uint64_t rest = unit.bytes - unit.device_end;
      weights += rest;
      largest = std::max(largest, rest);
    }
    p_.host_slots = WeightSlots(policy_.overlap, largest, room);
    if (policy_.overlap && largest > 0) {
      p_.host_slots = std::max(p_.host_slots,
                               ExpertSlots(s_.largest_expert, largest, room));
    }
    const bool disk = s_.shape.may_use_disk;
    uint64_t for_weights = HostUse().held_bytes() - others;
    if (!named && disk) {
      // Weights yield half of the room to KV, but for their slots.
      for_weights =
          std::min(weights, std::max(room / 2, largest * p_.host_slots));
    }
    PlaceKv(Left(room, for_weights));
    if (named || !disk) return;
    const double in_memory = LargestShare([&](double share) {
      SetWeights(device, 1 - share);
      return HostUse().peak_bytes() <= limit;
    });
    SetWeights(device, 1 - in_memory);
  }

  void PlaceKv(uint64_t room) {
    const int64_t device = p_.pages[KvGroup::kAll][kDevice];
    const int64_t all = std::max<int64_t>(0, s_.kv_pages - device);
    if (policy_.automatic_kv_cache) {
      SetPages(kHost,
               std::min(all, std::max(PagesIn(room, all), s_.sequence_pages)));
      return;
    }
    const int64_t in_memory = Ceil(InMemory(policy_.kv_cache), all);
    const int64_t host = WithASequence(in_memory);
    const int64_t disk = WithASequence(all - in_memory);
    SetPages(kHost, host);
    SetPages(kDisk, disk);
    // Sequences, each of which lies in one tier, cannot use what is left of
    // each tier but one: the furthest makes up for it, so that all find a
    // place.
    const int tiers =
        (device > 0 ? 1 : 0) + (host > 0 ? 1 : 0) + (disk > 0 ? 1 : 0);
    if (host + disk > 0) {
      const int64_t others = std::max(0, tiers - 1);
      p_.stranded[KvGroup::kAll] = others * (s_.sequence_pages - 1);
      if (s_.kv_groups.window > 0) {
        p_.stranded[KvGroup::kWindow] =
            others * (s_.kv_groups.window_pages() - 1);
      }
      for (const KvGroup group : kKvGroups) {
        p_.pages[group][disk > 0 ? kDisk : kHost] += p_.stranded[group];
      }
    }
    if (disk > 0) {
      p_.kv_staging_bytes =
          KvStagingBytes(s_.kv.layer_page_bytes(), s_.group_pages);
    }
  }

  const StageSizes& s_;
  const Policy& policy_;
  const TierLimits& limits_;
  StagePlacement p_;
};

std::string Advice(const StageSizes& sizes, const StagePlacement& placement,
                   Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "give it more with --device-memory, or put more into host memory "
             "or on disk with --policy";
    case Tier::kDisk:
      return "give it more with --disk-space";
    case Tier::kHost:
      break;
  }
  // The least is the KV cache of one sequence of the greatest length.
  const bool longest =
      placement.pages[KvGroup::kAll][kHost] == sizes.sequence_pages;
  const bool disk = sizes.shape.may_use_disk;
  return absl::StrCat(
      "give it more with --host-memory, ",
      longest || !disk ? "a shorter --max-model-len, " : "",
      disk ? "or put more on disk with --policy" : "or a --disk-dir",
      longest ? " (the KV cache is that of one sequence of the greatest length)"
              : "");
}

}  // namespace

void TierUse::Hold(absl::string_view name, uint64_t bytes) {
  if (bytes == 0) return;
  held_ += bytes;
  if (held_ > peak_) {
    peak_ = held_;
    passing_ = {"", 0};
  }
  if (items_.empty() || items_.back().name != name) {
    items_.push_back({name, bytes});
  } else {
    items_.back().bytes += bytes;
  }
}

void TierUse::Pass(absl::string_view name, uint64_t bytes) {
  if (held_ + bytes <= peak_) return;
  peak_ = held_ + bytes;
  passing_ = {name, bytes};
}

bool StagePlacement::Fits(const TierLimits& limits) const {
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    if (uses[tier].peak_bytes() > limits[tier]) return false;
  }
  return true;
}

StagePlacement Place(const StageSizes& sizes, const Policy& policy,
                     const TierLimits& limits) {
  return Placer(sizes, policy, limits).Place();
}

absl::Status CheckFits(const StageSizes& sizes, const StagePlacement& placement,
                       const TierLimits& limits) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    const TierUse& use = placement.use(tier);
    const uint64_t limit = limits[static_cast<size_t>(tier)];
    if (use.peak_bytes() <= limit) continue;
    std::string table =
        absl::StrFormat("\n  %-34s %14d", "free of the budget", limit);
    for (const TierUse::Item& item : use.items()) {
      absl::StrAppendFormat(&table, "\n  %-34s %14d", item.name, item.bytes);
    }
    if (use.passing().bytes > 0) {
      absl::StrAppendFormat(&table, "\n  for a time, %-22s %14d",
                            use.passing().name, use.passing().bytes);
    }
    return ResourceExhausted(
        TierName(tier), " memory is short by ",
        BytesText(static_cast<double>(use.peak_bytes() - limit)),
        " for this stage, beyond all of the ",
        BytesText(static_cast<double>(limit)), " that are free; ",
        Advice(sizes, placement, tier), "; bytes:", table);
  }
  return absl::OkStatus();
}

}  // namespace sluice
