#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker_facts.h"

// The part of Membership that has a plan follow a running one. Workers that
// join must first show that they can do their part: they load their stages
// ahead, and every link that the present plan does not have is opened once.
// Only then does the present plan end. If it does not come to that, whoever
// was in the way is left out, and the present plan has noticed nothing.

namespace sluice {

void Membership::FollowWith(std::vector<StageAssignment> stages,
                            const Plan* plan, int32_t workers, double rows) {
  std::vector<size_t> joining;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (workers_.at(stages[s].worker).stage < 0) joining.push_back(s);
  }
  if (phase_ != Phase::kRunning || joining.empty()) {
    BeginNext(std::move(stages), plan, workers, rows, std::nullopt);
    return;
  }
  const std::optional<std::vector<v1::LinkTransport>> links = LinksFor(stages);
  if (!links.has_value()) return;
  EndPreparation("another plan is to follow");
  // Whoever could not be told is gone, and the running plan with it if it was
  // in that. The next Advance sees who is left.
  const bool all_there = std::all_of(stages.begin(), stages.end(),
                                     [&](const StageAssignment& stage) {
                                       return workers_.contains(stage.worker);
                                     });
  if (phase_ != Phase::kRunning || !all_there) return;
  preparation_.emplace();
  preparation_->epoch = NextEpoch();
  preparation_->stages = stages;
  if (plan != nullptr) preparation_->plan = *plan;
  preparation_->workers = workers;
  preparation_->rows = rows;
  LogInfo(absl::StrCat("preparing a plan epoch=", preparation_->epoch.value(),
                       " stages=", stages.size(), " joining=", joining.size()));
  std::vector<std::pair<WorkerId, v1::CoordinatorMessage>> messages;
  for (size_t s : joining) {
    Worker& worker = workers_.at(stages[s].worker);
    worker.preparing = true;
    worker.layers = stages[s].layers;
    worker.load_done = worker.load_total = 0;
    worker.load_rate.Start();
    worker.pace.Start();
    v1::CoordinatorMessage message;
    *message.mutable_assign_stage() =
        Assignment(stages, *links, plan, preparation_->epoch, s);
    message.mutable_assign_stage()->set_prepare(true);
    messages.emplace_back(stages[s].worker, std::move(message));
  }
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    Worker& from = workers_.at(stages[s].worker);
    const Worker& to = workers_.at(stages[s + 1].worker);
    if (from.stage >= 0 && to.stage == from.stage + 1) continue;
    from.reaching = true;
    v1::CoordinatorMessage message;
    v1::ReachLinks* reach = message.mutable_reach_links();
    reach->set_epoch(preparation_->epoch.value());
    auto* peer = reach->add_peers();
    peer->set_name(to.info.name());
    peer->set_link_address(to.info.link_address());
    messages.emplace_back(stages[s].worker, std::move(message));
  }
  // Sending may end the preparation, or the present plan.
  for (auto& [id, message] : messages) SendOrBreak(id, std::move(message));
}

void Membership::BeginNext(std::vector<StageAssignment> stages,
                           const Plan* plan, int32_t workers, double rows,
                           std::optional<PlanEpoch> epoch) {
  EndPlan("another plan follows", LogLevel::kInfo);
  plan_workers_ = workers;
  StartPlan(std::move(stages), plan, epoch);
  if (!plan_ || options_.fixed_plan) return;  // or a worker went meanwhile
  monitor_.Start(*plan_, Machines(stages_), rows);
  plan_rows_ = rows_;
  plan_seconds_ = seconds_;
}

void Membership::OnLinksReached(WorkerId id, const v1::LinksReached& reached) {
  Worker& worker = workers_.at(id);
  if (!preparation_ || reached.epoch() != preparation_->epoch.value() ||
      !worker.reaching) {
    return;
  }
  worker.reaching = false;
  const std::vector<StageAssignment>& stages = preparation_->stages;
  size_t s = 0;
  while (stages[s].worker != id) ++s;
  const Worker& next = workers_.at(stages[s + 1].worker);
  for (const auto& link : reached.links()) {
    if (link.error().empty()) continue;
    const std::string why =
        absl::StrCat("worker '", worker.info.name(), "' can't open a link to '",
                     next.info.name(), "' at ", next.info.link_address(), ": ",
                     link.error());
    ++plan_failures_["link"];
    // Those of the present plan have shown that they work.
    if (next.preparing || worker.preparing) {
      LeaveOut(next.preparing ? next : worker, why);
    } else {
      for (const auto& [other_id, other] : workers_) {
        if (other.preparing) LeaveOut(other, why);
      }
    }
    EndPreparation(why);
    return;
  }
}

void Membership::OnPrepareFailed(WorkerId id, Worker& worker,
                                 const v1::StageFailed& failed) {
  const auto code = static_cast<absl::StatusCode>(failed.code());
  const std::string why = absl::StrCat(
      "worker '", worker.info.name(), "' can't load layers ",
      worker.layers.begin, " to ", worker.layers.end - 1, ": ",
      absl::StatusCodeToString(code), ": ", ClipText(failed.message()));
  ++plan_failures_["load"];
  if (preparation_->plan && !options_.fixed_plan &&
      code == absl::StatusCode::kResourceExhausted) {
    // The planner was too bold; what the workers choose themselves may fit.
    planning_failed_ = true;
  } else if (IsTransient(code)) {
    LeaveOut(worker, why);
  } else {
    worker.failure = why;
  }
  EndPreparation(why);
}

void Membership::FollowPreparation(absl::Duration passed) {
  if (!preparation_) return;
  preparation_->reach_time += passed;
  const bool overdue = preparation_->reach_time > options_.most_reach_time;
  bool ready = true;
  for (const StageAssignment& stage : preparation_->stages) {
    const Worker& worker = workers_.at(stage.worker);
    ready = ready && worker.preparing == worker.prepared;
    if (!worker.reaching) continue;
    if (overdue && worker.preparing) {
      const std::string why =
          absl::StrCat("worker '", worker.info.name(), "' has not said within ",
                       absl::FormatDuration(options_.most_reach_time),
                       " whether it can open its link to the next stage");
      ++plan_failures_["link"];
      LeaveOut(worker, why);
      EndPreparation(why);
      return;
    }
    // One of the present plan that does not answer is not waited for.
    ready = ready && overdue;
  }
  if (!ready) return;
  const Preparation next = *std::move(preparation_);
  preparation_.reset();
  BeginNext(next.stages, next.plan ? &*next.plan : nullptr, next.workers,
            next.rows, next.epoch);
}

void Membership::EndPreparation(const std::string& why) {
  if (!preparation_) return;
  const PlanEpoch epoch = preparation_->epoch;
  preparation_.reset();
  LogInfo(absl::StrCat("preparation ended epoch=", epoch.value(), ": ", why));
  std::vector<WorkerId> retired;
  for (auto& [id, worker] : workers_) {
    worker.reaching = false;
    if (!worker.preparing) continue;
    worker.preparing = worker.prepared = false;
    worker.layers = {};
    retired.push_back(id);
  }
  for (WorkerId id : retired) {
    v1::CoordinatorMessage message;
    message.mutable_retire()->set_epoch(epoch.value());
    SendOrBreak(id, std::move(message));
  }
}

}  // namespace sluice
