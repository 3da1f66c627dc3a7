#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/cost/cost_model.h"
#include "scheduler/cost/stage_bytes.h"

// What FlexGen A.3 calls peak memory, but as the runtime's own plans count it
// (runtime/exec/stage_memory.cc, device_plan.cc): a policy that keeps within
// these rows loads and runs. Where those plans take the greater of two things,
// there is a row for each.

namespace sluice {
namespace {

enum Kind { kWeights, kKv, kActivations };
enum TierIndex { kOnDevice, kOnHost, kOnDisk };

constexpr double kDiskBlock = 4096;
constexpr double kSlack = 4096;     // StageMemory
constexpr double kKvSlack = 256;    // KvLayout::kSlackBytes
constexpr double kRounding = 4096;  // of an allocation on a device
constexpr double kStagingGroup = 8 << 20;
constexpr double kMostGranule = 16 * kDiskBlock;
constexpr double kLeastWindow = 4 << 20;  // ImageStore

// Of making an image with `work` beside its window.
double Packing(double work, double image) {
  return work + std::min(image, std::max(kLeastWindow, image / 16));
}

double RoundUpToDisk(double bytes) {
  return std::ceil(bytes / kDiskBlock) * kDiskBlock;
}

LinearForm Fraction(Kind kind, TierIndex tier, double times) {
  LinearForm form;
  form.slope[3 * kind + tier] = times;
  return form;
}

LinearForm Sum(std::initializer_list<LinearForm> forms) {
  LinearForm sum;
  for (const LinearForm& form : forms) sum.Add(form);
  return sum;
}

LinearForm Constant(double bytes) { return {.constant = bytes}; }

class CapacityRows {
 public:
  explicit CapacityRows(const StageCase& stage)
      : stage_(stage),
        policy_(stage.policy),
        machine_(*stage.machine),
        bytes_(StageBytesOf(stage)),
        layers_(stage.layers.size()),
        batches_(policy_.num_microbatches),
        streamable_(bytes_.layer * layers_ + bytes_.head),
        unit_(std::max(bytes_.layer, bytes_.head_first)),
        page_(bytes_.layer_page * layers_),
        has_device_(machine_.has_device()),
        weights_on_disk_(Uses(kWeights, kOnDisk)),
        kv_on_disk_(Uses(kKv, kOnDisk)),
        activations_on_disk_(Uses(kActivations, kOnDisk) && batches_ > 1) {}

  std::vector<CapacityRow> Rows() {
    if (has_device_) DeviceRows();
    HostRows();
    DiskRows();
    return std::move(rows_);
  }

 private:
  bool Uses(Kind kind, TierIndex tier) const {
    if (tier == kOnDisk && machine_.disk_bytes == 0) return false;
    return stage_.MayUse(kind, tier);
  }

  // PlacementGranule, and SlotExtra: the head of the part in which the cut
  // lies, and rounding.
  double Granule() const {
    double granule = kDiskBlock;
    while (granule < kMostGranule && granule * 512 <= unit_) granule *= 2;
    return granule;
  }
  double SlotExtra() const { return bytes_.part + 2 * Granule(); }

  // A third slot where it does not cost too much of the room that the rest
  // leaves; in doubt, too.
  double SlotsWithin(double room) const {
    return policy_.overlap && unit_ <= 1.01 * room / 18 ? 3 : 2;
  }

  // EvenLevel, if the share that these fractions add up to leaves: each unit
  // gives the same or all it has. The greatest of these forms.
  std::vector<LinearForm> Levels(std::initializer_list<TierIndex> tiers) const {
    LinearForm all;
    for (const TierIndex tier : tiers) {
      all.Add(Fraction(kWeights, tier, streamable_));
    }
    // Sizes of units, and how many have them.
    std::vector<std::pair<double, double>> units = {{bytes_.layer, layers_}};
    if (bytes_.head_sections > 0) {
      units.emplace_back(bytes_.head_last, 1);
      units.emplace_back(bytes_.head_other, bytes_.head_sections - 1);
    }
    std::sort(units.begin(), units.end());
    double left = layers_ + bytes_.head_sections;
    std::vector<LinearForm> levels;
    for (const auto& [size, count] : units) {
      if (count == 0) continue;
      levels.emplace_back().Add(all, 1 / left);
      // The larger ones, when these have given all they have.
      all.Add(Constant(-size * count));
      left -= count;
    }
    return levels;
  }

  // Rows for each of `a` with each of `b`, added to `base`.
  void Emit(const std::string& what, double limit, const LinearForm& base,
            const std::vector<LinearForm>& a,
            const std::vector<LinearForm>& b = {LinearForm()}) {
    for (const LinearForm& x : a) {
      for (const LinearForm& y : b) {
        rows_.push_back({what, Sum({base, x, y}), limit});
      }
    }
  }

  // KV pages on a tier, at least a sequence's: whole pages, `rounded` off.
  std::vector<LinearForm> KvOn(TierIndex tier, double rounded) const {
    if (!Uses(kKv, tier)) return {LinearForm()};
    const double all = bytes_.kv_pages() * page_;
    // All of it if there is no other tier.
    const bool shared =
        (tier != kOnDevice && has_device_ && Uses(kKv, kOnDevice)) ||
        (tier != kOnHost && Uses(kKv, kOnHost)) ||
        (tier != kOnDisk && kv_on_disk_);
    if (!shared) return {Fraction(kKv, tier, all)};
    const double least = static_cast<double>(bytes_.sequence_pages) * page_;
    const double stranded = StrandedKv(tier);
    return {
        Sum({Fraction(kKv, tier, all), Constant(rounded * page_ + stranded)}),
        Constant(least + stranded)};
  }
  // StageNeeds::stranded_pages: what the furthest tier has more.
  double StrandedKv(TierIndex tier) const {
    const bool device = has_device_ && Uses(kKv, kOnDevice);
    const bool host =
        Uses(kKv, kOnHost) || (!has_device_ && Uses(kKv, kOnDevice));
    if (tier != (kv_on_disk_ ? kOnDisk : kOnHost)) return 0;
    const int nearer = (device ? 1 : 0) + (host && kv_on_disk_ ? 1 : 0);
    return nearer * static_cast<double>(bytes_.sequence_pages - 1) * page_;
  }

  int64_t BatchPages() const {
    return std::min<int64_t>(policy_.gbs, bytes_.sequences) *
           bytes_.sequence_pages;
  }
  // Pages of a group that is staged.
  double GroupPages() const {
    const double group = std::floor(kStagingGroup / bytes_.layer_page);
    return std::clamp(
        group, static_cast<double>(bytes_.sequence_pages),
        static_cast<double>(std::max(BatchPages(), bytes_.sequence_pages)));
  }

  // PlanDevice.
  void DeviceRows() {
    const auto limit = static_cast<double>(machine_.device_memory_bytes);
    LinearForm base = Constant(bytes_.workspace + bytes_.expanded);
    // Activations: those that stay, a whole number of micro-batches, and slots
    // for the others, as many as these at most, but two.
    const double activation = RoundUpToDisk(bytes_.activations);
    const bool resident = Uses(kActivations, kOnDevice);
    const bool others =
        Uses(kActivations, kOnHost) || Uses(kActivations, kOnDisk);
    const double few = policy_.overlap ? 4 : 2;
    LinearForm stay;
    if (resident) {
      stay.Add(Fraction(kActivations, kOnDevice, batches_ * activation));
      if (others && batches_ > 1) stay.Add(Constant(activation / 2));
    }
    std::vector<LinearForm> activations = {stay};
    if (others && batches_ > few) {
      activations[0].Add(Constant(few * activation));
    } else if (others) {
      activations[0].Add(Constant(2 * activation));
      activations.push_back(Constant(batches_ * activation));
    }
    const bool off_device = Uses(kKv, kOnHost) || kv_on_disk_;
    if (off_device && policy_.attention_site == AttentionSite::kDevice) {
      const double slots = policy_.overlap ? 3 : 1;
      base.Add(Constant(
          slots * RoundUpToDisk(GroupPages() * bytes_.layer_page + kKvSlack)));
    }
    // What the rest leaves, at most.
    const double room =
        limit - base.constant -
        activation *
            (others ? std::max(2.0, std::min(few, batches_)) : batches_);
    std::vector<LinearForm> kv = {LinearForm()};
    if (Uses(kKv, kOnDevice)) {
      kv = KvOn(kOnDevice, 0.5);
      base.Add(Constant(kRounding));
    }
    if (Uses(kWeights, kOnDevice)) {
      base.Add(Fraction(kWeights, kOnDevice, streamable_));
      base.Add(
          Constant(Granule() + kRounding * (layers_ + bytes_.head_sections)));
    }
    std::vector<LinearForm> slots = {LinearForm()};
    if (Uses(kWeights, kOnHost) || weights_on_disk_) {
      const double count = SlotsWithin(room);
      slots = Levels({kOnHost, kOnDisk});
      for (LinearForm& slot : slots) {
        LinearForm all = Constant(count * (SlotExtra() + kRounding));
        all.Add(slot, count);
        slot = all;
      }
      // A slot holds a whole unit at most.
      if (!Uses(kWeights, kOnDevice)) {
        slots = {Constant(count * RoundUpToDisk(unit_))};
      }
    }
    for (const LinearForm& form : activations) {
      Emit("device memory", limit, Sum({base, form}), slots, kv);
    }
  }

  // PlanStageMemory, and what is charged before it.
  void HostRows() {
    const auto limit = static_cast<double>(machine_.host_memory_bytes);
    LinearForm base =
        Constant(has_device_ ? bytes_.host_workspace : bytes_.workspace);
    // ActivationStager: a share of each micro-batch stays, and three slots. A
    // device's micro-batches begin and end here, too.
    double least_activations = batches_ * bytes_.activations;
    if (activations_on_disk_) {
      const double rounding = batches_ * kDiskBlock / 2;
      for (const TierIndex tier : {kOnDevice, kOnHost}) {
        base.Add(Fraction(kActivations, tier, batches_ * bytes_.activations));
      }
      const double staging = 3 * RoundUpToDisk(bytes_.activations);
      base.Add(Constant(rounding + staging));
      least_activations = staging;
    } else {
      base.Add(Constant(batches_ * bytes_.activations));
    }
    const bool table_on_disk = weights_on_disk_ && bytes_.table_on_disk();
    const double embedding =
        table_on_disk ? bytes_.embedding_rows : bytes_.embedding;
    const double expanded = has_device_ ? 0 : bytes_.expanded;
    // On its way to a device a unit is in host memory as a whole.
    const double loading = has_device_ && Uses(kWeights, kOnDevice) ? unit_ : 0;
    const double fixed = embedding + expanded + loading + kSlack;
    const double before = base.constant;
    base.Add(Constant(fixed));

    // Weights that stay.
    LinearForm weights = Fraction(kWeights, kOnHost, streamable_);
    if (!has_device_) {
      weights.Add(Fraction(kWeights, kOnDevice, streamable_));
    }
    base.Add(weights);
    const std::vector<LinearForm> levels =
        weights_on_disk_ ? Levels({kOnDisk})
                         : std::vector<LinearForm>{LinearForm()};

    // While packing: the table, the last layer, the head, each beside what lies
    // in memory of the units before.
    const std::string what = "host memory";
    rows_.push_back(
        {what,
         Constant(before + expanded +
                  (table_on_disk ? embedding + Packing(bytes_.table_packing,
                                                       bytes_.embedding)
                                 : bytes_.embedding + bytes_.table_packing)),
         limit});
    // Of an image, its window instead of what will stay of it; if it goes to a
    // device, all of it, as `loading` says.
    const auto pack = [&](double work, double unit, double to_come) {
      const double window = !weights_on_disk_ ? -to_come
                            : loading > 0     ? Packing(0, unit)
                                              : Packing(0, unit) - unit;
      Emit(what, limit, Sum({base, Constant(work + window)}), levels);
    };
    pack(bytes_.layer_packing, bytes_.layer, has_device_ ? 0 : bytes_.head);
    if (bytes_.head_sections > 0) {
      pack(bytes_.head_packing, bytes_.head_first, 0);
      pack(bytes_.head_packing, bytes_.head_last, 0);
    }

    std::vector<LinearForm> slots = {LinearForm()};
    if (weights_on_disk_) {
      const double room =
          limit - (has_device_ ? bytes_.host_workspace : bytes_.workspace) -
          (least_activations + embedding + expanded + loading + kSlack);
      // Beside a device that has a share of each unit the units are smaller.
      const bool smaller = has_device_ && Uses(kWeights, kOnDevice);
      const double count = policy_.overlap && smaller ? 3 : SlotsWithin(room);
      slots = levels;
      for (LinearForm& slot : slots) {
        LinearForm all = Constant(count * SlotExtra());
        all.Add(slot, count);
        slot = all;
      }
      // With nothing but the disk, a slot is a unit.
      if (!Uses(kWeights, kOnHost) && !Uses(kWeights, kOnDevice)) {
        slots = {Constant(count * unit_)};
      }
    }
    std::vector<LinearForm> kv = KvOn(kOnHost, 1.5);
    if (!has_device_) {
      // One memory, under two names.
      const bool here = Uses(kKv, kOnHost) || Uses(kKv, kOnDevice);
      kv = {LinearForm()};
      if (here) {
        LinearForm all;
        for (const TierIndex tier : {kOnDevice, kOnHost}) {
          all.Add(Fraction(kKv, tier, bytes_.kv_pages() * page_));
        }
        kv = {all};
        if (kv_on_disk_) {
          kv[0].Add(Constant(page_));
          kv.push_back(
              Constant(static_cast<double>(bytes_.sequence_pages) * page_));
        }
      }
    }
    if (kv_on_disk_) {
      // KvStager::StagingBytes.
      base.Add(Constant(5 * GroupPages() * bytes_.layer_page + kDiskBlock));
    }
    Emit(what, limit, base, slots, kv);
  }

  void DiskRows() {
    const std::string what = "disk space";
    const auto limit = static_cast<double>(machine_.disk_bytes);
    if (limit == 0) {
      LinearForm any;
      for (const Kind kind : {kWeights, kKv, kActivations}) {
        any.Add(Fraction(kind, kOnDisk, 1));
      }
      rows_.push_back({what, any, 0});
      return;
    }
    LinearForm base;
    // Images are whole, however little of them is read.
    if (weights_on_disk_) {
      double images = layers_ * bytes_.layer_file + bytes_.head_file;
      if (bytes_.table_on_disk()) images += bytes_.embedding_file;
      base.Add(Constant(images));
    }
    if (activations_on_disk_) {
      base.Add(Fraction(kActivations, kOnDisk, batches_ * bytes_.activations));
      base.Add(Constant(batches_ * 1.5 * kDiskBlock));
    }
    Emit(what, limit, base, {LinearForm()}, KvOn(kOnDisk, 1));
  }

  const StageCase& stage_;
  const Policy& policy_;
  const MachineProfile& machine_;
  const StageBytes bytes_;
  const double layers_;
  const double batches_;
  const double streamable_;
  const double unit_;
  const double page_;  // of all layers
  const bool has_device_;
  const bool weights_on_disk_, kv_on_disk_, activations_on_disk_;
  std::vector<CapacityRow> rows_;
};

}  // namespace

std::vector<CapacityRow> Capacities(const StageCase& stage) {
  return CapacityRows(stage).Rows();
}

}  // namespace sluice
