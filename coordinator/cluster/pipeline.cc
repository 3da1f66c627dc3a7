#include "coordinator/cluster/pipeline.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host/logging.h"

namespace sluice {

Pipeline::Pipeline(const ClusterOptions& options, WorkerRegistry* workers,
                   PlanNumbers* numbers)
    : options_(options),
      workers_(workers),
      search_(options_, workers_, numbers),
      plan_(options_, workers_, &search_, numbers) {
  plan_.SetDetail(DecidePlan(View()).detail);
}

void Pipeline::SetShape(int32_t min_workers, double share) {
  options_.min_workers = min_workers;
  search_.SetShare(share);
}

void Pipeline::OnNewJobs() {
  if (!search_.OnNewJobs() && plan_.running() && plan_.plan()) {
    Search(plan_.stages(), plan_.plan());
  }
}

void Pipeline::OnPlanned(PlanAnswer answer) {
  PlanSearch::Outcome outcome = search_.OnAnswer(std::move(answer));
  if (outcome.look_again) OnNewJobs();
  if (outcome.refreshed) {
    plan_.Refresh(*std::move(outcome.refreshed), outcome.rows);
  }
  // Workers may have gone to other pipelines since the search began.
  const bool has_all =
      outcome.next &&
      std::all_of(outcome.next->stages.begin(), outcome.next->stages.end(),
                  [&](const StageAssignment& s) {
                    return plan_.Has(s.worker) &&
                           !workers_->at(s.worker).withdrawn();
                  });
  if (has_all && AnyBroken(outcome.next->stages)) {
    // The planner knows nothing of that.
    LogInfo("the plan uses a link that does not work; the workers choose");
    if (!plan_.running() || plan_.HoldsWithdrawn()) search_.GiveUp();
  } else if (has_all) {
    plan_.Follow(*std::move(outcome.next));
  }
  if (!outcome.no_work) return;
  // A worker that is to go is not kept for jobs that may come.
  if (plan_.HoldsWithdrawn()) plan_.End("a worker is to go", LogLevel::kInfo);
  plan_.SetDetail("a plan is made when a job comes");
}

void Pipeline::Decide() {
  PlanDecision decision = DecidePlan(View());
  if (decision.action == PlanDecision::Action::kKeep) return;
  if (decision.action == PlanDecision::Action::kWait) {
    plan_.End(decision.detail);
    // The missing worker may be one that was here.
    const std::string absent = workers_->LastAbsent();
    const bool waits = absl::StartsWith(decision.detail, "waiting for workers");
    if (decision.unlinked) {
      workers_->HastenLinkTests(plan_.workers());
      plan_.SetDetail(absl::StrCat(decision.detail, UnlinkedText()));
      return;
    }
    plan_.SetDetail(absl::StrCat(
        decision.detail, workers_->CheckingDetail(),
        waits && !absent.empty() ? absl::StrCat("; ", absent) : ""));
    return;
  }
  if (plan_.Prepares(decision.stages.size())) return;
  if (!plan_.CanLink(decision.stages)) {
    // A worker that is to go is not kept for others that can't be linked.
    if (plan_.HoldsWithdrawn()) plan_.End("a worker is to go", LogLevel::kInfo);
    return;
  }
  if (search_.Wanted(decision.stages)) {
    std::vector<WorkerId> workers;
    for (const StageAssignment& stage : decision.stages) {
      workers.push_back(stage.worker);
    }
    if (workers_->KnowsLinks(workers)) {
      Search(std::move(workers), std::nullopt);
    } else if (plan_.phase() == RunningPlan::Phase::kNoPlan) {
      plan_.SetDetail("measuring links");
    }
  } else if (!options_.fixed_plans.empty()) {
    NextPlan next = AssignFixed(decision.stages);
    if (AnyBroken(next.stages)) {
      // An order that can work goes before the names.
      for (size_t s = 0; s < next.stages.size(); ++s) {
        next.stages[s].worker = decision.stages[s].worker;
      }
    }
    plan_.Follow(std::move(next));
  } else {
    const auto workers = static_cast<int32_t>(decision.stages.size());
    plan_.Follow({.stages = std::move(decision.stages), .workers = workers});
  }
}

void Pipeline::Search(std::vector<WorkerId> workers,
                      std::optional<Plan> present) {
  if (search_.Begin(std::move(workers), std::move(present)) &&
      plan_.phase() == RunningPlan::Phase::kNoPlan) {
    plan_.SetDetail("planning");
  }
}

NextPlan Pipeline::AssignFixed(
    const std::vector<StageAssignment>& stages) const {
  // The workers that the plan names come first; others get the rest in order.
  const std::vector<StagePlan>& planned = options_.fixed_plans.front().stages;
  NextPlan next = {.stages = std::vector<StageAssignment>(planned.size()),
                   .plan = options_.fixed_plans.front(),
                   .workers = static_cast<int32_t>(stages.size())};
  std::vector<WorkerId> free;
  for (const StageAssignment& stage : stages) free.push_back(stage.worker);
  std::vector<bool> done(planned.size());
  for (size_t s = 0; s < planned.size(); ++s) {
    const auto it = std::find_if(free.begin(), free.end(), [&](WorkerId id) {
      return workers_->name(id) == planned[s].worker;
    });
    if (it == free.end()) continue;
    next.stages[s] = {*it, planned[s].layers};
    done[s] = true;
    free.erase(it);
  }
  for (size_t s = 0; s < planned.size(); ++s) {
    if (done[s]) continue;
    next.stages[s] = {free.front(), planned[s].layers};
    free.erase(free.begin());
  }
  return next;
}

bool Pipeline::AnyBroken(const std::vector<StageAssignment>& stages) const {
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    if (workers_->link_tests().Broken(stages[s].worker, stages[s + 1].worker)) {
      return true;
    }
  }
  return false;
}

std::string Pipeline::UnlinkedText() const {
  const LinkTests& tests = workers_->link_tests();
  for (const WorkerId from : plan_.workers()) {
    for (const WorkerId to : plan_.workers()) {
      if (!tests.Broken(from, to)) continue;
      return absl::StrCat(
          ": ", workers_->UnlinkedText(from, to, tests.Why(from, to)));
    }
  }
  return "";
}

ClusterView Pipeline::View() const {
  const absl::Duration now = options_.clock->Monotonic();
  const LinkTests& tests = workers_->link_tests();
  const std::set<WorkerId> untested = tests.Untested();
  const bool wait = NewcomersWait();
  ClusterView view;
  for (const WorkerId id : plan_.workers()) {
    const AttachedWorker& worker = workers_->at(id);
    if (!worker.known() || worker.withdrawn()) continue;
    absl::Duration out_for = workers_->OutFor(worker);
    if ((wait && worker.newcomer) || untested.contains(id)) {
      out_for = std::max(out_for, WorkerTimeouts::kFirstLeftOut);
    }
    view.workers.push_back(
        {id, worker.info.name(), {}, worker.failure, out_for});
  }
  view.registered = workers_->num_registered();
  view.min_workers = options_.min_workers;
  view.num_layers = options_.num_layers;
  view.plan_withdrawn = plan_.HoldsWithdrawn();
  view.since_change = now - workers_->changed_at();
  view.settle_time = options_.timeouts.settle_time;
  view.testing_links = workers_->TestingLinks();
  if (tests.any_broken()) {
    view.broken = [&tests](WorkerId from, WorkerId to) {
      return tests.Broken(from, to);
    };
  }
  plan_.View(&view);
  return view;
}

bool Pipeline::NewcomersWait() const {
  if (!plan_.HoldsNewcomers()) return false;
  int32_t others = 0;
  for (const WorkerId id : plan_.workers()) {
    const AttachedWorker& worker = workers_->at(id);
    if (worker.known() && !worker.withdrawn() && !worker.newcomer &&
        worker.failure.empty() && workers_->OutOf(worker) == nullptr) {
      ++others;
    }
  }
  return others >= options_.min_workers;
}

std::string Pipeline::WaitsFor(WorkerId id,
                               const AttachedWorker& worker) const {
  if (!worker.known() || !worker.newcomer || plan_.StageOf(id) >= 0 ||
      !NewcomersWait()) {
    return "";
  }
  return absl::StrCat("the last ", plan_.losses_in_a_row(),
                      " plans ended as a worker was lost, so who has come "
                      "since waits for a while");
}

std::string Pipeline::detail() const {
  if (plan_.running() &&
      (workers_->any_left_out() || plan_.losses_in_a_row() > 0)) {
    for (const WorkerId id : plan_.workers()) {
      const AttachedWorker& worker = workers_->at(id);
      if (plan_.StageOf(id) >= 0) continue;
      const LeftOut::Entry* const out = workers_->OutOf(worker);
      const std::string why = out != nullptr ? out->why : WaitsFor(id, worker);
      if (why.empty()) continue;
      return absl::StrCat("goes on without worker '", worker.info.name(),
                          "': ", why);
    }
  }
  return plan_.detail();
}

}  // namespace sluice
