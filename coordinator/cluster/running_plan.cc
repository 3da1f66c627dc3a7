#include "coordinator/cluster/running_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/policy_keys.h"
#include "common/status_macros.h"
#include "coordinator/cluster/links/link_plan.h"
#include "coordinator/cluster/stall.h"
#include "coordinator/cluster/worker_facts.h"
#include "coordinator/planning/plan_json.h"
#include "proto/convert.h"

namespace sluice {
namespace {

constexpr size_t kMaxFormerWorkers = 4096;
constexpr size_t kMaxLinkIdBytes = 1024;
constexpr absl::Duration kMaxBackOff = absl::Minutes(1);
constexpr int kMaxFailures = 30;
// Workers report no progress while they allocate weights and KV cache.
constexpr double kTakenPerSecond = 1 << 30;
constexpr absl::Duration kMaxTaking = absl::Minutes(15);
// A worker tries to open its link for 20 s at most, and reports a failure.
constexpr absl::Duration kMaxConnecting = absl::Seconds(30);

}  // namespace

RunningPlan::RunningPlan(const ClusterOptions& options, WorkerRegistry* workers,
                         PlanSearch* search, PlanNumbers* numbers)
    : options_(options),
      workers_(workers),
      search_(search),
      numbers_(numbers),
      losses_(WorkerTimeouts::kFirstLeftOut, WorkerTimeouts::kMaxLeftOut) {}

int32_t RunningPlan::StageOf(WorkerId id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? -1 : it->second.stage;
}

bool RunningPlan::Preparing(WorkerId id) const {
  const auto it = members_.find(id);
  return it != members_.end() && it->second.preparing;
}

bool RunningPlan::Prepares(const Stage& stage, int64_t epoch) const {
  return stage.preparing && preparation_ &&
         epoch == preparation_->epoch.value();
}

bool RunningPlan::InPreparation(WorkerId id) const {
  return preparation_ &&
         std::any_of(preparation_->next.stages.begin(),
                     preparation_->next.stages.end(),
                     [&](const StageAssignment& s) { return s.worker == id; });
}

// -- Workers.

void RunningPlan::Join(WorkerId id, LayerRange held) {
  Stage& stage = members_[id];
  stage.layers = held;
  if (const auto it = former_layers_.find(workers_->name(id));
      it != former_layers_.end()) {
    if (held.size() == 0) stage.layers = it->second;
    former_layers_.erase(it);
  }
}

std::vector<WorkerId> RunningPlan::workers() const {
  std::vector<WorkerId> ids;
  for (const auto& [id, stage] : members_) ids.push_back(id);
  return ids;
}

LayerRange RunningPlan::Leave(WorkerId id, const std::string& why) {
  const auto it = members_.find(id);
  if (it == members_.end()) return {};
  if (InPreparation(id)) EndPreparation(why);
  if (it->second.stage >= 0) End(why, LogLevel::kInfo);
  const LayerRange held = it->second.layers;
  members_.erase(it);
  ForgetFailures();
  return held;
}

void RunningPlan::Dismiss(WorkerId id, const std::string& why) {
  if (Leave(id, why).size() > 0) Retire(id, epoch_);
}

// -- Messages of workers.

void RunningPlan::OnHeartbeat(WorkerId id, v1::Heartbeat heartbeat) {
  AttachedWorker& worker = workers_->at(id);
  Stage& stage = members_.at(id);
  const v1::Activity& before = worker.heartbeat.activity();
  const v1::Activity& now = heartbeat.activity();
  const bool stood = now.marks() == before.marks() &&
                     now.kind() == before.kind() &&
                     now.epoch() == before.epoch() &&
                     now.last_step_out() == before.last_step_out();
  for (Pace* pace : {&stage.pace, stage.stage >= 0 ? &pace_ : nullptr}) {
    if (pace == nullptr) continue;
    if (stood) {
      pace->Stood(options_.timeouts.heartbeat_interval);
    } else {
      pace->Moved();
    }
  }
  search_->OnHeartbeat(stage.stage, heartbeat);
  worker.heartbeat = std::move(heartbeat);
}

void RunningPlan::OnLoadProgress(WorkerId id,
                                 const v1::LoadProgress& progress) {
  Stage& stage = members_.at(id);
  if (!Prepares(stage, progress.epoch()) &&
      progress.epoch() != epoch_.value()) {
    return;
  }
  const uint64_t before = stage.load.done();
  stage.fetching = progress.fetching();
  stage.load.Observe(options_.clock->Monotonic(), progress.bytes_done(),
                     progress.bytes_total());
  if (stage.load.done() != before) stage.pace.Moved();
}

void RunningPlan::OnStageReady(WorkerId id, const v1::StageReady& ready) {
  Stage& stage = members_.at(id);
  AttachedWorker& worker = workers_->at(id);
  const bool preparing = Prepares(stage, ready.epoch());
  if (!preparing && (phase_ != Phase::kLoading ||
                     ready.epoch() != epoch_.value() || stage.stage < 0)) {
    return;
  }
  if (ready.kv_pages() <= 0 || ready.page_tokens() <= 0 ||
      ready.window_pages_each() < 0 ||
      ready.window_pages() < ready.window_pages_each()) {
    worker.failure = absl::StrCat("worker '", worker.info.name(),
                                  "' has no memory left for the KV cache");
    return preparing ? FailPreparation("load", worker.failure)
                     : Fail("load", worker.failure);
  }
  stage.pace.Moved();
  if (preparing) {
    stage.prepared = true;
    return;
  }
  stage.ready = true;
  stage.kv = {ready.kv_pages(),
              ready.kv_by_need(),
              ready.kv_shared(),
              {ready.window_pages(), ready.window_pages_each()},
              ready.page_tokens()};
  const uint64_t bytes = std::max<uint64_t>(
      {stage.load.total(), ready.weight_bytes(), uint64_t{1}});
  stage.load.Observe(options_.clock->Monotonic(), bytes, bytes);
  for (WorkerId other_id : stages_) {
    const Stage& other = members_.at(other_id);
    if (!other.ready) return;
    if (other.kv.page_tokens == stage.kv.page_tokens) continue;
    Fail("load",
         absl::StrCat("worker '", worker.info.name(), "' has KV pages of ",
                      stage.kv.page_tokens, " tokens, but worker '",
                      workers_->name(other_id), "' of ", other.kv.page_tokens));
    return;
  }
  BeginToRun(id);
}

void RunningPlan::BeginToRun(WorkerId last) {
  const absl::Duration now = options_.clock->Monotonic();
  kv_ = members_.at(last).kv;
  for (WorkerId id : stages_) {
    kv_.Narrow(members_.at(id).kv);
  }
  phase_ = Phase::kRunning;
  losses_.Begin(now);
  workers_->BeginModel(workers_->at(last).content);
  failed_before_.clear();
  pace_.Start();
  oldest_step_.reset();
  for (size_t s = 0; s + 1 < stages_.size(); ++s) {
    workers_->OnReached(stages_[s], stages_[s + 1]);
  }
  search_->OnLoaded(now - load_began_);
  // What the disk does for loading says nothing about the plan.
  if (plan_ && options_.fixed_plans.empty()) {
    search_->OnBegun(*plan_, stages_, plan_rows_);
  }
  detail_.clear();
  LogInfo("plan ready ", LogEpoch(epoch_.value()), " stages=", stages_.size(),
          " kv_pages=", kv_.pages, kv_.by_need ? " by need" : " reserved",
          " page_tokens=", kv_.page_tokens);
}

void RunningPlan::OnLinkId(WorkerId id, v1::LinkId link) {
  if (link.id().size() > kMaxLinkIdBytes) {
    workers_->Doom(
        id, InvalidArgument("a link's id of ", link.id().size(), " bytes"));
    return;
  }
  const auto stage = static_cast<size_t>(members_.at(id).stage);
  if (phase_ == Phase::kNoPlan || link.epoch() != epoch_.value() ||
      stage >= links_.size() || links_[stage] != v1::LINK_TRANSPORT_NCCL) {
    return;
  }
  v1::CoordinatorMessage message;
  *message.mutable_link_id() = std::move(link);
  workers_->Send(stages_[stage + 1], std::move(message));
}

void RunningPlan::OnStageFailed(WorkerId id, const v1::StageFailed& failed) {
  const Stage& stage = members_.at(id);
  if (Prepares(stage, failed.epoch())) {
    OnPrepareFailed(id, failed);
    return;
  }
  AttachedWorker& worker = workers_->at(id);
  const auto code = static_cast<absl::StatusCode>(failed.code());
  // This is noted also when the plan has ended: the other end of a link may
  // have reported the failure first, without its reason.
  const bool link_failed = failed.epoch() == epoch_.value() &&
                           code == absl::StatusCode::kUnimplemented &&
                           NoteFailedLink(worker.info, &worker.failed_links);
  if (phase_ == Phase::kNoPlan || failed.epoch() != epoch_.value() ||
      stage.stage < 0) {
    return;
  }
  const std::string why = absl::StrCat(
      "worker '", worker.info.name(), "' failed in stage ", stage.stage,
      " (layers ", stage.layers.begin, " to ", stage.layers.end - 1,
      "): ", absl::StatusCodeToString(code), ": ", ClipText(failed.message()));
  if (phase_ == Phase::kLoading && plan_ && options_.fixed_plans.empty() &&
      code == absl::StatusCode::kResourceExhausted) {
    // The planner took too much memory; the workers' own choice fits.
    LogWarning("the plan does not fit: ", why);
    search_->GiveUp();
  } else if (phase_ == Phase::kLoading && !link_failed && !IsTransient(code)) {
    worker.failure = why;
  } else if (running() && !IsTransient(code) && failures_ > 0) {
    // The worker failed before, with nothing finished in between.
    workers_->LeaveOut(id, why);
  }
  const auto next = static_cast<size_t>(stage.stage) + 1;
  const bool unreached = failed.next_unreached() && next < stages_.size();
  if (unreached) workers_->BlameLink(id, stages_[next], why);
  const bool known = unreached || !worker.failure.empty() ||
                     workers_->OutOf(worker) != nullptr;
  Fail(unreached || code == absl::StatusCode::kUnavailable ? "link"
       : phase_ == Phase::kLoading                         ? "load"
                                                           : "step",
       why, known);
}

bool RunningPlan::TakesResult(WorkerId id, const v1::StepResult& result) {
  if (!running() || id != stages_.back() || result.epoch() != epoch_.value()) {
    return false;
  }
  pace_.Moved();
  return true;
}

void RunningPlan::OnGone(WorkerId id, const AttachedWorker& worker,
                         const absl::Status& reason) {
  const auto it = members_.find(id);
  if (it == members_.end()) return;
  const Stage stage = it->second;
  const bool in_preparation = InPreparation(id);
  members_.erase(it);
  const std::string& name = worker.info.name();
  if (in_preparation && stage.stage < 0) {
    EndPreparation(absl::StrCat("worker '", name, "' is gone"));
  }
  if (stage.layers.size() > 0 && former_layers_.size() < kMaxFormerWorkers) {
    former_layers_[name] = stage.layers;
  }
  const bool on_purpose = absl::IsCancelled(reason);
  // The others may have reported broken links before its stream ended, and many
  // that go at once are one loss.
  const bool of_plan =
      stage.stage >= 0 || (phase_ == Phase::kNoPlan && stage.planned == epoch_);
  if (!on_purpose && of_plan && epoch_ != lost_epoch_) {
    lost_epoch_ = epoch_;
    losses_.Add(could_have_);
    workers_->EndNewcomers();
  }
  if (stage.stage >= 0) {
    if (!on_purpose) {
      const bool stalled =
          absl::IsDeadlineExceeded(reason) && workers_->OutOf(worker);
      ++numbers_->failures_by_kind[stalled ? "stall" : "lost"];
    }
    End(absl::StrCat("worker '", name, "' is gone"),
        on_purpose ? LogLevel::kInfo : LogLevel::kWarning);
  }
  // Others that failed because of it are not to blame.
  ForgetFailures();
  last_failure_.clear();
}

// -- Replacing plans.

void RunningPlan::Follow(NextPlan next) {
  std::vector<size_t> joining;
  std::vector<size_t> untested;
  for (size_t s = 0; s < next.stages.size(); ++s) {
    const WorkerId id = next.stages[s].worker;
    if (phase_ != Phase::kNoPlan && members_.at(id).stage < 0) {
      joining.push_back(s);
    }
    if (s + 1 < next.stages.size() &&
        ToBeTested(id, next.stages[s + 1].worker)) {
      untested.push_back(s);
    }
  }
  if (phase_ == Phase::kLoading && joining.empty() && !HoldsWithdrawn()) {
    could_have_ = next.workers;  // it uses no more workers than this one
    return;
  }
  if (joining.empty() && (running() || untested.empty())) {
    Begin(std::move(next), std::nullopt);
    return;
  }
  const std::optional<std::vector<v1::LinkTransport>> links =
      LinksFor(next.stages);
  if (!links.has_value()) return;
  EndPreparation("another plan is to follow");
  // Workers that could not be told are gone. The next decision sees the rest.
  if (workers_->any_doomed()) return;
  const PlanEpoch epoch = numbers_->NextEpoch();
  preparation_ = {.epoch = epoch, .next = std::move(next)};
  const std::vector<StageAssignment>& stages = preparation_->next.stages;
  LogInfo("preparing a plan ", LogEpoch(epoch.value()),
          " stages=", stages.size(), " joining=", joining.size());
  for (size_t s : joining) {
    Stage& stage = members_.at(stages[s].worker);
    stage.preparing = true;
    stage.layers = stages[s].layers;
    stage.load.Start();
    stage.fetching = false;
    stage.pace.Start();
    v1::CoordinatorMessage message =
        Assignment(preparation_->next, *links, epoch, s);
    message.mutable_assign_stage()->set_prepare(true);
    workers_->Send(stages[s].worker, std::move(message));
  }
  AskForLinks(untested);
}

bool RunningPlan::ToBeTested(WorkerId from, WorkerId to) const {
  const int32_t stage = members_.at(from).stage;
  if (stage >= 0 && members_.at(to).stage == stage + 1) return false;
  if (phase_ == Phase::kNoPlan && !options_.test_links) return false;
  return !workers_->link_tests().Works(from, to);
}

void RunningPlan::AskForLinks(const std::vector<size_t>& from_stages) {
  const PlanEpoch epoch = preparation_->epoch;
  const std::vector<StageAssignment>& stages = preparation_->next.stages;
  for (const size_t s : from_stages) {
    members_.at(stages[s].worker).reaching = true;
    const v1::Register& peer = workers_->at(stages[s + 1].worker).info;
    v1::CoordinatorMessage message;
    message.mutable_reach_links()->set_epoch(epoch.value());
    auto* reach = message.mutable_reach_links()->add_peers();
    reach->set_name(peer.name());
    reach->set_link_address(peer.link_address());
    workers_->Send(stages[s].worker, std::move(message));
  }
}

void RunningPlan::Begin(NextPlan next, std::optional<PlanEpoch> epoch) {
  End("another plan follows", LogLevel::kInfo);
  could_have_ = next.workers;
  std::optional<std::vector<v1::LinkTransport>> links = LinksFor(next.stages);
  if (!links.has_value()) return;
  links_ = *std::move(links);
  new_plan_ = next.plan || planned_before_;
  planned_before_ = next.plan.has_value();
  plan_ = next.plan;
  if (plan_) policy_ = StagePolicy(plan_, 0);
  epoch_ = epoch ? *epoch : numbers_->NextEpoch();
  numbers_->last_plan = epoch_.value();
  phase_ = Phase::kLoading;
  load_began_ = options_.clock->Monotonic();
  for (auto& [id, stage] : members_) {
    stage.load.Start();
    stage.pace.Start();
    stage.fetching = false;
  }
  for (size_t s = 0; s < next.stages.size(); ++s) {
    const WorkerId id = next.stages[s].worker;
    stages_.push_back(id);
    Stage& stage = members_.at(id);
    stage.stage = static_cast<int32_t>(s);
    stage.planned = epoch_;
    stage.layers = next.stages[s].layers;
    workers_->at(id).failure.clear();
  }
  last_failure_.clear();
  LogInfo("plan made ", LogEpoch(epoch_.value()), " stages=", stages_.size());
  // The last stage is told first, so that each stage finds the next one ready.
  for (size_t s = stages_.size(); s-- > 0;) {
    workers_->Send(stages_[s], Assignment(next, links_, epoch_, s));
  }
  for (auto& [id, stage] : members_) {
    if (stage.stage >= 0 || stage.layers.size() == 0) continue;
    stage.layers = {};
    Retire(id, epoch_);
  }
  plan_rows_ = next.rows;
  num_blocks_ = BlocksOf(next);
}

void RunningPlan::Refresh(Plan plan, const PhaseRows& rows) {
  if (!running() || !plan_) return;
  plan_ = std::move(plan);
  new_plan_ = true;
  search_->OnBegun(*plan_, stages_, rows);
}

void RunningPlan::End(const std::string& why, LogLevel level) {
  if (phase_ == Phase::kNoPlan) {
    EndPreparation(why);
    return;
  }
  Log(level, absl::StrCat("plan ended epoch=", epoch_.value(), ": ", why),
      {LogEpoch(epoch_.value())});
  phase_ = Phase::kNoPlan;
  stages_.clear();
  links_.clear();
  plan_.reset();
  search_->OnEnded();
  preparation_.reset();
  oldest_step_.reset();
  for (auto& [id, stage] : members_) {
    stage.stage = -1;
    stage.ready = false;
    stage.preparing = stage.prepared = stage.reaching = false;
  }
}

void RunningPlan::Fail(const char* kind, const std::string& why,
                       bool culprit_known) {
  culprit_known_ = culprit_known;
  ++numbers_->failures_by_kind[kind];
  failed_before_ = why;
  failures_ = std::min(failures_ + 1, kMaxFailures);
  const absl::Duration wait =
      std::min(kMaxBackOff, options_.timeouts.first_back_off *
                                (int64_t{1} << (failures_ - 1)));
  retry_at_ = options_.clock->Monotonic() + wait;
  last_failure_ = why;
  detail_ = why;
  End(why, options_.failure_level);
}

void RunningPlan::ForgetFailures() {
  failures_ = 0;
  retry_at_ = absl::ZeroDuration();
}

void RunningPlan::OnProgress() {
  failures_ = 0;
  losses_.Progress(could_have_, options_.clock->Monotonic());
  if (!workers_->any_left_out()) return;
  for (WorkerId id : stages_) workers_->Pardon(id);
}

void RunningPlan::OnSteps(std::optional<int64_t> oldest) {
  if (oldest != oldest_step_) pace_.Moved();
  oldest_step_ = oldest;
}

std::optional<std::string> RunningPlan::TakeNewPlan() {
  if (!std::exchange(new_plan_, false)) return std::nullopt;
  return plan_ ? PlanToJson(*plan_) : std::string();
}

bool RunningPlan::HoldsNewcomers() const {
  // Newcomers may be needed if a plan of the others failed.
  return failures_ == 0 && losses_.hold(running(), options_.clock->Monotonic());
}

std::optional<std::vector<v1::LinkTransport>> RunningPlan::LinksFor(
    const std::vector<StageAssignment>& stages) {
  std::vector<LinkAbility> abilities;
  for (const StageAssignment& stage : stages) {
    const AttachedWorker& worker = workers_->at(stage.worker);
    abilities.push_back(LinkAbility::Of(worker.info));
    abilities.back().failed = worker.failed_links;
  }
  LinkPlan links = PlanLinks(abilities);
  if (links.misfit < 0) return std::move(links.links);
  // The worker sits out if the others suffice.
  LogWarning(links.why);
  workers_->at(stages[static_cast<size_t>(links.misfit)].worker).failure =
      links.why;
  if (phase_ == Phase::kNoPlan) Fail("link", links.why);
  return std::nullopt;
}

int32_t RunningPlan::BlocksOf(const NextPlan& next) const {
  if (next.plan) return next.plan->block.num_blocks;
  const auto stages = static_cast<int32_t>(next.stages.size());
  if (options_.num_blocks > 0) return std::max(options_.num_blocks, stages);
  const bool resident = std::all_of(
      next.stages.begin(), next.stages.end(),
      [&](const StageAssignment& stage) {
        const AttachedWorker& worker = workers_->at(stage.worker);
        return HoldsWeights(worker.info, worker.profile,
                            options_.layer_bytes * stage.layers.size());
      });
  return stages > 1 && options_.layer_bytes > 0 && resident ? stages + 1
                                                            : stages;
}

Policy RunningPlan::StagePolicy(const std::optional<Plan>& plan,
                                size_t stage) const {
  if (!plan) return options_.policy;
  // The rest of the policy is not part of a plan.
  Policy policy = plan->stages[stage].policy;
  policy.dtype = options_.policy.dtype;
  for (const PolicyKey& key : PolicyKeys()) {
    if (key.plan == PlanRole::kAside) key.copy(options_.policy, &policy);
  }
  return policy;
}

v1::CoordinatorMessage RunningPlan::Assignment(
    const NextPlan& next, const std::vector<v1::LinkTransport>& links,
    PlanEpoch epoch, size_t s) const {
  const std::vector<StageAssignment>& stages = next.stages;
  v1::CoordinatorMessage message;
  v1::AssignStage& assign = *message.mutable_assign_stage();
  assign.set_epoch(epoch.value());
  assign.set_stage(static_cast<int32_t>(s));
  assign.set_num_stages(static_cast<int32_t>(stages.size()));
  assign.mutable_layers()->set_begin(stages[s].layers.begin);
  assign.mutable_layers()->set_end(stages[s].layers.end);
  if (s + 1 < stages.size()) {
    assign.set_next_link_address(
        workers_->at(stages[s + 1].worker).info.link_address());
    assign.set_next_link(links[s]);
  }
  if (s > 0) assign.set_previous_link(links[s - 1]);
  const Policy policy = StagePolicy(next.plan, s);
  const int32_t blocks = BlocksOf(next);
  ToProto(policy, assign.mutable_policy());
  assign.set_max_model_len(options_.max_model_len);
  if (next.plan && !next.plan->stages[s].policy.automatic_kv_cache) {
    assign.set_kv_positions(
        std::min(options_.max_model_len, SequencePositions(*next.plan)));
  }
  assign.set_max_sequences(blocks * policy.gbs * policy.num_microbatches);
  assign.set_num_blocks(blocks);
  workers_->TellModel(stages[s].worker, &assign);
  return message;
}

void RunningPlan::Retire(WorkerId id, PlanEpoch epoch) {
  v1::CoordinatorMessage message;
  message.mutable_retire()->set_epoch(epoch.value());
  workers_->Send(id, std::move(message));
}

// -- Preparing.

void RunningPlan::OnLinksReached(WorkerId id, const v1::LinksReached& reached) {
  Stage& stage = members_.at(id);
  if (!preparation_ || reached.epoch() != preparation_->epoch.value() ||
      !stage.reaching) {
    return;
  }
  stage.reaching = false;
  const std::vector<StageAssignment>& stages = preparation_->next.stages;
  size_t s = 0;
  while (stages[s].worker != id) ++s;
  const WorkerId next = stages[s + 1].worker;
  if (reached.links().empty()) return;
  const std::string error = ClipText(reached.links(0).error());
  workers_->FoundLink(id, next, error);
  if (error.empty()) return;
  const std::string why = workers_->UnlinkedText(id, next, error);
  // Workers of the present plan have shown that their links work; with no plan,
  // the tests' results say who sits out.
  if (Preparing(next) || stage.preparing) {
    workers_->LeaveOut(Preparing(next) ? next : id, why);
  } else {
    for (const auto& [other_id, other] : members_) {
      if (other.preparing) workers_->LeaveOut(other_id, why);
    }
  }
  FailPreparation("link", why);
}

void RunningPlan::OnPrepareFailed(WorkerId id, const v1::StageFailed& failed) {
  const LayerRange layers = members_.at(id).layers;
  const auto code = static_cast<absl::StatusCode>(failed.code());
  const std::string why = absl::StrCat(
      "worker '", workers_->name(id), "' can't load layers ", layers.begin,
      " to ", layers.end - 1, ": ", absl::StatusCodeToString(code), ": ",
      ClipText(failed.message()));
  if (preparation_->next.plan && options_.fixed_plans.empty() &&
      code == absl::StatusCode::kResourceExhausted) {
    // The planner took too much memory; the workers' own choice may fit.
    search_->GiveUp();
  } else if (IsTransient(code)) {
    workers_->LeaveOut(id, why);
  } else {
    workers_->at(id).failure = why;
  }
  FailPreparation("load", why);
}

void RunningPlan::FollowPreparation(absl::Duration passed) {
  if (!preparation_) return;
  preparation_->reach_time += passed;
  const absl::Duration timeout = options_.timeouts.max_reach_time;
  const bool overdue = preparation_->reach_time > timeout;
  bool ready = true;
  for (const StageAssignment& assigned : preparation_->next.stages) {
    const Stage& stage = members_.at(assigned.worker);
    ready = ready && stage.preparing == stage.prepared;
    if (!stage.reaching) continue;
    if (overdue && stage.preparing) {
      const std::string why =
          absl::StrCat("worker '", workers_->name(assigned.worker),
                       "' has not said within ", absl::FormatDuration(timeout),
                       " whether it can open its link to the next stage");
      workers_->LeaveOut(assigned.worker, why);
      FailPreparation("link", why);
      return;
    }
    // A silent worker of the present plan is not waited for.
    ready = ready && overdue;
  }
  // A plan that loads is not ended for one that is only better.
  if (!ready || (phase_ == Phase::kLoading && !HoldsWithdrawn())) return;
  Preparation prepared = *std::exchange(preparation_, std::nullopt);
  Begin(std::move(prepared.next), prepared.epoch);
}

void RunningPlan::FailPreparation(const char* kind, const std::string& why) {
  ++numbers_->failures_by_kind[kind];
  EndPreparation(why);
}

void RunningPlan::EndPreparation(const std::string& why) {
  if (!preparation_) return;
  const PlanEpoch epoch = preparation_->epoch;
  preparation_.reset();
  LogInfo("preparation ended ", LogEpoch(epoch.value()), ": ", why);
  for (auto& [id, stage] : members_) {
    stage.reaching = false;
    if (!stage.preparing) continue;
    stage.preparing = stage.prepared = false;
    stage.layers = {};
    Retire(id, epoch);
  }
}

// -- Stalls.

bool RunningPlan::LoadStalled(WorkerId id) const {
  const AttachedWorker& worker = workers_->at(id);
  const absl::Duration taking = absl::Seconds(
      static_cast<double>(worker.info.host_memory_bytes()) / kTakenPerSecond);
  absl::Duration allowed =
      std::max(options_.timeouts.stall_timeout, std::min(kMaxTaking, taking));
  if (worker.heartbeat.activity().kind() == v1::Activity::KIND_CONNECTING) {
    allowed = std::max(allowed, kMaxConnecting);
  }
  return members_.at(id).pace.stalled(allowed);
}

std::string RunningPlan::StandsStill(WorkerId id, absl::Duration still) const {
  const AttachedWorker& worker = workers_->at(id);
  const LayerRange layers = members_.at(id).layers;
  return absl::StrCat(
      "worker '", worker.info.name(), "' stands still with layers ",
      layers.begin, " to ", layers.end - 1, ": ",
      ActivityName(worker.heartbeat.activity().kind()),
      ", and nothing got done for ",
      absl::FormatDuration(absl::Floor(still, absl::Seconds(1))));
}

void RunningPlan::Watch(absl::Duration passed) {
  const absl::Duration timeout = options_.timeouts.stall_timeout;
  // A longer time means that this process was stopped.
  passed = std::min(passed, timeout / 4);
  std::map<WorkerId, std::string> stalled;  // and why
  if (running() && oldest_step_) {
    pace_.Passed(passed);
    if (pace_.stalled(timeout)) {
      std::vector<v1::Activity> activities;
      for (WorkerId id : stages_) {
        activities.push_back(workers_->at(id).heartbeat.activity());
      }
      const WorkerId id =
          stages_[StageHeldAt(activities, epoch_, *oldest_step_)];
      stalled[id] = absl::StrCat(StandsStill(id, pace_.still()), " while step ",
                                 *oldest_step_, " waits");
    }
  }
  for (auto& [id, stage] : members_) {
    const bool loads = stage.preparing ? !stage.prepared
                                       : phase_ == Phase::kLoading &&
                                             stage.stage >= 0 && !stage.ready;
    if (!loads) continue;
    stage.pace.Passed(passed);
    if (!LoadStalled(id)) continue;
    stalled[id] = StandsStill(id, stage.pace.still());
  }
  for (const auto& [id, why] : stalled) {
    workers_->LeaveOut(id, why);
    if (members_.at(id).stage < 0) {
      FailPreparation("stall", why);
    } else {
      failed_before_ = why;
      workers_->Doom(id, absl::DeadlineExceededError(why));
    }
  }
}

// -- Descriptions for people and for decisions.

void RunningPlan::View(ClusterView* view) const {
  for (WorkerView& worker : view->workers) {
    worker.loaded = members_.at(worker.id).layers;
  }
  view->plan_stages = stages_.empty() ? 0 : could_have_;
  view->back_off =
      std::max(absl::ZeroDuration(), retry_at_ - options_.clock->Monotonic());
  view->last_failure = last_failure_;
  view->culprit_known = culprit_known_;
}

std::string RunningPlan::detail() const {
  if (phase_ != Phase::kLoading) return detail_;
  uint64_t done = 0;
  double rate = 0;
  absl::Duration left;
  bool fetching = false;
  for (WorkerId id : stages_) {
    const Stage& stage = members_.at(id);
    fetching = fetching || (stage.fetching && !stage.ready);
    if (!stage.ready) {
      rate += stage.load.bytes_per_second();
      left = std::max(left, TimeLeft(stage.load));
    }
    done += static_cast<uint64_t>(stage.load.fraction() * 1000);
  }
  return absl::StrCat(fetching ? "fetching weights: " : "loading layers: ",
                      done / (10 * stages_.size()), " %", RateText(rate, left),
                      failed_before_.empty()
                          ? ""
                          : absl::StrCat(" (after: ", failed_before_, ")"));
}

void RunningPlan::Describe(v1::PipelineInfo* info) const {
  info->set_epoch(epoch_.value());
  info->set_num_workers(num_workers());
  info->set_num_stages(static_cast<int32_t>(stages_.size()));
  info->set_num_blocks(phase_ == Phase::kNoPlan ? 0 : num_blocks());
  info->set_gbs(policy().gbs);
  if (plan_) info->set_predicted_tokens_per_second(plan_->tokens_per_second);
}

void RunningPlan::Describe(WorkerId id, v1::WorkerInfo* info) const {
  const Stage& stage = members_.at(id);
  if (stage.preparing) {
    info->set_state(v1::WORKER_STATE_PREPARING);
  } else if (stage.stage >= 0) {
    info->set_state(stage.ready ? v1::WORKER_STATE_READY
                                : v1::WORKER_STATE_LOADING);
  }
  info->set_stage(stage.stage);
  info->set_load_fraction(stage.load.fraction());
  if (stage.fetching && (info->state() == v1::WORKER_STATE_LOADING ||
                         info->state() == v1::WORKER_STATE_PREPARING)) {
    info->set_detail(absl::StrCat(
        "fetching weights: ", static_cast<int>(100 * stage.load.fraction()),
        " %"));
  }
  if (stage.stage < 0) return;
  info->set_layer_begin(stage.layers.begin);
  info->set_layer_end(stage.layers.end);
  if (const auto s = static_cast<size_t>(stage.stage); s < links_.size()) {
    info->set_next_link(LinkName(links_[s]));
  }
}

}  // namespace sluice
