#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/cost/cost_model.h"
#include "scheduler/plan/plan.h"
#include "scheduler/steps/workload.h"

// The best policy of one stage for given blocks: FlexGen's policy search
// (section 4.3, equation 1) for each choice of what is outside its linear
// program.

namespace sluice {

// One stage of a request, with a block shape and formats.
struct StageQuestion {
  const PlanRequest* request = nullptr;
  int machine = 0;
  LayerRange layers;
  BlockShape block;
  WeightFormat weights = WeightFormat::kFull;
  WeightFormat kv = WeightFormat::kFull;
  absl::Span<const StepShape> steps;  // of the whole job
};

struct StageAnswer {
  bool fits = false;
  // These are set if it fits.
  Policy policy;                     // as StagePlan::policy
  double seconds = 0;                // of all steps
  std::vector<double> step_seconds;  // of one step of each kind
};

// Solves one linear program for each attention site, number of threads and
// pattern of tiers that may hold anything (a tier that holds nothing wants no
// work space either), as far as bounds leave them open:
//
//   minimise   sum over kinds of steps k of count_k t_k
//   where      t_k >= seconds of resource r for a step of kind k, for each r
//              (Overlap::kNone: the sum of them, and no t_k)
//              the fractions of weights, KV cache and activations add up to 1
//              each capacity holds
//
// If all fits on the nearest tier, there it is, whatever else there might be
// gained. Among equals data stays on the device before the host, and there
// before the disk, and wires are used least: small costs see to it, together
// worth less than a hundredth of the time. A latency bound needs no row: for a
// given block it bounds what is minimised.
//
// Fractions come in hundredths of a per cent, so that they can be printed and
// read back. Adds the programs solved to *programs. kInternal: Solve() failed.
absl::StatusOr<StageAnswer> SolveStage(const StageQuestion& question,
                                       int64_t* programs);

// Seconds that no answer can be below: each resource for itself, without
// capacities. Costs no linear program.
double StageBound(const StageQuestion& question);

// The capacity that lacks most where a stage, in shares of its limits, lacks
// least to fit.
struct StageShortage {
  std::string what;
  double missing_bytes = 0;  // 0: it fits
  double limit = 0;
};
absl::StatusOr<StageShortage> ShortageOf(const StageQuestion& question);

// The bytes that one capacity needs more, all others as they are, for the stage
// to fit: for each where that is possible at all.
struct CapacityRemedy {
  std::string what;
  double missing_bytes = 0;
};
absl::StatusOr<std::vector<CapacityRemedy>> RemediesOf(
    const StageQuestion& question);

}  // namespace sluice
