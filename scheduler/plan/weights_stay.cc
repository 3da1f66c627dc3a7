#include "scheduler/plan/weights_stay.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_format.h"
#include "scheduler/plan/stage_case.h"

namespace sluice {

std::string WhyWeightsStay(const PlanRequest& request, const Plan& plan) {
  const StagePlan* most = nullptr;
  for (const StagePlan& stage : plan.stages) {
    const int32_t ranks = request.machines[stage.machine].ranks;
    if (ranks > 1 &&
        (most == nullptr || ranks > request.machines[most->machine].ranks)) {
      most = &stage;
    }
  }
  if (most == nullptr) return "";
  const MachineProfile& machine = request.machines[most->machine];
  const StageCase stage = MakeStageCase(request, most->machine, most->layers,
                                        most->policy, plan.block);
  const auto ranks = stage.Ranks();
  // Weights are gathered once for all micro-batches of a sweep.
  const double batches = plan.block.num_microbatches;
  const double rows = batches * plan.block.max_step_tokens;
  const double row_bytes = rows * ranks->work.exchanged_bytes;
  double weight_bytes = 0;
  for (const StageRanks::Kind& kind : ranks->kinds) {
    weight_bytes += kind.count * static_cast<double>(kind.sizes.layer_bytes) /
                    kind.sizes.num_layers();
  }
  weight_bytes *= (machine.ranks - 1.0) / machine.ranks;
  const ExchangeProfile& exchange = machine.exchange;
  const double stay =
      row_bytes / exchange.bytes_per_second +
      (batches * ranks->work.exchanges + ranks->work.expert_exchanges) *
          exchange.latency_seconds;
  const double gather =
      weight_bytes / exchange.bytes_per_second + exchange.latency_seconds;
  std::string text = absl::StrFormat(
      "weights stay with their ranks: in prefill steps of %.0f rows, each of "
      "%d ranks gets %.3g MB of a layer's rows from the others, %.3g ms; to "
      "gather the layer's weights would be %.3g MB, %.3g ms",
      rows, machine.ranks, row_bytes * 1e-6, stay * 1e3, weight_bytes * 1e-6,
      gather * 1e3);
  // Of a step's computing, attention left out.
  const StepShape step = {.micro_batches = batches,
                          .prefill_rows = rows,
                          .prefill_chunks = batches};
  const double seconds =
      StepCost(stage, step)[static_cast<size_t>(Resource::kDeviceCompute)].At(
          FractionsOf(most->policy));
  const double saved = std::max(0.0, stay - gather) * most->layers.size();
  absl::StrAppendFormat(&text,
                        ", and could save at most %.2g %% of such a step",
                        100 * saved / std::max(seconds, saved));
  return text;
}

}  // namespace sluice
