#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/host/logging.h"
#include "common/limits.h"
#include "coordinator/cluster/links/link_facts.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/planning/plan_json.h"
#include "runtime/profile/profile_json.h"

// The part of Membership that has plans made for jobs: what is known of the
// workers for it, when a search begins, and what becomes of its answer.

namespace sluice {
namespace {

double BestProducts(const MachineProfile& machine) {
  double best = 0;
  for (const ProductRate& product : machine.compute().products) {
    best = std::max(best, product.flops_by_rows.Best());
  }
  return best;
}

}  // namespace

bool Membership::Plans(const std::vector<StageAssignment>& stages) const {
  if (!options_.plan_jobs || options_.fixed_plan || planning_failed_) {
    return false;
  }
  return std::all_of(stages.begin(), stages.end(),
                     [&](const StageAssignment& stage) {
                       return workers_.at(stage.worker).profile.has_value();
                     });
}

bool Membership::KnowsLinks(const std::vector<StageAssignment>& stages) {
  if (options_.most_link_time == absl::ZeroDuration()) return true;
  std::vector<const v1::Register*> infos;
  for (const StageAssignment& stage : stages) {
    infos.push_back(&workers_.at(stage.worker).info);
  }
  const absl::Duration now = options_.clock->Monotonic();
  bool known = true;
  std::vector<std::pair<WorkerId, v1::CoordinatorMessage>> questions;
  for (size_t i = 0; i < stages.size(); ++i) {
    Worker& worker = workers_.at(stages[i].worker);
    v1::MeasureLinks ask = LinksToMeasure(infos, i, &worker.links_asked);
    if (ask.peers_size() > 0) {
      worker.links_due = now + options_.most_link_time;
      ++worker.links_owed;
      questions.emplace_back(stages[i].worker, v1::CoordinatorMessage());
      *questions.back().second.mutable_measure_links() = std::move(ask);
    }
    known = known && worker.links_due <= now;
  }
  if (!known && phase_ == Phase::kNoPlan) detail_ = "measuring links";
  for (auto& [id, question] : questions) SendOrBreak(id, std::move(question));
  return known;
}

void Membership::OnLinksMeasured(Worker& worker,
                                 const v1::LinksMeasured& measured) {
  // Late ones are welcome.
  if (worker.links_owed == 0 || !worker.profile) return;
  if (--worker.links_owed == 0) worker.links_due = absl::ZeroDuration();
  const std::string trouble =
      AddMeasuredLinks(measured, worker.links_asked, &*worker.profile);
  // What is shown of it stays as it was if all links would be too much to show.
  std::string shown = ProfileToJson(*worker.profile);
  if (shown.size() <= kMaxProfileBytes) {
    worker.info.set_profile_json(std::move(shown));
  }
  if (trouble.empty()) return;
  LogWarning(absl::StrCat("worker '", worker.info.name(),
                          "' could not measure all links: ", trouble));
}

void Membership::BeginSearch(std::vector<WorkerId> workers,
                             std::optional<Plan> present) {
  if (search_ && search_->workers == workers &&
      search_->present.has_value() == present.has_value()) {
    return;
  }
  search_ = Search();
  search_->ticket = ++last_ticket_;
  search_->workers = std::move(workers);
  search_->present = std::move(present);
  if (phase_ == Phase::kNoPlan) detail_ = "planning";
}

std::vector<MachineProfile> Membership::Machines(
    const std::vector<WorkerId>& workers) const {
  std::vector<MachineProfile> machines;
  for (WorkerId id : workers) machines.push_back(*workers_.at(id).profile);
  return machines;
}

std::optional<PlanTask> Membership::TakePlanTask() {
  if (!search_ || search_->taken) return std::nullopt;
  for (WorkerId id : search_->workers) {
    if (!workers_.contains(id)) {
      search_.reset();  // the next Advance finds who is left
      return std::nullopt;
    }
  }
  search_->taken = true;
  PlanTask task;
  task.ticket = search_->ticket;
  task.machines = Machines(search_->workers);
  task.present = search_->present;
  if (task.present) task.load_seconds = absl::ToDoubleSeconds(load_time_);
  task.output_share = output_share_;
  return task;
}

void Membership::OnPlanned(PlanAnswer answer) {
  if (!search_ || search_->ticket != answer.ticket) return;
  const Search search = *search_;
  if (absl::IsNotFound(answer.plan.status())) {
    if (search.new_jobs) {
      // It may have counted the requests before those.
      search_.reset();
      OnNewJobs();
    } else if (search.present) {
      search_.reset();
    } else {
      search_->no_work = true;
      detail_ = "a plan is made when a job comes";
    }
    return;
  }
  search_.reset();
  const bool all_there = std::all_of(
      search.workers.begin(), search.workers.end(), [&](WorkerId id) {
        return workers_.contains(id) && workers_.at(id).registered;
      });
  if (!all_there) return;
  if (!answer.plan.ok()) {
    if (search.present) {
      // It goes on, with a prediction that knows what was measured.
      if (answer.present && phase_ == Phase::kRunning && plan_) {
        plan_ = std::move(answer.present);
        new_plan_ = true;
        monitor_.Start(*plan_, Machines(stages_), answer.rows);
        plan_rows_ = rows_;
        plan_seconds_ = seconds_;
      }
      LogInfo(absl::StrCat("the plan stays: ", answer.plan.status().message()));
      return;
    }
    LogWarning(absl::StrCat("no plan was found, the workers choose: ",
                            answer.plan.status().message()));
    planning_failed_ = true;
    return;  // the next Advance begins without one
  }
  std::vector<StageAssignment> stages;
  for (const StagePlan& stage : answer.plan->stages) {
    stages.push_back(
        {search.workers[static_cast<size_t>(stage.machine)], stage.layers});
  }
  FollowWith(std::move(stages), &*answer.plan,
             static_cast<int32_t>(search.workers.size()), answer.rows);
}

std::optional<std::string> Membership::TakeNewPlan() {
  if (!std::exchange(new_plan_, false)) return std::nullopt;
  return plan_ ? PlanToJson(*plan_) : std::string();
}

void Membership::OnNewJobs() {
  DropFormerModel();
  if (search_ && search_->no_work) {
    search_.reset();
  } else if (search_) {
    search_->new_jobs = true;
  } else if (phase_ == Phase::kRunning && plan_ && options_.plan_jobs &&
             !options_.fixed_plan) {
    BeginSearch(stages_, plan_);
  }
}

void Membership::OnProgressOf(double rows, double seconds,
                              double output_share) {
  rows_ = rows;
  seconds_ = seconds;
  output_share_ = output_share;
  monitor_.Progress(rows - plan_rows_, seconds - plan_seconds_);
}

void Membership::FollowMeasured() {
  if (phase_ != Phase::kRunning || search_ || !monitor_.active() ||
      !options_.plan_jobs || options_.fixed_plan) {
    return;
  }
  std::optional<std::vector<MachineProfile>> machines = monitor_.Refit();
  if (!machines) return;
  for (size_t s = 0; s < stages_.size(); ++s) {
    Worker& worker = workers_.at(stages_[s]);
    const MachineProfile& before = *worker.profile;
    const MachineProfile& now = (*machines)[s];
    LogInfo(absl::StrFormat(
        "worker '%s' is not as its profile says: disk reads %.3g GB/s, not "
        "%.3g, and writes %.3g, not %.3g; products %.3g TFLOP/s at best, not "
        "%.3g",
        worker.info.name(), now.disk.read_bytes_per_second * 1e-9,
        before.disk.read_bytes_per_second * 1e-9,
        now.disk.write_bytes_per_second * 1e-9,
        before.disk.write_bytes_per_second * 1e-9, BestProducts(now) * 1e-12,
        BestProducts(before) * 1e-12));
    worker.profile = std::move((*machines)[s]);
  }
  monitor_.Stop();
  BeginSearch(stages_, plan_);
}

}  // namespace sluice
