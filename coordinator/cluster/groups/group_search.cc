#include "coordinator/cluster/groups/group_search.h"

#include <algorithm>
#include <utility>

#include "common/host/logging.h"

namespace sluice {

bool GroupSearch::Groups(const std::vector<WorkerId>& workers) const {
  return options_.replicas != 1 && options_.plan_jobs &&
         options_.fixed_plans.empty() && !failed_ &&
         std::all_of(workers.begin(), workers.end(), [&](WorkerId id) {
           return workers_->at(id).profile.has_value();
         });
}

void GroupSearch::Begin(std::vector<WorkerId> workers,
                        std::vector<std::vector<WorkerId>> present,
                        absl::Duration load_time,
                        const WorkProgress& progress) {
  Search search;
  search.ticket = ++numbers_->last_ticket;
  search.workers = std::move(workers);
  search.present = std::move(present);
  search.load_time = load_time;
  search.progress = progress;
  search_ = std::move(search);
}

std::optional<PlanTask> GroupSearch::TakeTask() {
  if (!search_ || search_->taken) return std::nullopt;
  if (!workers_->AllRegistered(search_->workers)) {
    search_.reset();  // the next decision finds the workers left
    return std::nullopt;
  }
  PlanTask task = search_->Take(*workers_);
  task.output_share = search_->progress.output_share;
  task.held_rows = search_->progress.held_rows;
  task.load_seconds = absl::ToDoubleSeconds(search_->load_time);
  LayoutTask& layout = task.layout.emplace();
  layout.replicas = options_.replicas;
  for (const std::vector<WorkerId>& group : search_->present) {
    std::vector<int>& machines = layout.present.emplace_back();
    for (const WorkerId id : group) {
      const auto it =
          std::find(search_->workers.begin(), search_->workers.end(), id);
      if (it == search_->workers.end()) continue;
      machines.push_back(static_cast<int>(it - search_->workers.begin()));
    }
    if (machines.empty()) layout.present.pop_back();
  }
  return task;
}

std::optional<std::vector<GroupSearch::Group>> GroupSearch::OnAnswer(
    PlanAnswer answer) {
  const bool no_work = absl::IsNotFound(answer.layout.status());
  if (no_work && !search_->new_jobs) {
    search_->no_work = true;
    return std::nullopt;
  }
  const Search search = *std::exchange(search_, std::nullopt);
  if (no_work) return std::nullopt;  // it is asked again
  if (!workers_->AllRegistered(search.workers)) return std::nullopt;
  searched_ = search.workers;
  if (!answer.layout.ok()) {
    if (!search.present.empty()) {
      LogInfo("the pipelines stay: ", answer.layout.status().message());
    } else {
      LogWarning("no pipelines were planned: ",
                 answer.layout.status().message());
      failed_ = true;
    }
    return std::nullopt;
  }
  std::vector<Group> groups;
  for (const PipelinePlan& pipeline : answer.layout->pipelines) {
    Group& group = groups.emplace_back();
    group.share = pipeline.share;
    for (const int machine : pipeline.machines) {
      group.workers.push_back(search.workers[static_cast<size_t>(machine)]);
    }
  }
  if (groups.size() == 1) AddSpares(search.workers, &groups.front());
  return groups;
}

void GroupSearch::AddSpares(const std::vector<WorkerId>& workers,
                            Group* group) const {
  const auto least = static_cast<size_t>(std::max(1, options_.min_workers));
  for (const WorkerId id : workers) {
    if (group->workers.size() >= least) return;
    if (std::count(group->workers.begin(), group->workers.end(), id) > 0) {
      continue;
    }
    group->workers.push_back(id);
  }
}

void GroupSearch::OnNewJobs() {
  searched_.clear();
  if (!search_) return;
  search_->new_jobs = true;
  if (search_->no_work) search_.reset();
}

}  // namespace sluice
