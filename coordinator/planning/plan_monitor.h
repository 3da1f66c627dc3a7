#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/machine_profile.h"
#include "coordinator/planning/phase_rows.h"
#include "scheduler/cost/resource.h"

namespace sluice {

struct Plan;

// The totals of a worker's resources since it began.
struct ResourceTotals {
  ResourceSeconds busy_seconds = {};
  std::array<double, kNumResources> bytes = {};  // of resources that move bytes
};

// Compares the use of resources by a plan's stages with its prediction, and
// tells when profiles must have been wrong. Pure: the same observations give
// the same answers.
class PlanMonitor {
 public:
  // Begins a plan. `machines` are its stages', in order. `rows` are those of
  // the workload that it was made for.
  void Start(const Plan& plan, std::vector<MachineProfile> machines,
             const PhaseRows& rows);
  void Stop();
  bool active() const { return !stages_.empty(); }

  // Takes a worker's totals; counting begins with the first ones.
  void Observe(int stage, const ResourceTotals& totals);
  // Takes rows computed, and wall seconds with work, since Start; and the rows
  // of steps in flight, which the stages may have computed some of.
  void Progress(const PhaseRows& rows, double seconds, double in_flight);

  // Wall seconds with work since Start.
  double seconds() const { return seconds_; }
  // The prediction for the rows so far; 0 for a stage that the plan lacks.
  double PredictedSeconds(int stage, Resource resource) const;
  double MeasuredSeconds(int stage, Resource resource) const;

  // Returns one corrected machine for each stage, if any profile is off: with
  // the measured rates of disk, links and computing. nullopt: the prediction
  // holds so far, or too little was seen.
  std::optional<std::vector<MachineProfile>> Refit() const;

 private:
  struct Stage {
    MachineProfile machine;
    int32_t ranks = 1;
    ResourceSeconds predicted = {};  // seconds per row
    std::optional<ResourceTotals> first;
    ResourceTotals last;
  };

  // Whether the time of computing may be judged by the rows so far.
  bool IsTypical() const;
  // The measured speed relative to the profile; 1 if it is about right or
  // unknown.
  double Speed(const Stage& stage, Resource resource) const;

  std::vector<Stage> stages_;
  PhaseRows planned_rows_, rows_;
  double most_in_flight_ = 0;
  double seconds_ = 0;
};

// Makes the machine's disk, links or computing `speed` times as fast.
void ScaleResource(Resource resource, double speed, MachineProfile* machine);

}  // namespace sluice
