#include "tests/bench/paper/scaling.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "scheduler/plan/partition.h"
#include "scheduler/plan/plan_builder.h"
#include "scheduler/plan/stage_case.h"
#include "scheduler/simulate/simulator.h"
#include "tests/bench/paper/fitted.h"

namespace sluice {
namespace {

// Many rounds, so that starts and ends do not matter; a multiple of all blocks.
constexpr int64_t kRequests = 23040;
// 10 Gbit/s between the machines, as far as TCP gets. The cost model counts 4
// bytes an element, FlexGen sends 2.
constexpr double kLinkBytes = 1.2e9;
constexpr double kLinkSeconds = 1e-4;

PublishedRun Run(const char* model, int32_t gbs, int32_t num_microbatches,
                 TierFractions weights, TierFractions kv,
                 TierFractions activations) {
  PublishedRun run;
  run.hardware = "t4";
  run.model = model;
  run.prompt = 512;
  run.output = 32;
  run.gbs = gbs;
  run.num_microbatches = num_microbatches;
  run.weights = weights;
  run.kv_cache = kv;
  run.activations = activations;
  run.host_attention = kv.device < 1;
  return run;
}

PlanRequest RequestOf(const DecoderSpec& model, const PublishedRun& run,
                      int machines, double link_bytes) {
  PlanRequest request;
  request.model = model;
  const MachineProfile machine =
      PaperMachine(run.hardware, FittedFor(run.hardware));
  for (int m = 0; m < machines; ++m) {
    request.machines.push_back(machine);
    request.machines.back().name = request.machines.back().machine =
        absl::StrCat(run.hardware, "-", m);
    request.machines.back().links = {{"", link_bytes, kLinkSeconds}};
  }
  return request;
}

}  // namespace

std::vector<ScalingCase> ScalingCases() {
  constexpr TierFractions kDevice{1, 0, 0}, kHost{0, 1, 0}, kDisk{0, 0, 1};
  return {{Run("opt-6.7b", 2, 1, kDevice, kDevice, kDevice),
           Run("opt-6.7b", 24, 1, kDevice, kDevice, kDevice),
           false,
           {25.26, 38.28},
           {201.12, 764.65}},
          {Run("opt-30b", 48, 3, {0.2, 0.8, 0}, kHost, kHost),
           Run("opt-30b", 64, 3, {0.2, 0.8, 0}, kHost, kHost),
           false,
           {7.32, 11.52},
           {23.61, 48.94}},
          {Run("opt-175b", 32, 8, {0, 0.5, 0.5}, kDisk, kHost),
           Run("opt-175b", 40, 1, kHost, kHost, kHost),
           true,
           {0.69, 0.83},
           {2.33, 3.86}}};
}

absl::StatusOr<ScalingPrediction> PredictScaling(const PublishedRun& run,
                                                 int machines, bool pageable) {
  SLUICE_ASSIGN_OR_RETURN(const DecoderSpec model, PaperModel(run.model));
  PlanRequest request = RequestOf(model, run, machines, 2 * kLinkBytes);
  const FittedConstants constants = FittedFor(run.hardware);
  if (pageable) {
    for (MachineProfile& machine : request.machines) {
      machine.host_to_device_bytes_per_second = constants.kv_in_bytes;
    }
  }
  request.options = FlexGenOptions(request.machines[0], constants);
  request.refill = false;
  const BlockShape block = {.gbs = run.gbs,
                            .num_microbatches = run.num_microbatches,
                            .num_blocks = machines,
                            .max_step_tokens = run.gbs * run.prompt,
                            .refill = false};
  std::vector<StageChoice> stages;
  for (const LayerRange& layers : SplitEvenly(model.num_layers, machines)) {
    stages.push_back(
        {static_cast<int>(stages.size()), layers, PolicyOf(run, model)});
  }
  const int64_t sequences = int64_t{run.block()} * machines;
  const auto simulate = [&](int32_t output) {
    request.workload = {{{run.prompt, output, sequences}}};
    return Simulate(request,
                    BuildPlan(request, stages, block, JobSteps(request, block)),
                    {});
  };
  SLUICE_ASSIGN_OR_RETURN(const SimulationResult prefill, simulate(1));
  SLUICE_ASSIGN_OR_RETURN(const SimulationResult all, simulate(run.output));
  ScalingPrediction prediction;
  prediction.figures = {all.tokens_per_second,
                        static_cast<double>(all.tokens - prefill.tokens) /
                            (all.seconds - prefill.seconds)};
  for (const SimulatedStage& stage : all.stages) {
    prediction.busy += stage.utilization / machines;
  }
  return prediction;
}

absl::StatusOr<Plan> PlanScaling(const PublishedRun& run, int machines) {
  SLUICE_ASSIGN_OR_RETURN(const DecoderSpec model, PaperModel(run.model));
  PlanRequest request = RequestOf(model, run, machines, kLinkBytes);
  request.workload = {{{run.prompt, run.output, kRequests}}};
  SLUICE_ASSIGN_OR_RETURN(const PlanResult result, MakePlan(request));
  return result.best;
}

}  // namespace sluice
