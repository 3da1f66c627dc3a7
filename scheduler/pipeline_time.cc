#include "scheduler/pipeline_time.h"

#include <algorithm>
#include <map>

namespace sluice {
namespace {

double BusiestMachine(absl::Span<const PipelineStage> stages) {
  std::map<int, double> machines;
  double busiest = 0;
  for (const PipelineStage& stage : stages) {
    double& seconds = machines[stage.machine];
    seconds += stage.seconds;
    busiest = std::max(busiest, seconds);
  }
  return busiest;
}

double WaySeconds(absl::Span<const PipelineStage> stages) {
  double way = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    way += stages[s].seconds;
    if (s + 1 < stages.size()) way += stages[s].hop_seconds;
  }
  return way;
}

}  // namespace

double RoundSeconds(absl::Span<const PipelineStage> stages, int num_blocks,
                    double step_seconds) {
  return std::max(num_blocks * BusiestMachine(stages),
                  WaySeconds(stages) + step_seconds);
}

double FillSeconds(absl::Span<const PipelineStage> stages, int num_blocks) {
  const double busiest = BusiestMachine(stages);
  return std::max(
      0.0, std::min(WaySeconds(stages) - busiest, (num_blocks - 1) * busiest));
}

double JobSeconds(const std::vector<PipelineStage>& stages,
                  const std::vector<std::vector<double>>& seconds,
                  const std::vector<double>& rounds, int num_blocks,
                  double step_seconds) {
  std::vector<PipelineStage> present = stages;
  std::vector<PipelineStage> average = stages;
  for (PipelineStage& stage : average) stage.seconds = 0;
  double total = 0;
  double all_rounds = 0;
  for (const double r : rounds) all_rounds += r;
  if (all_rounds <= 0) return 0;
  for (size_t k = 0; k < rounds.size(); ++k) {
    for (size_t s = 0; s < stages.size(); ++s) {
      present[s].seconds = seconds[s][k];
      average[s].seconds += seconds[s][k] * rounds[k] / all_rounds;
    }
    total += rounds[k] * RoundSeconds(present, num_blocks, step_seconds);
  }
  return total + FillSeconds(average, num_blocks);
}

}  // namespace sluice
