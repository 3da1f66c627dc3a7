#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_profile.h"
#include "common/policy.h"
#include "scheduler/cost/model_shape.h"
#include "scheduler/steps/workload.h"

// What a stage costs: seconds on each resource for a step, and bytes on each
// tier, as linear forms of the policy's nine fractions, so that the same
// formulas are evaluated for a given policy and solved for the best one.

namespace sluice {

enum class Resource {
  kDiskRead,
  kDiskWrite,
  kHostToDevice,
  kDeviceToHost,
  kDeviceCompute,  // of a CPU-only worker: its cores
  kHostCompute,    // attention beside a device
  kLink,           // to the next stage
};
inline constexpr int kNumResources = 7;
absl::string_view ResourceName(Resource resource);  // "disk read"

// Weights, KV cache, activations on device, host and disk:
// index 3 * kind + tier.
inline constexpr int kNumFractions = 9;
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
using ResourceSeconds = std::array<double, kNumResources>;

// How the resources' times make up a step's.
enum class Overlap {
  kFull,     // the longest: dependencies instead of barriers
  kBarrier,  // FlexGen's (section 4.2, figure 4): a barrier after each
             // micro-batch of each half of a layer (attention and MLP are
             // layers of their own there); the weights of the next half come
             // during the first micro-batch alone; device and host compute in
             // turn
  kNone,     // the sum
};

// The defaults are what Sluice's runtime does; the rest is for predicting
// others, FlexGen above all.
struct CostOptions {
  Overlap overlap = Overlap::kFull;  // kNone for a policy without overlap
  // Quantized weights are expanded for each micro-batch, as FlexGen does, and
  // not once for all of them.
  bool expand_per_micro_batch = false;
  // Prompts are attended on the device wherever their KV goes then.
  bool prefill_on_device = false;
  // Positions of K and V that are moved together, if any of them is.
  int32_t page_positions = 32;
  // Of an element of activations on their way.
  double activation_bytes = 4;
  // What KV that lives in host memory gets of the rates between host and
  // device. FlexGen's is pageable: it goes through a buffer, there and back.
  double kv_in_share = 1;
  double kv_out_share = 1;
};

// One stage on one machine.
struct StageCase {
  const ModelShape* model = nullptr;
  const MachineProfile* machine = nullptr;
  LayerRange layers;
  Policy policy;  // all but the fractions counts
  int32_t num_blocks = 1;
  int32_t longest = 0;  // positions of a sequence, for which KV is reserved
  CostOptions options;
  // Which fractions may be above 0. A tier that is used at all has costs that
  // do not depend on how much (slots for streamed weights, staging for KV, the
  // embedding goes to disk with the first byte of other weights): the forms
  // are right for policies that use all of these, on the safe side for those
  // that use fewer, and wrong for others. See SupportOf.
  std::array<bool, kNumFractions> may_use = {true, true, true, true, true,
                                             true, true, true, true};

  bool MayUse(int kind, int tier) const { return may_use[3 * kind + tier]; }
};
// Those that are above 0.
std::array<bool, kNumFractions> SupportOf(const Fractions& fractions);

// Seconds on each resource for one step of `step`'s kind through the stage. A
// number format that the profile has no rate for gets that of the nearest one.
// REQUIRES: model, machine and policy are checked; step.micro_batches > 0.
ResourceForms StepCost(const StageCase& stage, const StepShape& step);

// Seconds for such a step with given fractions: overlap considered.
double StepSeconds(const StageCase& stage, const StepShape& step,
                   const Fractions& fractions);

// What must fit: bytes.At(fractions) <= limit.
struct CapacityRow {
  std::string what;  // "host memory"
  LinearForm bytes;
  double limit = 0;
};
// For each tier that the machine has, and the disk in any case: what stays, and
// all work space of the runtime (see stage_bytes.h). What is the greatest of
// several linear forms has a row for each, all of the same name: a tier holds
// what the largest of its rows says.
std::vector<CapacityRow> Capacities(const StageCase& stage);

}  // namespace sluice
