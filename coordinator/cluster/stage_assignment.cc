#include "coordinator/cluster/stage_assignment.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/links/link_chain.h"
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

using Workers = std::vector<const WorkerView*>;

Workers ChainOf(const ClusterView& view, const Workers& workers) {
  if (!view.broken) return workers;
  Workers chain;
  for (const size_t w : LongestChain(workers.size(), [&](size_t a, size_t b) {
         return view.broken(workers[a]->id, workers[b]->id);
       })) {
    chain.push_back(workers[w]);
  }
  return chain;
}

// Gives each range to one of a chain's workers, in an order without broken
// links.
std::vector<StageAssignment> AssignChain(const ClusterView& view,
                                         const std::vector<LayerRange>& ranges,
                                         Workers chain) {
  if (!view.broken) return Assign(ranges, std::move(chain));
  chain.resize(ranges.size());
  std::vector<StageAssignment> stages = Assign(ranges, chain);
  const std::vector<size_t> order =
      LongestChain(stages.size(), [&](size_t a, size_t b) {
        return view.broken(stages[a].worker, stages[b].worker);
      });
  const std::vector<StageAssignment> liked = stages;
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s].worker =
        order.size() == stages.size() ? liked[order[s]].worker : chain[s]->id;
  }
  return stages;
}

// Those that failed and are left out take part as far as the usable ones need
// them: fewer than `min`, or without an order of so many. Returns the workers
// that take part, at least `min` or none.
Workers TakePart(const ClusterView& view, Workers usable, const Workers& failed,
                 Workers left_out) {
  const auto min = static_cast<size_t>(view.min_workers);
  Workers chain = ChainOf(view, usable);
  if (chain.size() >= min) return chain;
  std::stable_sort(left_out.begin(), left_out.end(),
                   [](const WorkerView* a, const WorkerView* b) {
                     return a->out_for < b->out_for;
                   });
  usable.insert(usable.end(), failed.begin(), failed.end());
  for (size_t i = 0;; ++i) {
    if (usable.size() >= min) {
      chain = ChainOf(view, usable);
      if (chain.size() >= min) return chain;
    }
    if (i == left_out.size()) return {};
    usable.push_back(left_out[i]);
  }
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
  Workers usable;
  Workers failed;
  Workers left_out;
  for (const WorkerView& worker : view.workers) {
    if (worker.out_for > absl::ZeroDuration()) {
      left_out.push_back(&worker);
    } else {
      (worker.failure.empty() ? usable : failed).push_back(&worker);
    }
  }
  const auto min_workers = static_cast<size_t>(view.min_workers);
  const bool enough = usable.size() >= min_workers;
  const bool settled = view.since_change >= view.settle_time;
  const auto more = [&](const Workers& workers) {
    return std::min<int64_t>(workers.size(), view.num_layers) >
           view.plan_stages;
  };
  if (view.plan_stages > 0) {
    decision.action = PlanDecision::Action::kKeep;
    if (!settled || !(view.plan_withdrawn || (enough && more(usable)))) {
      return decision;
    }
  } else if (!settled || (view.back_off > absl::ZeroDuration() &&
                          !(enough && view.culprit_known))) {
    decision.detail =
        view.last_failure.empty() ? "planning" : view.last_failure;
    return decision;
  } else if (view.testing_links) {
    decision.detail = "testing links between workers";
    return decision;
  }
  // A better plan is made for a present one that may stay.
  const bool better = view.plan_stages > 0 && !view.plan_withdrawn;
  Workers workers =
      better ? ChainOf(view, usable) : TakePart(view, usable, failed, left_out);
  if (better && !more(workers)) return decision;
  if (workers.empty()) {
    decision.action = PlanDecision::Action::kWait;
    decision.unlinked = true;
    decision.detail =
        absl::StrCat("waiting for workers: of ", here, " no ", view.min_workers,
                     " can be linked to each other");
    return decision;
  }
  const std::vector<LayerRange> ranges =
      SplitEvenly(view.num_layers, static_cast<int>(workers.size()));
  decision.action = PlanDecision::Action::kPlan;
  decision.stages = AssignChain(view, ranges, std::move(workers));
  return decision;
}

}  // namespace sluice
