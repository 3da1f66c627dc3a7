#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/machine_profile.h"
#include "common/policy.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/stage_placement.h"
#include "scheduler/cost/resource.h"
#include "scheduler/cost/stage_ranks.h"
#include "scheduler/steps/workload.h"

// The costs of a stage: seconds on each resource for a step, and bytes on each
// tier, as linear forms of the policy's nine fractions, so that the same
// formulas are evaluated for a given policy and solved for the best one.

namespace sluice {

// Weights, KV cache, activations on device, host and disk:
// index 3 * kind + tier.
inline constexpr int kNumFractions = 9;
enum Kind { kWeights, kKv, kActivations };
enum TierIndex { kOnDevice, kOnHost, kOnDisk };
using Fractions = std::array<double, kNumFractions>;
Fractions FractionsOf(const Policy& policy);
void SetFractions(const Fractions& fractions, Policy* policy);

// constant + slope . fractions
struct LinearForm {
  double constant = 0;
  Fractions slope = {};
  double At(const Fractions& fractions) const;
  void Add(const LinearForm& other, double times = 1);
};
using ResourceForms = std::array<LinearForm, kNumResources>;

// The ways in which the resources' times make up a step's.
enum class Overlap {
  kFull,  // the longest: dependencies instead of barriers
  kNone,  // the sum
};

// The costs of a step, by what they are for.
struct StepParts {
  ResourceForms weights, kv, activations;  // moved
  ResourceForms attention;  // first halves of layers: with q, k, v and out
  ResourceForms rest;       // second halves: MLP; and what is no layer's
  ResourceForms link;
  double layers = 0;
  double micro_batches = 0;  // with rows
  double first_half = 0;     // the share of a layer's weights that it has
  ResourceForms Total() const;
};

// The defaults are what Sluice's runtime does; the rest is for predicting
// others, FlexGen above all.
struct CostOptions {
  Overlap overlap = Overlap::kFull;  // kNone for a policy without overlap
  // Quantized weights are dequantized for each micro-batch, as FlexGen does,
  // and not once for all of them.
  bool dequantize_per_micro_batch = false;
  // Prompts are attended on the device wherever their KV goes then.
  bool prefill_on_device = false;
  // Positions of K and V that are moved together, if any of them is.
  int32_t page_positions = kPageTokens;
  // The bytes of an element of activations on their way.
  double activation_bytes = 4;
  // The shares of the rates between host and device that KV in host memory
  // gets. FlexGen's is pageable: it goes through a buffer, there and back.
  double kv_in_share = 1;
  double kv_out_share = 1;
  // The number of times that activations are moved in a layer.
  double activation_turns = 1;
  // The seconds that a step takes with overlap where it is not `overlap` that
  // tells them; may be null.
  double (*seconds)(const StepParts& parts,
                    const Fractions& fractions) = nullptr;
};

// One stage on one machine.
struct StageCase {
  const DecoderSpec* model = nullptr;
  const MachineProfile* machine = nullptr;
  LayerRange layers;
  Policy policy;  // all but the fractions counts
  int32_t num_blocks = 1;
  int32_t longest = 0;  // positions of a sequence, for which KV is reserved
  int32_t max_model_len = 0;  // that a sequence may have; 0: longest
  CostOptions options;
  // The fractions that may be above 0. The embedding goes to disk with the
  // first byte of other weights: the forms are right for policies that put
  // weights there if these may, on the safe side for those that do not, and
  // wrong for others. See SupportOf.
  std::array<bool, kNumFractions> may_use = {true, true, true, true, true,
                                             true, true, true, true};

  // Its ranks, if somebody has them: all that is asked about a stage wants
  // them.
  std::shared_ptr<const StageRanks> ranks;

  bool MayUse(int kind, int tier) const { return may_use[3 * kind + tier]; }
  bool MayUseDisk() const;
  // Returns what a worker would be told, and makes of it for one of its ranks.
  StageShape Shape(int32_t rank = 0) const;
  std::shared_ptr<const StageRanks> Ranks() const;
  // Those of the leading rank.
  std::shared_ptr<const StageSizes> Sizes() const;
};
// Returns which fractions are above 0.
std::array<bool, kNumFractions> SupportOf(const Fractions& fractions);

// Seconds on each resource for one step of `step`'s kind through the stage. A
// number format that the profile has no rate for gets that of the nearest one.
// REQUIRES: model, machine and policy are checked; step.micro_batches > 0.
ResourceForms StepCost(const StageCase& stage, const StepShape& step);

// Seconds for such a step with given fractions: overlap considered. `busy`:
// where StepCost's at these fractions are added, `times` over; may be null.
double PriceStep(const StageCase& stage, const StepShape& step,
                 const Fractions& fractions, double times,
                 ResourceSeconds* busy);
// The same, where but the seconds are wanted.
double StepSeconds(const StageCase& stage, const StepShape& step,
                   const Fractions& fractions);

// Returns where a worker would put the stage with such fractions, and how much
// of its tiers that takes, to the byte.
RanksPlacement PlacementOf(const StageCase& stage, const Fractions& fractions);
// Returns what the stage may take of its machine's tiers: all, but for the
// buffers that a worker keeps on the device for links by NCCL, two of a
// micro-batch's payload for each neighbour, if its links may go by it.
TierLimits LimitsOf(const StageCase& stage);

// Returns the name of what a tier has: "host memory".
absl::string_view CapacityName(Tier tier);

// A capacity that must hold: bytes.At(fractions) <= limit.
struct CapacityRow {
  Tier tier = Tier::kHost;
  LinearForm bytes;
  double limit = 0;
};
// Returns, for each tier that the machine has, and the disk in any case, what
// it holds where the fractions are `at`, exactly, and, for fractions near them,
// what it holds but for rounding, and for tiers that begin or end to be used.
// Two rows for a tier that holds most while the stage is loaded, and rows for
// each kind of rank's device. `placement`: that of `at`.
std::vector<CapacityRow> CapacityRows(const StageCase& stage,
                                      const Fractions& at,
                                      const RanksPlacement& placement);

}  // namespace sluice
