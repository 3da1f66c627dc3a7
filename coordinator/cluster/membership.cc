#include "coordinator/cluster/membership.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/host/logging.h"
#include "coordinator/planning/plan_json.h"
#include "coordinator/planning/plan_monitor.h"

namespace sluice {
namespace {

constexpr size_t kMaxFormerPipelines = 4096;
constexpr char kDisturbed[] =
    "other work ran while this machine was measured, so that plans may be off: "
    "`sluice profile` with this worker's flags measures it again, and the "
    "worker's next start takes that";

}  // namespace

Membership::Membership(const ClusterOptions& options)
    : options_(options),
      workers_(options_),
      group_search_(options_, &workers_, &numbers_),
      advanced_at_(options.clock->Monotonic()) {
  pipelines_.push_back(
      std::make_unique<Pipeline>(options_, &workers_, &numbers_));
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
  if (message.has_step_result()) {
    Pipeline* const of = PipelineOf(id);
    const bool takes =
        of != nullptr && of->plan().TakesResult(id, message.step_result());
    if (takes) return std::move(*message.mutable_step_result());
  } else {
    Handle(id, std::move(message));
  }
  Settle();
  return std::nullopt;
}

void Membership::Handle(WorkerId id, v1::WorkerMessage message) {
  switch (message.kind_case()) {
    case v1::WorkerMessage::kRegister:
      RemoveFormerSelf(id, message.register_());
      workers_.Register(id, message.register_());
      OnRegistered(id);
      return;
    case v1::WorkerMessage::kLinksMeasured:
      workers_.OnLinksMeasured(id, message.links_measured());
      return;
    case v1::WorkerMessage::kLinksReached:
      if (message.links_reached().epoch() > 0) break;
      workers_.OnLinksTested(id, message.links_reached());
      return;
    case v1::WorkerMessage::kModelContent:
      workers_.OnModelContent(id, message.model_content());
      return;
    case v1::WorkerMessage::kMeasured:
      workers_.OnMeasured(id, message.measured());
      OnRegistered(id);
      return;
    case v1::WorkerMessage::kLeave:
      workers_.OnLeave(id);
      if (Pipeline* const of = PipelineOf(id)) of->plan().Withdraw(id);
      return;
    default:
      break;
  }
  Pipeline* const of = PipelineOf(id);
  if (of == nullptr) {
    if (message.has_heartbeat()) {
      workers_.at(id).heartbeat = std::move(*message.mutable_heartbeat());
    }
    return;  // all else is of a plan that it has left
  }
  RunningPlan& plan = of->plan();
  switch (message.kind_case()) {
    case v1::WorkerMessage::kHeartbeat:
      plan.OnHeartbeat(id, std::move(*message.mutable_heartbeat()));
      return;
    case v1::WorkerMessage::kLoadProgress:
      plan.OnLoadProgress(id, message.load_progress());
      return;
    case v1::WorkerMessage::kStageReady:
      plan.OnStageReady(id, message.stage_ready());
      return;
    case v1::WorkerMessage::kStageFailed:
      plan.OnStageFailed(id, message.stage_failed());
      return;
    case v1::WorkerMessage::kLinkId:
      plan.OnLinkId(id, std::move(*message.mutable_link_id()));
      return;
    case v1::WorkerMessage::kLinksReached:
      plan.OnLinksReached(id, message.links_reached());
      return;
    default:
      return;  // a newer worker's message
  }
}

void Membership::OnResolved(
    WorkerId id, const absl::StatusOr<std::vector<std::string>>& addresses) {
  const AttachedWorker* const worker = workers_.Find(id);
  if (worker == nullptr || worker->registered) return;
  workers_.OnResolved(id, addresses);
  OnRegistered(id);
  Settle();
}

void Membership::RemoveFormerSelf(WorkerId id, const v1::Register& info) {
  for (const auto& [other_id, other] : workers_.workers()) {
    if (other_id == id || !other.registered ||
        other.info.name() != info.name() ||
        other.info.link_address() != info.link_address()) {
      continue;
    }
    Remove(other_id, absl::UnavailableError("it has attached again"));
    return;
  }
}

void Membership::Drain(const std::string& name, bool drained) {
  workers_.Drain(name, drained);
  for (const auto& [id, pipeline] : pipeline_of_) {
    if (drained && workers_.name(id) == name) plan(pipeline).Withdraw(id);
  }
  Settle();
}

void Membership::LetGo() {
  std::vector<WorkerId> withdrawn;
  for (const auto& [id, worker] : workers_.workers()) {
    if (worker.registered && worker.withdrawn()) withdrawn.push_back(id);
  }
  for (const WorkerId id : withdrawn) {
    const AttachedWorker* const worker = workers_.Find(id);
    if (worker == nullptr) continue;  // it went with the one before
    Pipeline* const of = PipelineOf(id);
    if (of != nullptr &&
        (of->plan().StageOf(id) >= 0 || of->plan().Preparing(id))) {
      continue;
    }
    if (worker->leaving) {
      Remove(id, absl::CancelledError("the worker was stopped"));
    } else if (of != nullptr) {
      of->plan().Dismiss(id, "a worker is drained");
      pipeline_of_.erase(id);
    }
  }
}

void Membership::OnRegistered(WorkerId id) {
  const AttachedWorker* const worker = workers_.Find(id);
  if (worker == nullptr || !worker->registered) return;
  for (const auto& pipeline : pipelines_) pipeline->search().OnRegistered();
  group_search_.OnRegistered();
}

void Membership::OnClosed(WorkerId id, const absl::Status& reason) {
  Remove(id, reason);
}

void Membership::Remove(WorkerId id, const absl::Status& reason) {
  const std::optional<AttachedWorker> worker = workers_.Remove(id, reason);
  Pipeline* const of = PipelineOf(id);
  if (of != nullptr) {
    if (worker) {
      of->plan().OnGone(id, *worker, reason);
      if (former_pipeline_.size() < kMaxFormerPipelines) {
        former_pipeline_[worker->info.name()] = {pipeline_of_.at(id),
                                                 options_.clock->Monotonic()};
      }
    } else {
      of->plan().Leave(id, "a worker was refused");
    }
    pipeline_of_.erase(id);
  }
  Settle();
}

void Membership::Settle() {
  if (workers_.TakeJoined()) {
    for (const auto& pipeline : pipelines_) pipeline->plan().ForgetFailures();
  }
  for (const auto& [id, reason] : workers_.TakeDoomed()) Remove(id, reason);
}

void Membership::BreakLastStage(const absl::Status& reason, size_t pipeline) {
  const std::vector<WorkerId>& stages = plan(pipeline).stages();
  if (stages.empty()) return;
  const WorkerId last = stages.back();
  workers_.LeaveOut(
      last, absl::StrCat("what it answered made no sense: ", reason.message()));
  Remove(last, reason);
}

void Membership::SendPlan(v1::StepPlan plan, size_t pipeline) {
  v1::CoordinatorMessage message;
  *message.mutable_step_plan() = std::move(plan);
  workers_.Send(this->plan(pipeline).stages().front(), std::move(message));
  Settle();
}

void Membership::OnNewJobs(size_t pipeline) {
  workers_.DropFormerModel();
  Settle();
  pipelines_[pipeline]->OnNewJobs();
}

void Membership::OnPlanned(PlanAnswer answer) {
  if (group_search_.Awaits(answer.ticket)) {
    if (auto groups = group_search_.OnAnswer(std::move(answer))) {
      Apply(*groups);
    }
    Settle();
    return;
  }
  for (const auto& pipeline : pipelines_) {
    if (!pipeline->search().Awaits(answer.ticket)) continue;
    pipeline->OnPlanned(std::move(answer));
    break;
  }
  Settle();
}

std::optional<PlanTask> Membership::TakeTask() {
  // A pipeline that waits for its plan goes before better groups.
  for (size_t p = 0; p < pipelines_.size(); ++p) {
    std::optional<PlanTask> task = search(p).TakeTask();
    if (!task) continue;
    task->pipeline = p;
    ShareMachines(&*task);
    return task;
  }
  return group_search_.TakeTask();
}

void Membership::ShareMachines(PlanTask* task) const {
  std::map<std::string, int> others;  // pipelines by machine
  for (size_t p = 0; p < pipelines_.size(); ++p) {
    if (p == task->pipeline) continue;
    std::vector<WorkerId> profiled;
    for (const WorkerId id : pipelines_[p]->plan().workers()) {
      if (workers_.at(id).profile) profiled.push_back(id);
    }
    std::set<std::string> machines;
    for (const MachineProfile& worker : workers_.PlanningProfiles(profiled)) {
      if (!worker.machine.empty()) machines.insert(worker.machine);
    }
    for (const std::string& machine : machines) ++others[machine];
  }
  for (MachineProfile& worker : task->machines) {
    const auto it = others.find(worker.machine);
    if (it == others.end()) continue;
    const double share = 1.0 / (1 + it->second);
    for (const Resource resource :
         {Resource::kDiskRead, Resource::kDiskWrite, Resource::kHostCompute}) {
      ScaleResource(resource, share, &worker);
    }
  }
}

// -- Groups.

Pipeline* Membership::PipelineOf(WorkerId id) const {
  const auto it = pipeline_of_.find(id);
  return it == pipeline_of_.end() ? nullptr : pipelines_[it->second].get();
}

std::vector<size_t> Membership::InUse() const {
  std::vector<size_t> in_use;
  for (size_t p = 0; p < pipelines_.size(); ++p) {
    if (pipelines_[p]->plan().num_workers() > 0) in_use.push_back(p);
  }
  return in_use;
}

bool Membership::Works(size_t pipeline) const {
  if (plan(pipeline).running()) return true;
  const std::vector<WorkerId> workers = plan(pipeline).workers();
  return std::count_if(workers.begin(), workers.end(), [&](WorkerId id) {
           return Able(workers_.at(id));
         }) >= std::max(1, pipelines_[pipeline]->min_workers());
}

bool Membership::Able(const AttachedWorker& worker) const {
  return Usable(worker) && worker.failure.empty() &&
         workers_.OutOf(worker) == nullptr;
}

GroupView Membership::View() const {
  GroupView view;
  for (const auto& [id, worker] : workers_.workers()) {
    if (!worker.registered || worker.measuring || worker.withdrawn()) continue;
    ++view.registered;
    if (!Usable(worker)) continue;
    GroupedWorker& grouped = view.workers.emplace_back();
    grouped.id = id;
    grouped.name = worker.info.name();
    grouped.able = Able(worker);
    if (const auto it = pipeline_of_.find(id); it != pipeline_of_.end()) {
      grouped.pipeline = static_cast<int>(it->second);
    }
    if (const auto it = former_pipeline_.find(grouped.name);
        it != former_pipeline_.end()) {
      grouped.former = static_cast<int>(it->second.pipeline);
    }
  }
  for (size_t p = 0; p < pipelines_.size(); ++p) {
    view.pipelines.push_back({laid_out_[p], pipelines_[p]->min_workers()});
  }
  view.min_workers = options_.min_workers;
  view.replicas = std::max(1, options_.replicas);
  for (const Plan& plan : options_.fixed_plans) {
    std::vector<std::string>& names = view.fixed.emplace_back();
    for (const StagePlan& stage : plan.stages) names.push_back(stage.worker);
  }
  std::vector<WorkerId> usable;
  for (const GroupedWorker& worker : view.workers) usable.push_back(worker.id);
  view.searched = group_search_.Groups(usable);
  view.since_change = options_.clock->Monotonic() - workers_.changed_at();
  view.settle_time = options_.timeouts.settle_time;
  return view;
}

void Membership::Group() {
  // This is asked with every event.
  if (grouped_at_ == workers_.changes()) return;
  const GroupView view = View();
  const GroupDecision decision = DecideGroups(view);
  group_detail_.clear();
  switch (decision.action) {
    case GroupDecision::Action::kKeep:
      // The planner is asked as time passes.
      if (!view.searched) grouped_at_ = workers_.changes();
      return;
    case GroupDecision::Action::kWait: {
      // The missing worker may be one that was here.
      const std::string absent = workers_.LastAbsent();
      const bool waits =
          absl::StartsWith(decision.detail, "waiting for workers");
      group_detail_ = absl::StrCat(
          decision.detail, workers_.CheckingDetail(),
          waits && !absent.empty() ? absl::StrCat("; ", absent) : "");
      return;
    }
    case GroupDecision::Action::kJoin:
      for (const GroupDecision::Join& join : decision.joins) {
        Move(join.worker, join.pipeline);
      }
      return;
    case GroupDecision::Action::kGroup: {
      std::vector<GroupSearch::Group> groups;
      const auto count = static_cast<double>(decision.groups.size());
      for (const std::vector<WorkerId>& group : decision.groups) {
        groups.push_back({group, 1 / count});
      }
      Apply(groups);
      return;
    }
    case GroupDecision::Action::kSearch:
      SearchGroups(decision.none_works);
      return;
  }
}

void Membership::Move(WorkerId id, size_t pipeline) {
  LayerRange held;
  if (const auto it = pipeline_of_.find(id); it != pipeline_of_.end()) {
    if (it->second == pipeline) return;
    held = plan(it->second)
               .Leave(id, absl::StrCat("worker '", workers_.name(id),
                                       "' goes to pipeline ", pipeline));
  }
  plan(pipeline).Join(id, held);
  pipeline_of_[id] = pipeline;
  former_pipeline_.erase(workers_.name(id));
}

std::vector<WorkerId> Membership::UsableForGroups() const {
  const std::vector<size_t> in_use = InUse();
  const bool any_works =
      std::any_of(in_use.begin(), in_use.end(),
                  [&](size_t pipeline) { return Works(pipeline); });
  std::vector<WorkerId> all;
  std::vector<WorkerId> able;
  for (const auto& [id, worker] : workers_.workers()) {
    if (!Usable(worker)) continue;
    all.push_back(id);
    const bool can =
        any_works ? !workers_.CannotBeLinked(worker) : Able(worker);
    if (can) able.push_back(id);
  }
  const auto least = static_cast<size_t>(
      std::max({1, options_.min_workers, options_.replicas}));
  return able.size() >= least ? able : all;
}

void Membership::SearchGroups(bool none_works) {
  std::vector<WorkerId> usable = UsableForGroups();
  std::vector<std::vector<WorkerId>> present;
  absl::Duration load_time;
  WorkProgress progress = {.output_share = 0};
  const std::vector<size_t> in_use = InUse();
  for (const size_t p : in_use) {
    // How long loading takes is known when it is done.
    if (plan(p).phase() == Phase::kLoading && Works(p)) return;
    if (plan(p).running()) {
      load_time = std::max(load_time, search(p).load_time());
    }
    progress.output_share =
        std::max(progress.output_share, search(p).output_share());
    progress.held_rows += search(p).held_rows();
    if (Works(p)) present.push_back(plan(p).workers());
  }
  if (group_search_.Wanted(usable, none_works)) {
    if (workers_.KnowsLinks(usable)) {
      if (progress.output_share <= 0) progress.output_share = 1;
      group_search_.Begin(std::move(usable), std::move(present), load_time,
                          progress);
    } else if (in_use.empty()) {
      group_detail_ = "measuring links";
      return;
    }
  }
  if (in_use.empty()) group_detail_ = group_search_.detail();
}

void Membership::Apply(const std::vector<GroupSearch::Group>& groups) {
  // Each group is the pipeline that most of its workers are in.
  struct Match {
    int64_t common;
    size_t group;
    size_t pipeline;
  };
  std::vector<Match> matches;
  while (pipelines_.size() < groups.size()) {
    pipelines_.push_back(
        std::make_unique<Pipeline>(options_, &workers_, &numbers_));
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t p = 0; p < pipelines_.size(); ++p) {
      const int64_t common =
          std::count_if(groups[g].workers.begin(), groups[g].workers.end(),
                        [&](WorkerId id) { return plan(p).Has(id); });
      matches.push_back({common, g, p});
    }
  }
  std::stable_sort(
      matches.begin(), matches.end(),
      [](const Match& a, const Match& b) { return a.common > b.common; });
  std::vector<bool> placed(groups.size());
  std::vector<bool> taken(pipelines_.size());
  const auto n = static_cast<int32_t>(groups.size());
  for (const Match& match : matches) {
    if (placed[match.group] || taken[match.pipeline]) continue;
    placed[match.group] = taken[match.pipeline] = true;
    const GroupSearch::Group& group = groups[match.group];
    Pipeline& pipeline = *pipelines_[match.pipeline];
    const auto size = static_cast<int32_t>(group.workers.size());
    if (n > 1 && !options_.fixed_plans.empty()) {
      const Plan& plan = options_.fixed_plans[match.group];
      pipeline.SetFixedPlan(plan);
      pipeline.SetShape(static_cast<int32_t>(plan.stages.size()), group.share);
    } else {
      pipeline.SetShape(MinWorkersOf(options_.min_workers, n, size),
                        group.share);
    }
    for (const WorkerId id : group.workers) Move(id, match.pipeline);
  }
  laid_out_ = std::move(taken);
  // Who is in no group any more has no pipeline.
  for (auto it = pipeline_of_.begin(); it != pipeline_of_.end();) {
    const bool stays =
        std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
          return std::count(group.workers.begin(), group.workers.end(),
                            it->first) > 0;
        });
    if (!stays) {
      plan(it->second).Dismiss(it->first, "the planner does without a worker");
    }
    it = stays ? std::next(it) : pipeline_of_.erase(it);
  }
  former_pipeline_.clear();
  LogInfo("pipelines=", n, " workers=", pipeline_of_.size());
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
  workers_.TestLinks();
  Settle();
  Group();
  Settle();
  for (size_t p = 0; p < pipelines_.size(); ++p) {
    plan(p).Watch(passed);
    Settle();
    pipelines_[p]->Decide();
    Settle();
    plan(p).FollowPreparation(passed);
    Settle();
    if (plan(p).running() && plan(p).plan()) {
      search(p).FollowMeasured(*plan(p).plan(), plan(p).stages());
    }
  }
  LetGo();
}

// -- Reporting.

Membership::Phase Membership::phase() const {
  Phase phase = Phase::kNoPlan;
  for (const auto& pipeline : pipelines_) {
    phase = std::max(phase, pipeline->plan().phase());
  }
  return phase;
}

std::string Membership::detail() const {
  if (!group_detail_.empty()) return group_detail_;
  const std::vector<size_t> in_use = InUse();
  if (in_use.size() < 2) {
    return pipelines_[in_use.empty() ? 0 : in_use[0]]->detail();
  }
  for (const size_t p : in_use) {
    const std::string detail = pipelines_[p]->detail();
    if (!detail.empty()) return absl::StrCat("pipeline ", p, ": ", detail);
  }
  return "";
}

bool Membership::Awaited(size_t pipeline) const {
  const absl::Duration now = options_.clock->Monotonic();
  int64_t workers = plan(pipeline).num_workers();
  for (const auto& [name, former] : former_pipeline_) {
    if (former.pipeline == pipeline &&
        now - former.lost_at <= WorkerTimeouts::kLostKept) {
      ++workers;
    }
  }
  return workers >= std::max(1, pipelines_[pipeline]->min_workers());
}

std::optional<std::string> Membership::TakeNewPlan() {
  std::optional<std::string> changed;
  std::vector<Plan> plans;
  const std::vector<size_t> in_use = InUse();
  for (const size_t p : in_use) {
    if (std::optional<std::string> plan = this->plan(p).TakeNewPlan()) {
      changed = std::move(plan);
    }
    if (this->plan(p).plan()) plans.push_back(*this->plan(p).plan());
  }
  if (!changed || in_use.size() < 2) return changed;
  return plans.empty() ? std::string() : PlansToJson(plans);
}

void Membership::Describe(v1::ClusterState* state) {
  state->set_min_workers(options_.min_workers);
  state->set_num_layers(options_.num_layers);
  state->set_epoch(numbers_.last_plan);
  state->set_gbs(plan().policy().gbs);
  std::vector<Plan> plans;
  for (const size_t p : InUse()) {
    v1::PipelineInfo* info = state->add_pipelines();
    info->set_pipeline(static_cast<int32_t>(p));
    plan(p).Describe(info);
    info->set_state(pipelines_[p]->detail());
    state->set_num_blocks(state->num_blocks() + info->num_blocks());
    if (plan(p).plan()) plans.push_back(*plan(p).plan());
  }
  if (state->pipelines_size() > 0) state->set_gbs(state->pipelines(0).gbs());
  if (!plans.empty()) {
    state->set_plan(state->pipelines_size() < 2 ? PlanToJson(plans[0])
                                                : PlansToJson(plans));
  }
  for (const auto& [kind, count] : numbers_.failures_by_kind) {
    v1::PlanFailures* failures = state->add_plan_failures();
    failures->set_reason(kind);
    failures->set_count(count);
  }
  for (const auto& [id, worker] : workers_.workers()) {
    if (worker.registered) DescribeWorker(id, worker, state);
  }
  workers_.DescribeAbsent(state);
}

void Membership::DescribeWorker(WorkerId id, const AttachedWorker& worker,
                                v1::ClusterState* state) const {
  const Pipeline* const of = PipelineOf(id);
  const bool busy = of != nullptr &&
                    (of->plan().StageOf(id) >= 0 || of->plan().Preparing(id));
  const LeftOut::Entry* const out = busy ? nullptr : workers_.OutOf(worker);
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
  info->set_stage(-1);
  info->set_pipeline(-1);
  if (worker.profile && worker.profile->disturbed) {
    info->set_detail(kDisturbed);
  }
  if (of != nullptr) {
    info->set_pipeline(static_cast<int32_t>(pipeline_of_.at(id)));
    const std::string waits = of->WaitsFor(id, worker);
    if (!waits.empty()) info->set_detail(waits);
    of->plan().Describe(id, info);
    of->search().Describe(info->stage(), info);
  }
  if (out != nullptr) info->set_detail(out->why);
  if (!worker.failure.empty()) {
    info->set_state(v1::WORKER_STATE_FAILED);
    info->set_detail(worker.failure);
  }
  if (worker.withdrawn()) {
    if (!busy) info->set_state(v1::WORKER_STATE_DRAINED);
    info->set_detail(busy ? "is to go: works until another plan begins"
                          : "drained: plans do without it");
  }
  if (worker.measuring) {
    info->set_state(v1::WORKER_STATE_MEASURING);
    info->set_load_fraction(worker.heartbeat.measured_share());
    info->set_detail(worker.heartbeat.awaits_measurement()
                         ? "waits while another process measures this machine"
                         : "measures its machine");
  } else if (!worker.same_model) {
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
