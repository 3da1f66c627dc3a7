#include "coordinator/cluster/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {

Membership::Membership(const ClusterOptions& options)
    : options_(options),
      workers_(options_),
      search_(options_, &workers_),
      plan_(options_, &workers_, &search_),
      advanced_at_(options.clock->Monotonic()) {
  plan_.SetDetail(DecidePlan(View()).detail);
}

// -- Events.

void Membership::OnOpened(WorkerId id, std::shared_ptr<WorkerStream> stream,
                          PeerPlace place) {
  workers_.Open(id, std::move(stream), std::move(place));
}

std::optional<v1::StepResult> Membership::OnMessage(WorkerId id,
                                                    v1::WorkerMessage message) {
  AttachedWorker* const worker = workers_.Find(id);
  if (worker == nullptr) return std::nullopt;  // dropped before
  worker->silent = absl::ZeroDuration();
  if (worker->registered == message.has_register_() || worker->resolving) {
    Remove(id, absl::InvalidArgumentError(
                   "a worker registers once, with its first message"));
    return std::nullopt;
  }
  switch (message.kind_case()) {
    case v1::WorkerMessage::kRegister:
      workers_.Register(id, message.register_());
      OnRegistered(id);
      break;
    case v1::WorkerMessage::kHeartbeat:
      plan_.OnHeartbeat(id, std::move(*message.mutable_heartbeat()));
      break;
    case v1::WorkerMessage::kLoadProgress:
      plan_.OnLoadProgress(id, message.load_progress());
      break;
    case v1::WorkerMessage::kStageReady:
      plan_.OnStageReady(id, message.stage_ready());
      break;
    case v1::WorkerMessage::kStageFailed:
      plan_.OnStageFailed(id, message.stage_failed());
      break;
    case v1::WorkerMessage::kLinkId:
      plan_.OnLinkId(id, std::move(*message.mutable_link_id()));
      break;
    case v1::WorkerMessage::kLinksMeasured:
      workers_.OnLinksMeasured(id, message.links_measured());
      break;
    case v1::WorkerMessage::kModelContent:
      workers_.OnModelContent(id, message.model_content());
      break;
    case v1::WorkerMessage::kLinksReached:
      plan_.OnLinksReached(id, message.links_reached());
      break;
    case v1::WorkerMessage::kStepResult:
      if (!plan_.TakesResult(id, message.step_result())) break;
      return std::move(*message.mutable_step_result());
    case v1::WorkerMessage::KIND_NOT_SET:
      break;  // a newer worker's message
  }
  Settle();
  return std::nullopt;
}

void Membership::OnResolved(
    WorkerId id, const absl::StatusOr<std::vector<std::string>>& addresses) {
  const AttachedWorker* const worker = workers_.Find(id);
  if (worker == nullptr || worker->registered) return;
  workers_.OnResolved(id, addresses);
  OnRegistered(id);
  Settle();
}

void Membership::OnRegistered(WorkerId id) {
  const AttachedWorker* const worker = workers_.Find(id);
  if (worker == nullptr || !worker->registered) return;
  search_.OnRegistered();
  plan_.OnRegistered(id);
}

void Membership::OnClosed(WorkerId id, const absl::Status& reason) {
  Remove(id, reason);
}

void Membership::Remove(WorkerId id, const absl::Status& reason) {
  if (const std::optional<AttachedWorker> worker =
          workers_.Remove(id, reason)) {
    plan_.OnGone(id, *worker, reason);
  } else {
    plan_.Forget(id);
  }
  Settle();
}

void Membership::Settle() {
  if (workers_.TakeJoined()) plan_.ForgetFailures();
  for (const auto& [id, reason] : workers_.TakeDoomed()) Remove(id, reason);
}

void Membership::BreakLastStage(const absl::Status& reason) {
  if (plan_.stages().empty()) return;
  const WorkerId last = plan_.stages().back();
  workers_.LeaveOut(
      last, absl::StrCat("what it answered made no sense: ", reason.message()));
  Remove(last, reason);
}

void Membership::SendPlan(v1::StepPlan plan) {
  v1::CoordinatorMessage message;
  *message.mutable_step_plan() = std::move(plan);
  workers_.Send(plan_.stages().front(), std::move(message));
  Settle();
}

void Membership::OnNewJobs() {
  workers_.DropFormerModel();
  Settle();
  if (!search_.OnNewJobs() && plan_.running() && plan_.plan()) {
    Search(plan_.stages(), plan_.plan());
  }
}

void Membership::OnPlanned(PlanAnswer answer) {
  PlanSearch::Outcome outcome = search_.OnAnswer(std::move(answer));
  if (outcome.look_again) OnNewJobs();
  if (outcome.refreshed) {
    plan_.Refresh(*std::move(outcome.refreshed), outcome.rows);
  }
  if (outcome.next) plan_.Follow(*std::move(outcome.next));
  if (outcome.no_work) plan_.SetDetail("a plan is made when a job comes");
  Settle();
}

// -- Deciding.

void Membership::Advance() {
  // Silence counts only while this process runs: after a stop (a debugger, a
  // laptop's lid) the workers get time to be heard.
  const absl::Duration now = options_.clock->Monotonic();
  const absl::Duration passed =
      std::min(now - advanced_at_, options_.timeouts.heartbeat_timeout / 4);
  advanced_at_ = now;
  workers_.PassTime(passed);
  Settle();
  workers_.CompareModels();
  Settle();
  plan_.Watch(passed);
  Settle();
  Decide();
  Settle();
  plan_.FollowPreparation(passed);
  Settle();
  if (plan_.running() && plan_.plan()) {
    search_.FollowMeasured(*plan_.plan(), plan_.stages());
  }
}

void Membership::Decide() {
  PlanDecision decision = DecidePlan(View());
  if (decision.action == PlanDecision::Action::kKeep) return;
  if (decision.action == PlanDecision::Action::kWait) {
    plan_.End(decision.detail);
    // The missing worker may be one that was here.
    const std::string absent = workers_.LastAbsent();
    const bool waits = absl::StartsWith(decision.detail, "waiting for workers");
    plan_.SetDetail(absl::StrCat(
        decision.detail, workers_.CheckingDetail(),
        waits && !absent.empty() ? absl::StrCat("; ", absent) : ""));
    return;
  }
  if (plan_.Prepares(decision.stages.size())) return;
  if (!plan_.CanLink(decision.stages)) return;
  if (search_.Wanted(decision.stages)) {
    std::vector<WorkerId> workers;
    for (const StageAssignment& stage : decision.stages) {
      workers.push_back(stage.worker);
    }
    if (workers_.KnowsLinks(workers)) {
      Search(std::move(workers), std::nullopt);
    } else if (plan_.phase() == Phase::kNoPlan) {
      plan_.SetDetail("measuring links");
    }
  } else if (options_.fixed_plan) {
    plan_.Follow(AssignFixed(decision.stages));
  } else {
    const auto workers = static_cast<int32_t>(decision.stages.size());
    plan_.Follow({.stages = std::move(decision.stages), .workers = workers});
  }
}

void Membership::Search(std::vector<WorkerId> workers,
                        std::optional<Plan> present) {
  if (search_.Begin(std::move(workers), std::move(present)) &&
      plan_.phase() == Phase::kNoPlan) {
    plan_.SetDetail("planning");
  }
}

NextPlan Membership::AssignFixed(
    const std::vector<StageAssignment>& stages) const {
  // The workers that the plan names come first; others get the rest in order.
  const std::vector<StagePlan>& planned = options_.fixed_plan->stages;
  NextPlan next = {.stages = std::vector<StageAssignment>(planned.size()),
                   .plan = options_.fixed_plan,
                   .workers = static_cast<int32_t>(stages.size())};
  std::vector<WorkerId> free;
  for (const StageAssignment& stage : stages) free.push_back(stage.worker);
  std::vector<bool> done(planned.size());
  for (size_t s = 0; s < planned.size(); ++s) {
    const auto it = std::find_if(free.begin(), free.end(), [&](WorkerId id) {
      return workers_.name(id) == planned[s].worker;
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

ClusterView Membership::View() const {
  const absl::Duration now = options_.clock->Monotonic();
  const bool wait = NewcomersWait();
  ClusterView view;
  for (const auto& [id, worker] : workers_.workers()) {
    if (!worker.same_model) continue;
    const LeftOut::Entry* const out = workers_.OutOf(worker);
    absl::Duration out_for =
        out == nullptr ? absl::ZeroDuration() : out->until - now;
    if (wait && worker.newcomer) {
      out_for = std::max(out_for, WorkerTimeouts::kFirstLeftOut);
    }
    view.workers.push_back(
        {id, worker.info.name(), {}, worker.failure, out_for});
  }
  view.min_workers = options_.min_workers;
  view.num_layers = options_.num_layers;
  view.since_change = now - workers_.changed_at();
  view.settle_time = options_.timeouts.settle_time;
  plan_.View(&view);
  return view;
}

bool Membership::NewcomersWait() const {
  if (!plan_.HoldsNewcomers()) return false;
  int32_t others = 0;
  for (const auto& [id, worker] : workers_.workers()) {
    if (worker.same_model && !worker.newcomer && worker.failure.empty() &&
        workers_.OutOf(worker) == nullptr) {
      ++others;
    }
  }
  return others >= options_.min_workers;
}

// -- Reporting.

std::string Membership::WaitsFor(WorkerId id,
                                 const AttachedWorker& worker) const {
  if (!worker.same_model || !worker.newcomer || plan_.StageOf(id) >= 0 ||
      !NewcomersWait()) {
    return "";
  }
  return absl::StrCat("the last ", plan_.losses_in_a_row(),
                      " plans ended as a worker was lost, so who has come "
                      "since waits for a while");
}

std::string Membership::detail() const {
  if (plan_.running() &&
      (workers_.any_left_out() || plan_.losses_in_a_row() > 0)) {
    for (const auto& [id, worker] : workers_.workers()) {
      if (!worker.registered || plan_.StageOf(id) >= 0) continue;
      const LeftOut::Entry* const out = workers_.OutOf(worker);
      const std::string why = out != nullptr ? out->why : WaitsFor(id, worker);
      if (why.empty()) continue;
      return absl::StrCat("goes on without worker '", worker.info.name(),
                          "': ", why);
    }
  }
  return plan_.detail();
}

void Membership::Describe(v1::ClusterState* state) {
  state->set_min_workers(options_.min_workers);
  state->set_num_layers(options_.num_layers);
  plan_.Describe(state);
  for (const auto& [id, worker] : workers_.workers()) {
    if (worker.registered) DescribeWorker(id, worker, state);
  }
  workers_.DescribeAbsent(state);
}

void Membership::DescribeWorker(WorkerId id, const AttachedWorker& worker,
                                v1::ClusterState* state) const {
  const LeftOut::Entry* const out =
      plan_.StageOf(id) >= 0 || plan_.Preparing(id) ? nullptr
                                                    : workers_.OutOf(worker);
  if (out != nullptr) {
    const absl::Duration now = options_.clock->Monotonic();
    v1::AbsentWorker* absent = state->add_absent();
    absent->set_name(worker.info.name());
    absent->set_kind(v1::AbsentWorker::KIND_LEFT_OUT);
    absent->set_reason(out->why);
    absent->set_seconds_ago(absl::ToDoubleSeconds(now - out->since));
    absent->set_seconds_left(absl::ToDoubleSeconds(out->until - now));
  }
  const v1::Register& said = worker.info;
  v1::WorkerInfo* info = state->add_workers();
  info->set_id(id.value());
  info->set_name(said.name());
  info->set_link_address(said.link_address());
  info->set_metrics_address(said.metrics_address());
  info->set_device(said.device());
  info->set_host_memory_bytes(said.host_memory_bytes());
  info->set_compute_threads(said.compute_threads());
  info->set_version(said.version());
  info->set_profile(said.profile_json());
  info->set_seconds_since_heartbeat(absl::ToDoubleSeconds(worker.silent));
  info->set_busy_seconds(worker.heartbeat.busy_seconds());
  info->set_waiting_seconds(worker.heartbeat.waiting_seconds());
  info->set_idle_seconds(worker.heartbeat.idle_seconds());
  info->set_state(out != nullptr ? v1::WORKER_STATE_LEFT_OUT
                                 : v1::WORKER_STATE_SPARE);
  info->set_detail(out != nullptr ? out->why : WaitsFor(id, worker));
  plan_.Describe(id, info);
  search_.Describe(info->stage(), info);
  if (!worker.failure.empty()) {
    info->set_state(v1::WORKER_STATE_FAILED);
    info->set_detail(worker.failure);
  }
  if (!worker.same_model) {
    info->set_state(v1::WORKER_STATE_CHECKING);
    info->set_load_fraction(worker.hashed_share());
    info->set_detail(absl::StrFormat("checking its weights: %.0f %%",
                                     100 * worker.hashed_share()));
    if (said.fetches_model()) {
      info->set_detail("waits until it is known which model counts");
    }
  }
}

}  // namespace sluice
