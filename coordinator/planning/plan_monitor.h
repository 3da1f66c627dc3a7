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
  struct Options {
    // Off by more than so many times: the profile is wrong.
    double tolerance = 1.3;
    // Before that, so much must have been seen of a resource,
    double least_busy_seconds = 3;
    // and so much of the job's time it must take, by prediction or in truth.
    double least_share = 0.3;
    // Of the plan's rows must be computed before the cores are judged: their
    // prediction is an average over prompts and answers, and prompts come
    // first.
    double least_rows_share = 0.2;
  };

  PlanMonitor() : PlanMonitor(Options()) {}
  explicit PlanMonitor(const Options& options) : options_(options) {}

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

  const Options options_;
  std::vector<Stage> stages_;
  double planned_rows_ = 0;
  double rows_ = 0;
  double seconds_ = 0;
};

// The same machine with its disk, wires or computing so many times as fast.
void ScaleResource(Resource resource, double speed, MachineProfile* machine);

}  // namespace sluice
