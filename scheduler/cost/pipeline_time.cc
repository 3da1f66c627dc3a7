#include "scheduler/cost/pipeline_time.h"

#include <algorithm>
#include <cmath>
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

struct Kind {
  double share = 0;
  double busiest = 0;  // seconds of the busiest machine for one step
  double way = 0;      // of one step through all stages and back
};

// Seconds of a round whose steps are of random kinds, on average.
double RandomRound(std::vector<Kind> kinds, double num_blocks) {
  std::sort(kinds.begin(), kinds.end(),
            [](const Kind& a, const Kind& b) { return a.way < b.way; });
  double round = 0;
  double below = 0;    // share of the kinds before
  double busiest = 0;  // of the kinds up to the present one, summed
  for (const Kind& kind : kinds) {
    const double up_to = std::min(1.0, below + kind.share);
    if (up_to <= 0) continue;
    busiest += kind.share * kind.busiest;
    const double slowest =
        std::pow(up_to, num_blocks) - std::pow(below, num_blocks);
    round +=
        slowest *
        std::max(kind.busiest + (num_blocks - 1) * busiest / up_to, kind.way);
    below = up_to;
  }
  return round;
}

}  // namespace

double RoundSeconds(absl::Span<const PipelineStage> stages, double num_blocks,
                    double step_seconds) {
  return std::max(num_blocks * BusiestMachine(stages),
                  WaySeconds(stages) + step_seconds);
}

double FillSeconds(absl::Span<const PipelineStage> stages, double num_blocks) {
  const double busiest = BusiestMachine(stages);
  return std::max(
      0.0, std::min(WaySeconds(stages) - busiest, (num_blocks - 1) * busiest));
}

double JobSeconds(const std::vector<PipelineStage>& stages,
                  const std::vector<std::vector<double>>& seconds,
                  const std::vector<double>& rounds, int num_blocks,
                  double step_seconds, double mixing,
                  const std::vector<double>& in_flight) {
  const auto together = [&](size_t k) {
    return in_flight.empty() ? num_blocks : in_flight[k];
  };
  double all_rounds = 0, all_steps = 0;
  for (size_t k = 0; k < rounds.size(); ++k) {
    all_rounds += rounds[k];
    all_steps += rounds[k] * together(k);
  }
  if (all_rounds <= 0) return 0;
  std::vector<Kind> kinds;
  std::vector<PipelineStage> average = stages;
  for (PipelineStage& stage : average) stage.seconds = 0;
  double in_phases = 0;
  for (size_t k = 0; k < rounds.size(); ++k) {
    std::vector<PipelineStage> present = stages;
    for (size_t s = 0; s < stages.size(); ++s) {
      present[s].seconds = seconds[s][k];
      average[s].seconds += seconds[s][k] * rounds[k] / all_rounds;
    }
    in_phases += rounds[k] * RoundSeconds(present, together(k), step_seconds);
    kinds.push_back({.share = rounds[k] / all_rounds,
                     .busiest = BusiestMachine(present),
                     .way = WaySeconds(present) + step_seconds});
  }
  double total = in_phases;
  if (mixing > 0 && in_phases > 0) {
    const double at_random =
        all_rounds * RandomRound(kinds, all_steps / all_rounds);
    total *= std::pow(at_random / in_phases, mixing);
  }
  return total + FillSeconds(average, all_steps / all_rounds);
}

}  // namespace sluice
