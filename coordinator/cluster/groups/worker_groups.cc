#include "coordinator/cluster/groups/worker_groups.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

std::vector<std::vector<WorkerId>> Deal(std::vector<GroupedWorker> workers,
                                        int32_t replicas) {
  std::sort(workers.begin(), workers.end(),
            [](const GroupedWorker& a, const GroupedWorker& b) {
              return std::tie(a.name, a.id) < std::tie(b.name, b.id);
            });
  std::vector<std::vector<WorkerId>> groups(static_cast<size_t>(replicas));
  for (size_t w = 0; w < workers.size(); ++w) {
    groups[w * groups.size() / workers.size()].push_back(workers[w].id);
  }
  return groups;
}

// Gives each pipeline the workers that it names, then others, as many as it
// needs; those that are too many go to the first.
std::vector<std::vector<WorkerId>> DealFixed(
    std::vector<GroupedWorker> workers,
    const std::vector<std::vector<std::string>>& fixed) {
  std::sort(workers.begin(), workers.end(),
            [](const GroupedWorker& a, const GroupedWorker& b) {
              return std::tie(a.name, a.id) < std::tie(b.name, b.id);
            });
  std::vector<std::vector<WorkerId>> groups(fixed.size());
  for (size_t g = 0; g < fixed.size(); ++g) {
    std::erase_if(workers, [&](const GroupedWorker& worker) {
      const bool named =
          groups[g].size() < fixed[g].size() &&
          std::count(fixed[g].begin(), fixed[g].end(), worker.name) > 0;
      if (named) groups[g].push_back(worker.id);
      return named;
    });
  }
  size_t next = 0;
  for (size_t g = 0; g < fixed.size(); ++g) {
    while (groups[g].size() < fixed[g].size() && next < workers.size()) {
      groups[g].push_back(workers[next++].id);
    }
  }
  while (next < workers.size()) groups[0].push_back(workers[next++].id);
  return groups;
}

// Decides for workers that are grouped anew.
GroupDecision GroupAnew(const GroupView& view) {
  GroupDecision decision;
  if (view.since_change < view.settle_time) {
    decision.detail = "planning";
  } else if (view.searched) {
    decision.action = GroupDecision::Action::kSearch;
    decision.none_works = true;
  } else {
    decision.action = GroupDecision::Action::kGroup;
    // Those that plans do without are dealt out only if they are needed.
    std::vector<GroupedWorker> workers = view.workers;
    std::erase_if(workers, [](const GroupedWorker& w) { return !w.able; });
    if (static_cast<int64_t>(workers.size()) <
        std::max(view.min_workers, view.replicas)) {
      workers = view.workers;
    }
    decision.groups = view.fixed.empty()
                          ? Deal(std::move(workers), view.replicas)
                          : DealFixed(std::move(workers), view.fixed);
  }
  return decision;
}

// The smallest of the layout's pipelines, the first of these.
size_t Smallest(const GroupView& view, const std::vector<int32_t>& sizes) {
  size_t smallest = sizes.size();
  for (size_t p = 0; p < sizes.size(); ++p) {
    if (!view.pipelines[p].laid_out) continue;
    if (smallest == sizes.size() || sizes[p] < sizes[smallest]) smallest = p;
  }
  return smallest == sizes.size() ? 0 : smallest;
}

// Whether a pipeline can do work, or all workers together can't either.
bool AnyWorks(const GroupView& view) {
  std::vector<int32_t> able(view.pipelines.size());
  int32_t all = 0;
  for (const GroupedWorker& worker : view.workers) {
    if (!worker.able) continue;
    ++all;
    if (worker.pipeline >= 0) ++able[static_cast<size_t>(worker.pipeline)];
  }
  if (all < std::max(view.min_workers, view.replicas)) return true;
  for (size_t p = 0; p < able.size(); ++p) {
    if (able[p] > 0 && able[p] >= view.pipelines[p].least) return true;
  }
  return false;
}

}  // namespace

GroupDecision DecideGroups(const GroupView& view) {
  GroupDecision decision;
  const int32_t min = std::max(view.min_workers, view.replicas);
  const bool enough = static_cast<int64_t>(view.workers.size()) >= min;
  const bool grouped =
      (view.replicas == 1 && !view.searched) ||
      std::any_of(view.workers.begin(), view.workers.end(),
                  [](const GroupedWorker& w) { return w.pipeline >= 0; });
  if (!grouped) {
    if (enough) return GroupAnew(view);
    decision.detail = absl::StrCat("waiting for workers: ", view.registered,
                                   " of ", min, " registered");
    return decision;
  }
  decision.action = GroupDecision::Action::kKeep;
  std::vector<int32_t> sizes(view.pipelines.size());
  for (const GroupedWorker& worker : view.workers) {
    if (worker.pipeline >= 0) ++sizes[static_cast<size_t>(worker.pipeline)];
  }
  for (const GroupedWorker& worker : view.workers) {
    if (worker.pipeline >= 0) continue;
    size_t to = 0;
    if (worker.former >= 0 && worker.former < static_cast<int>(sizes.size())) {
      to = static_cast<size_t>(worker.former);
    } else if (view.searched) {
      continue;
    } else {
      to = Smallest(view, sizes);
    }
    ++sizes[to];
    decision.action = GroupDecision::Action::kJoin;
    decision.joins.push_back({worker.id, to});
  }
  if (!decision.joins.empty() || !enough) return decision;
  if (!AnyWorks(view)) return GroupAnew(view);
  if (view.searched && view.since_change >= view.settle_time) {
    decision.action = GroupDecision::Action::kSearch;
  }
  return decision;
}

int32_t MinWorkersOf(int32_t min_workers, int32_t replicas, int32_t size) {
  if (replicas <= 1) return min_workers;
  return std::max(1, std::min(min_workers / replicas, size));
}

}  // namespace sluice
