#pragma once

#include <optional>
#include <vector>

#include "common/machine_profile.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// What a worker's resources did since it began.
struct ResourceTotals {
  ResourceSeconds busy_seconds = {};
  std::array<double, kNumResources> bytes = {};  // of those that move bytes
};

// Puts what a plan's stages do beside what was predicted, and says when the
// profiles must have been wrong. Pure: the same observations give the same
// answers.
class PlanMonitor {
 public:
  // A plan begins. `machines`: of its stages, in their order. `rows`: prompt
  // and generated tokens of the workload that it was made for.
  void Start(const Plan& plan, std::vector<MachineProfile> machines,
             double rows);
  void Stop();
  bool active() const { return !stages_.empty(); }

  // The worker's totals; the first ones are where counting begins.
  void Observe(int stage, const ResourceTotals& totals);
  // Tokens computed, and wall seconds with work, since Start.
  void Progress(double rows, double seconds);

  // Of the rows so far; 0 for a stage that the plan does not have.
  double PredictedSeconds(int stage, Resource resource) const;
  double MeasuredSeconds(int stage, Resource resource) const;

  // The machines as they turned out, one a stage, if any is off: rates of disk
  // and wires as measured, computing as fast as measured. nullopt: the
  // prediction holds so far, or too little was seen.
  std::optional<std::vector<MachineProfile>> Refit() const;

 private:
  struct Stage {
    MachineProfile machine;
    ResourceSeconds predicted = {};  // a row
    std::optional<ResourceTotals> first;
    ResourceTotals last;
  };

  // How many times as fast as the profile says; 1 if it is about right or
  // cannot be told.
  double Speed(const Stage& stage, Resource resource) const;

  std::vector<Stage> stages_;
  double planned_rows_ = 0;
  double rows_ = 0;
  double seconds_ = 0;
};

// The same machine with its disk, wires or computing so many times as fast.
void ScaleResource(Resource resource, double speed, MachineProfile* machine);

}  // namespace sluice
