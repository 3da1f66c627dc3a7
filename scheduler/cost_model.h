#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_profile.h"
#include "common/policy.h"
#include "scheduler/model_shape.h"
#include "scheduler/workload.h"

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
  kBarrier,  // FlexGen's: a barrier after each micro-batch; the weights of the
             // next layer come during the first alone
  kNone,     // the sum
};

struct CostOptions {
  Overlap overlap = Overlap::kFull;
  // 0: the policy's num_microbatches share one expansion of quantized weights;
  // FlexGen expands for each.
  bool expand_per_micro_batch = false;
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
};

// Seconds on each resource for one step of `step`'s kind through the stage.
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
// For each tier that the machine has: what stays, and all work space of the
// runtime (see StageNeeds in runtime/exec/stage_memory.h).
std::vector<CapacityRow> Capacities(const StageCase& stage);

}  // namespace sluice
