#include "coordinator/cluster/stage_assignment.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "scheduler/plan/partition.h"

namespace sluice {
namespace {

int Overlap(const LayerRange& a, const LayerRange& b) {
  return std::max(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

// Gives each range to one of `workers`. REQUIRES: there are enough.
std::vector<StageAssignment> Assign(const std::vector<LayerRange>& ranges,
                                    std::vector<const WorkerView*> workers) {
  std::sort(workers.begin(), workers.end(),
            [](const WorkerView* a, const WorkerView* b) {
              return std::tie(a->name, a->id) < std::tie(b->name, b->id);
            });
  struct Candidate {
    int overlap;
    size_t stage;
    size_t worker;
  };
  std::vector<Candidate> candidates;
  for (size_t w = 0; w < workers.size(); ++w) {
    for (size_t s = 0; s < ranges.size(); ++s) {
      const int overlap = Overlap(workers[w]->loaded, ranges[s]);
      if (overlap > 0) candidates.push_back({overlap, s, w});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.overlap > b.overlap;
                   });
  std::vector<StageAssignment> stages(ranges.size());
  std::vector<bool> stage_taken(ranges.size());
  std::vector<bool> worker_taken(workers.size());
  const auto take = [&](size_t stage, size_t worker) {
    stages[stage] = {workers[worker]->id, ranges[stage]};
    stage_taken[stage] = worker_taken[worker] = true;
  };
  for (const Candidate& c : candidates) {
    if (!stage_taken[c.stage] && !worker_taken[c.worker]) {
      take(c.stage, c.worker);
    }
  }
  size_t next = 0;
  for (size_t s = 0; s < ranges.size(); ++s) {
    if (stage_taken[s]) continue;
    while (worker_taken[next]) ++next;
    take(s, next);
  }
  return stages;
}

}  // namespace

PlanDecision DecidePlan(const ClusterView& view) {
  PlanDecision decision;
  const auto here = static_cast<int64_t>(view.workers.size());
  if (here < view.min_workers) {
    decision.detail =
        view.registered > here
            ? absl::StrCat("waiting for workers: ", view.registered,
                           " registered, ", here, " of ", view.min_workers,
                           " in the pipeline")
            : absl::StrCat("waiting for workers: ", here, " of ",
                           view.min_workers, " registered");
    return decision;
  }
  std::vector<const WorkerView*> usable;
  std::vector<const WorkerView*> failed;
  std::vector<const WorkerView*> left_out;
  for (const WorkerView& worker : view.workers) {
    if (worker.out_for > absl::ZeroDuration()) {
      left_out.push_back(&worker);
    } else {
      (worker.failure.empty() ? usable : failed).push_back(&worker);
    }
  }
  const auto min_workers = static_cast<size_t>(view.min_workers);
  const bool enough = usable.size() >= min_workers;
  if (!enough) usable.insert(usable.end(), failed.begin(), failed.end());
  if (usable.size() < min_workers) {
    std::stable_sort(left_out.begin(), left_out.end(),
                     [](const WorkerView* a, const WorkerView* b) {
                       return a->out_for < b->out_for;
                     });
    usable.insert(usable.end(), left_out.begin(),
                  left_out.begin() + (min_workers - usable.size()));
  }
  const std::vector<LayerRange> ranges =
      SplitEvenly(view.num_layers, static_cast<int>(usable.size()));
  const bool settled = view.since_change >= view.settle_time;
  if (view.plan_stages > 0) {
    if (static_cast<int64_t>(ranges.size()) <= view.plan_stages || !settled ||
        !enough) {
      decision.action = PlanDecision::Action::kKeep;
      return decision;
    }
  } else if (!settled || view.back_off > absl::ZeroDuration()) {
    decision.detail =
        view.last_failure.empty() ? "planning" : view.last_failure;
    return decision;
  }
  decision.action = PlanDecision::Action::kPlan;
  decision.stages = Assign(ranges, std::move(usable));
  return decision;
}

}  // namespace sluice
