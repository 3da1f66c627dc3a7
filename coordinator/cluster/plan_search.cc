#include "coordinator/cluster/plan_search.h"

#include <algorithm>
#include <utility>

#include "common/host/logging.h"
#include "coordinator/cluster/worker_facts.h"

namespace sluice {
namespace {

// A plan that has followed another one for its measured rates runs at least
// this many times as long as a plan takes to load before the next one may
// follow for that reason, and longer with each: rates that depend on the plan
// itself would have plans follow each other without end.
constexpr double kMinRunOfLoad = 10;
// More replacements than this count as so many: a coordinator runs for months.
constexpr int kMaxReplacements = 10;

}  // namespace

bool PlanSearch::Wanted(const std::vector<StageAssignment>& stages) const {
  return options_.plan_jobs && options_.fixed_plans.empty() && !failed_ &&
         std::all_of(stages.begin(), stages.end(),
                     [&](const StageAssignment& stage) {
                       return workers_->at(stage.worker).profile.has_value();
                     });
}

bool PlanSearch::Begin(std::vector<WorkerId> workers,
                       std::optional<Plan> present) {
  if (search_ && search_->workers == workers &&
      search_->present.has_value() == present.has_value()) {
    return false;
  }
  search_.emplace();
  search_->ticket = ++numbers_->last_ticket;
  search_->workers = std::move(workers);
  search_->present = std::move(present);
  return true;
}

std::optional<PlanTask> PlanSearch::TakeTask() {
  if (!search_ || search_->taken) return std::nullopt;
  if (!workers_->AllRegistered(search_->workers)) {
    search_.reset();  // the next decision finds the workers left
    return std::nullopt;
  }
  PlanTask task = search_->Take(*workers_);
  task.present = search_->present;
  if (task.present) task.load_seconds = absl::ToDoubleSeconds(load_time_);
  task.held_rows = progress_.held_rows;
  task.output_share = progress_.output_share;
  task.share = share_;
  return task;
}

PlanSearch::Outcome PlanSearch::OnAnswer(PlanAnswer answer) {
  if (!search_ || search_->ticket != answer.ticket) return {};
  if (absl::IsNotFound(answer.plan.status()) && !search_->new_jobs &&
      !search_->present) {
    search_->no_work = true;
    return {.no_work = true};
  }
  const Search search = *std::exchange(search_, std::nullopt);
  Outcome outcome = {.rows = answer.rows};
  if (absl::IsNotFound(answer.plan.status())) {
    // The search may have counted the requests before the new jobs came.
    outcome.look_again = search.new_jobs;
    return outcome;
  }
  if (!workers_->AllRegistered(search.workers)) return {};
  if (answer.plan.ok()) {
    replacements_ =
        search.present ? std::min(replacements_ + 1, kMaxReplacements) : 0;
    NextPlan& next = outcome.next.emplace();
    for (const StagePlan& stage : answer.plan->stages) {
      next.stages.push_back(
          {search.workers[static_cast<size_t>(stage.machine)], stage.layers});
    }
    next.plan = *std::move(answer.plan);
    next.workers = static_cast<int32_t>(search.workers.size());
    next.rows = answer.rows;
  } else if (search.present) {
    // The plan goes on, with a prediction from the measured rates.
    outcome.refreshed = std::move(answer.present);
    LogInfo("the plan stays: ", answer.plan.status().message());
  } else {
    LogWarning("no plan was found, the workers choose: ",
               answer.plan.status().message());
    failed_ = true;
  }
  return outcome;
}

bool PlanSearch::OnNewJobs() {
  if (!search_) return !options_.plan_jobs || !options_.fixed_plans.empty();
  search_->new_jobs = true;
  if (search_->no_work) search_.reset();
  return true;
}

void PlanSearch::OnBegun(const Plan& plan, const std::vector<WorkerId>& stages,
                         const PhaseRows& rows) {
  monitor_.Start(plan, workers_->Profiles(stages), rows);
  before_ = progress_;
}

void PlanSearch::OnEnded() {
  monitor_.Stop();
  // A search for a better plan than the old one is no answer for the next.
  if (search_ && search_->present) search_.reset();
}

void PlanSearch::OnHeartbeat(int stage, const v1::Heartbeat& heartbeat) {
  monitor_.Observe(stage, TotalsOf(heartbeat.runtime()));
}

void PlanSearch::OnProgress(const WorkProgress& progress) {
  progress_ = progress;
  monitor_.Progress(progress.rows - before_.rows,
                    progress.seconds - before_.seconds,
                    progress.rows_in_flight);
}

void PlanSearch::FollowMeasured(const Plan& plan,
                                const std::vector<WorkerId>& stages) {
  if (search_ || !monitor_.active() || !options_.plan_jobs ||
      !options_.fixed_plans.empty()) {
    return;
  }
  const double pause =
      kMinRunOfLoad * replacements_ * absl::ToDoubleSeconds(load_time_);
  if (replacements_ > 0 && progress_.seconds - before_.seconds < pause) return;
  std::optional<std::vector<MachineProfile>> machines = monitor_.Refit();
  if (!machines) return;
  for (size_t s = 0; s < stages.size(); ++s) {
    AttachedWorker& worker = workers_->at(stages[s]);
    const MachineProfile& before = *worker.profile;
    const MachineProfile& now = (*machines)[s];
    if (now == before) continue;
    LogInfo(LogWorker(worker.info.name()),
            " is not as its profile says: ", RateDifferences(before, now));
    worker.profile = std::move((*machines)[s]);
  }
  monitor_.Stop();
  Begin(stages, plan);
}

void PlanSearch::Describe(int stage, v1::WorkerInfo* info) const {
  if (!monitor_.active() || stage < 0) return;
  info->set_plan_seconds(monitor_.seconds());
  for (int r = 0; r < kNumResources; ++r) {
    const auto resource = static_cast<Resource>(r);
    const double predicted = monitor_.PredictedSeconds(stage, resource);
    const double measured = monitor_.MeasuredSeconds(stage, resource);
    if (predicted == 0 && measured == 0) continue;
    v1::ResourceUse* use = info->add_resources();
    const absl::string_view name = ResourceName(resource);
    use->set_resource(name.data(), name.size());
    use->set_predicted_seconds(predicted);
    use->set_measured_seconds(measured);
  }
}

}  // namespace sluice
