#include "coordinator/cluster/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "coordinator/cluster/links/link_plan.h"
#include "coordinator/cluster/worker_facts.h"
#include "proto/convert.h"

namespace sluice {
namespace {

constexpr size_t kMostFormerWorkers = 4096;
constexpr size_t kMostLinkIdBytes = 1024;

}  // namespace

Membership::Membership(const Options& options)
    : options_(options),
      identity_(options.model),
      left_out_(options.first_left_out, options.most_left_out),
      losses_(options.first_left_out, options.most_left_out),
      changed_at_(options.clock->Monotonic()),
      advanced_at_(options.clock->Monotonic()),
      detail_(DecidePlan(View()).detail) {}

void Membership::OnOpened(WorkerId id, std::shared_ptr<WorkerStream> stream,
                          PeerPlace place) {
  Worker& worker = workers_[id];
  worker.stream = std::move(stream);
  worker.place = std::move(place);
}

std::optional<v1::StepResult> Membership::OnMessage(WorkerId id,
                                                    v1::WorkerMessage message) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return std::nullopt;  // dropped before
  Worker& worker = it->second;
  worker.silent = absl::ZeroDuration();
  if (worker.registered == message.has_register_() || worker.resolving) {
    Remove(id, absl::InvalidArgumentError(
                   "a worker registers once, with its first message"));
    return std::nullopt;
  }
  switch (message.kind_case()) {
    case v1::WorkerMessage::kRegister:
      OnRegister(id, worker, message.register_());
      break;
    case v1::WorkerMessage::kHeartbeat:
      OnActivity(worker, message.heartbeat().activity());
      worker.heartbeat = std::move(*message.mutable_heartbeat());
      monitor_.Observe(worker.stage, TotalsOf(worker.heartbeat.runtime()));
      break;
    case v1::WorkerMessage::kLoadProgress:
      OnLoadProgress(worker, message.load_progress());
      break;
    case v1::WorkerMessage::kStageReady:
      OnStageReady(id, worker, message.stage_ready());
      break;
    case v1::WorkerMessage::kStageFailed:
      OnStageFailed(id, worker, message.stage_failed());
      break;
    case v1::WorkerMessage::kLinkId:
      OnLinkId(id, worker, std::move(*message.mutable_link_id()));
      break;
    case v1::WorkerMessage::kLinksMeasured:
      OnLinksMeasured(worker, message.links_measured());
      break;
    case v1::WorkerMessage::kModelContent:
      OnModelContent(id, worker, message.model_content());
      break;
    case v1::WorkerMessage::kLinksReached:
      OnLinksReached(id, message.links_reached());
      break;
    case v1::WorkerMessage::kStepResult:
      if (phase_ == Phase::kRunning && id == stages_.back() &&
          message.step_result().epoch() == epoch_.value()) {
        plan_pace_.Moved();
        return std::move(*message.mutable_step_result());
      }
      break;
    case v1::WorkerMessage::KIND_NOT_SET:
      break;  // a newer worker's message
  }
  return std::nullopt;
}

absl::Status Membership::CheckRegister(const v1::Register& info) const {
  if (info.name().empty() || info.name().size() > kMaxWorkerNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a worker's name must have 1 to ", kMaxWorkerNameBytes,
                     " bytes, this one has ", info.name().size()));
  }
  if (info.link_address().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker '", info.name(), "' gave no link address"));
  }
  for (const std::string* text :
       {&info.link_address(), &info.model_fingerprint(), &info.device(),
        &info.version(), &info.metrics_address(), &info.model_dir(),
        &info.gpu_uuid()}) {
    if (text->size() > kMaxWorkerTextBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker '", info.name(), "' registered with a text of ", text->size(),
          " bytes; the most is ", kMaxWorkerTextBytes));
    }
  }
  if (info.profile_json().size() > kMaxProfileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker '", info.name(), "' registered with a profile of ",
        info.profile_json().size(), " bytes; the most is ", kMaxProfileBytes));
  }
  std::string fingerprint = options_.model_fingerprint;
  std::string whose = "the coordinator";
  for (const auto& [id, other] : workers_) {
    if (!other.registered) continue;
    if (other.info.name() == info.name()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "a worker named '", info.name(),
          "' is attached already; give each worker a name of its own"));
    }
    if (other.info.version() != info.version()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "worker '", info.name(), "' has version ", info.version(),
          ", but worker '", other.info.name(), "' has ", other.info.version(),
          "; all must be the same"));
    }
    if (fingerprint.empty()) {
      fingerprint = other.info.model_fingerprint();
      whose = absl::StrCat("worker '", other.info.name(), "' in ",
                           other.info.model_dir());
    }
  }
  ModelContent content;
  SLUICE_RETURN_IF_ERROR(CheckContent(info, info.model_content(), &content));
  // Of copies whose files have other headers the names and sizes may agree.
  if (info.model_fingerprint().empty() ||
      (!fingerprint.empty() && info.model_fingerprint() != fingerprint)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker '", info.name(), "' has another model in ", info.model_dir(),
        " than ", whose, "; copy the model directory again"));
  }
  return absl::OkStatus();
}

absl::Status Membership::CheckPlace(const Worker& worker,
                                    const v1::Register& info) const {
  SLUICE_RETURN_IF_ERROR(CheckLinkAddress(info.name(), info.link_address(),
                                          worker.addresses, worker.place));
  // Loopback addresses do for workers on one machine: then all must be there.
  const auto elsewhere = [](const Worker& w) {
    return w.place.kind == PeerPlace::kElsewhere;
  };
  const bool mine = IsLoopbackLink(info.link_address(), worker.addresses);
  for (const auto& [id, other] : workers_) {
    if (!other.registered) continue;
    const bool its = IsLoopbackLink(other.info.link_address(), other.addresses);
    if (!(mine && elsewhere(other)) && !(its && elsewhere(worker))) continue;
    const v1::Register& near = mine ? info : other.info;
    const v1::Register& far = mine ? other.info : info;
    return absl::InvalidArgumentError(absl::StrCat(
        "worker '", info.name(), "' can't work with '", other.info.name(),
        "': they are on two machines, and '", far.name(), "' can't reach '",
        near.name(), "' at ", near.link_address(), "; as for '", near.name(),
        "', ", AdvertiseRemedy(PeerPlace())));
  }
  return absl::OkStatus();
}

void Membership::Refuse(WorkerId id, Worker& worker,
                        const absl::Status& reason) {
  const std::string name = ClipText(worker.info.name(), kMaxWorkerNameBytes);
  // The same again and again, as it keeps trying, is no news.
  if (absent_.Refused(name, std::string(reason.message()),
                      options_.clock->Monotonic())) {
    LogWarning(absl::StrCat("worker refused: ", reason.message()));
  }
  worker.stream->Break(reason);
  workers_.erase(id);
}

std::vector<Membership::Lookup> Membership::TakeLookups() {
  return std::exchange(lookups_, {});
}

void Membership::OnResolved(
    WorkerId id, const absl::StatusOr<std::vector<std::string>>& addresses) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || !it->second.resolving) return;
  Worker& worker = it->second;
  worker.resolving = false;
  worker.silent = absl::ZeroDuration();
  if (addresses.ok()) {
    worker.addresses = *addresses;
    OnRegister(id, worker, v1::Register(worker.info));
    return;
  }
  Refuse(
      id, worker,
      absl::InvalidArgumentError(absl::StrCat(
          "worker '", worker.info.name(), "' says that others reach it at ",
          worker.info.link_address(), ", but ", addresses.status().message(),
          " on the coordinator's machine; ", AdvertiseRemedy(worker.place))));
}

void Membership::OnRegister(WorkerId id, Worker& worker,
                            const v1::Register& info) {
  worker.info = info;
  if (absl::Status status = CheckRegister(info); !status.ok()) {
    Refuse(id, worker, status);
    return;
  }
  if (options_.look_up_names && worker.addresses.empty() &&
      worker.place.kind != PeerPlace::kUnknown) {
    const absl::StatusOr<std::string> host = HostOf(info.link_address());
    if (host.ok() && !IsNumericHost(*host)) {
      worker.resolving = true;
      lookups_.push_back({id, *host});
      return;
    }
  }
  if (absl::Status status = CheckPlace(worker, info); !status.ok()) {
    Refuse(id, worker, status);
    return;
  }
  worker.registered = true;
  worker.content = *ContentOf(info.model_content());
  worker.info.clear_model_content();
  absent_.Present(info.name());
  link_blame_.Forget(info.name());
  worker.profile = ProfileOf(info);
  if (worker.profile) {
    // What somebody knew and wrote into it needs no measuring.
    for (const LinkProfile& link : worker.profile->links) {
      if (!link.peer.empty()) worker.links_asked.insert(link.peer);
    }
  }
  planning_failed_ = false;
  if (const auto it = former_layers_.find(info.name());
      it != former_layers_.end()) {
    worker.layers = it->second;
    former_layers_.erase(it);
  }
  v1::CoordinatorMessage answer;
  answer.mutable_registered()->set_worker_id(id.value());
  answer.mutable_registered()->set_heartbeat_interval_ms(
      absl::ToInt64Milliseconds(options_.heartbeat_interval));
  worker.stream->Accept();
  LogInfo(absl::StrCat("worker registered name=", info.name(),
                       " id=", id.value(), " link=", info.link_address(),
                       " device=", info.device()));
  CompareModels();
  SendOrBreak(id, std::move(answer));
}

void Membership::OnJoined() {
  changed_at_ = options_.clock->Monotonic();
  failures_ = 0;
  retry_at_ = absl::ZeroDuration();
  for (auto& [id, worker] : workers_) {
    worker.failure.clear();
    worker.nccl_failed = false;
  }
}

void Membership::OnStageReady(WorkerId id, Worker& worker,
                              const v1::StageReady& ready) {
  const bool preparing = worker.preparing && preparation_ &&
                         ready.epoch() == preparation_->epoch.value();
  if (!preparing && (phase_ != Phase::kLoading ||
                     ready.epoch() != epoch_.value() || worker.stage < 0)) {
    return;
  }
  if (ready.kv_pages() <= 0 || ready.page_tokens() <= 0) {
    worker.failure = absl::StrCat("worker '", worker.info.name(),
                                  "' has no memory left for the KV cache");
    if (preparing) {
      ++plan_failures_["load"];
      EndPreparation(worker.failure);
    } else {
      PlanFailed("load", worker.failure);
    }
    return;
  }
  worker.pace.Moved();
  if (preparing) {
    worker.prepared = true;
    return;
  }
  worker.ready = true;
  worker.stage_ready = ready;
  worker.load_done = worker.load_total = std::max<uint64_t>(
      {worker.load_total, ready.weight_bytes(), uint64_t{1}});
  kv_pages_ = INT64_MAX;
  kv_by_need_ = true;
  for (WorkerId stage : stages_) {
    const Worker& other = workers_.at(stage);
    if (!other.ready) return;
    if (other.stage_ready.page_tokens() != ready.page_tokens()) {
      PlanFailed("load",
                 absl::StrCat("worker '", worker.info.name(),
                              "' has KV pages of ", ready.page_tokens(),
                              " tokens, but worker '", other.info.name(),
                              "' of ", other.stage_ready.page_tokens()));
      return;
    }
    kv_pages_ = std::min(kv_pages_, other.stage_ready.kv_pages());
    kv_by_need_ = kv_by_need_ && other.stage_ready.kv_by_need();
  }
  page_tokens_ = ready.page_tokens();
  phase_ = Phase::kRunning;
  losses_.Begin(options_.clock->Monotonic());
  if (identity_.Begin(worker.content)) begun_model_ = worker.content;
  failed_before_.clear();
  plan_pace_.Start();
  oldest_step_.reset();
  for (size_t s = 0; s + 1 < stages_.size(); ++s) {
    link_blame_.OnReached(workers_.at(stages_[s]).info.name(),
                          workers_.at(stages_[s + 1]).info.name());
  }
  load_time_ = std::min(load_time_, options_.clock->Monotonic() - load_began_);
  detail_.clear();
  LogInfo(absl::StrCat("plan ready epoch=", epoch_.value(),
                       " stages=", stages_.size(), " kv_pages=", kv_pages_,
                       kv_by_need_ ? " by need" : " reserved",
                       " page_tokens=", page_tokens_));
}

void Membership::OnLinkId(WorkerId id, const Worker& worker, v1::LinkId link) {
  if (link.id().size() > kMostLinkIdBytes) {
    Remove(id, absl::InvalidArgumentError(absl::StrCat(
                   "a link's id of ", link.id().size(), " bytes")));
    return;
  }
  const auto stage = static_cast<size_t>(worker.stage);
  if (phase_ == Phase::kNoPlan || link.epoch() != epoch_.value() ||
      worker.stage < 0 || stage >= links_.size() ||
      links_[stage] != v1::LINK_TRANSPORT_NCCL) {
    return;
  }
  v1::CoordinatorMessage message;
  *message.mutable_link_id() = std::move(link);
  SendOrBreak(stages_[stage + 1], std::move(message));
}

void Membership::OnStageFailed(WorkerId id, Worker& worker,
                               const v1::StageFailed& failed) {
  if (worker.preparing && preparation_ &&
      failed.epoch() == preparation_->epoch.value()) {
    OnPrepareFailed(id, worker, failed);
    return;
  }
  const bool nccl_failed =
      failed.epoch() == epoch_.value() &&
      failed.code() == static_cast<int32_t>(absl::StatusCode::kUnimplemented) &&
      LinkAbility::Of(worker.info).nccl && !worker.nccl_failed;
  // Also when the plan has ended: the other end of a link may have been first
  // to say so, without knowing why.
  worker.nccl_failed |= nccl_failed;
  if (phase_ == Phase::kNoPlan || failed.epoch() != epoch_.value() ||
      worker.stage < 0) {
    return;
  }
  const auto code = static_cast<absl::StatusCode>(failed.code());
  const std::string why = absl::StrCat(
      "worker '", worker.info.name(), "' failed in stage ", worker.stage,
      " (layers ", worker.layers.begin, " to ", worker.layers.end - 1,
      "): ", absl::StatusCodeToString(code), ": ", ClipText(failed.message()));
  if (phase_ == Phase::kLoading && plan_ && !options_.fixed_plan &&
      code == absl::StatusCode::kResourceExhausted) {
    // The planner was too bold; what the workers choose themselves fits.
    LogWarning(absl::StrCat("the plan does not fit: ", why));
    planning_failed_ = true;
  } else if (phase_ == Phase::kLoading && !nccl_failed && !IsTransient(code)) {
    worker.failure = why;
  } else if (phase_ == Phase::kRunning && !IsTransient(code) && failures_ > 0) {
    // Not for the first time, with nothing finished in between.
    LeaveOut(worker, why);
  }
  const auto next = static_cast<size_t>(worker.stage) + 1;
  const bool unreached = failed.next_unreached() && next < stages_.size();
  if (unreached) BlameLink(worker, workers_.at(stages_[next]), why);
  PlanFailed(unreached || code == absl::StatusCode::kUnavailable ? "link"
             : phase_ == Phase::kLoading                         ? "load"
                                                                 : "step",
             why);
}

void Membership::EndPlan(const std::string& why, LogLevel level) {
  if (phase_ == Phase::kNoPlan) return;
  Log(level, absl::StrCat("plan ended epoch=", epoch_.value(), ": ", why));
  phase_ = Phase::kNoPlan;
  stages_.clear();
  links_.clear();
  plan_.reset();
  monitor_.Stop();
  preparation_.reset();
  // What would be better than this plan is no answer for the next one.
  if (search_ && search_->present) search_.reset();
  oldest_step_.reset();
  for (auto& [id, worker] : workers_) {
    worker.stage = -1;
    worker.ready = false;
    worker.preparing = worker.prepared = worker.reaching = false;
  }
}

void Membership::OnClosed(WorkerId id, const absl::Status& reason) {
  Remove(id, reason);
}

void Membership::Remove(WorkerId id, const absl::Status& reason) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return;
  const Worker worker = std::move(it->second);
  workers_.erase(it);
  if (worker.preparing) {
    EndPreparation(absl::StrCat("worker '", worker.info.name(), "' is gone"));
  }
  worker.stream->Break(reason);
  if (!worker.registered) return;
  // One that left on purpose is no cause for alarm.
  const LogLevel level =
      absl::IsCancelled(reason) ? LogLevel::kInfo : LogLevel::kWarning;
  Log(level, absl::StrCat("worker gone name=", worker.info.name(),
                          " id=", id.value(), ": ", reason.ToString()));
  if (worker.layers.size() > 0 && former_layers_.size() < kMostFormerWorkers) {
    former_layers_[worker.info.name()] = worker.layers;
  }
  changed_at_ = options_.clock->Monotonic();
  absent_.Lost(worker.info.name(), ClipText(std::string(reason.message())),
               changed_at_);
  if (level != LogLevel::kInfo) OnLost(worker);
  if (worker.stage >= 0) {
    if (level != LogLevel::kInfo) {
      ++plan_failures_[absl::IsDeadlineExceeded(reason) && OutOf(worker)
                           ? "stall"
                           : "lost"];
    }
    EndPlan(absl::StrCat("worker '", worker.info.name(), "' is gone"), level);
  }
  // Others that failed because of it are not to blame.
  failures_ = 0;
  retry_at_ = absl::ZeroDuration();
  last_failure_.clear();
}

void Membership::BreakLastStage(const absl::Status& reason) {
  if (stages_.empty()) return;
  LeaveOut(workers_.at(stages_.back()),
           absl::StrCat("what it answered made no sense: ", reason.message()));
  Remove(stages_.back(), reason);
}

void Membership::SendPlan(v1::StepPlan plan) {
  v1::CoordinatorMessage message;
  *message.mutable_step_plan() = std::move(plan);
  SendOrBreak(stages_.front(), std::move(message));
}

void Membership::SendOrBreak(WorkerId id, v1::CoordinatorMessage message) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || it->second.stream->Send(std::move(message))) {
    return;
  }
  Remove(id, absl::UnavailableError("the worker does not take messages"));
}

void Membership::Advance() {
  // Silence counts only while this process runs: after a stop (a debugger, a
  // laptop's lid) the workers get their chance to be heard.
  const absl::Duration now = options_.clock->Monotonic();
  const absl::Duration passed =
      std::min(now - advanced_at_, options_.heartbeat_timeout / 4);
  advanced_at_ = now;
  std::vector<WorkerId> lost;
  for (auto& [id, worker] : workers_) {
    if (worker.resolving) continue;  // it waits for us
    worker.silent += passed;
    if (worker.silent > options_.heartbeat_timeout) lost.push_back(id);
  }
  for (WorkerId id : lost) {
    Remove(id, absl::DeadlineExceededError(absl::StrCat(
                   "no heartbeat for ",
                   absl::FormatDuration(options_.heartbeat_timeout))));
  }
  CompareModels();
  Watch(passed);
  PlanDecision decision = DecidePlan(View());
  switch (decision.action) {
    case PlanDecision::Action::kKeep:
      break;
    case PlanDecision::Action::kWait:
      EndPlan(decision.detail);
      detail_ = absl::StrCat(decision.detail, CheckingDetail());
      // The worker that is missing may have been here.
      if (const std::string absent = absent_.newest();
          !absent.empty() && absl::StartsWith(detail_, "waiting for workers")) {
        absl::StrAppend(&detail_, "; ", absent);
      }
      break;
    case PlanDecision::Action::kPlan: {
      if (preparation_ &&
          preparation_->workers >= static_cast<int>(decision.stages.size())) {
        break;
      }
      if (!LinksFor(decision.stages)) break;
      if (Plans(decision.stages)) {
        if (!KnowsLinks(decision.stages)) break;
        std::vector<WorkerId> workers;
        for (const StageAssignment& stage : decision.stages) {
          workers.push_back(stage.worker);
        }
        BeginSearch(std::move(workers), std::nullopt);
        break;
      }
      const auto workers = static_cast<int32_t>(decision.stages.size());
      if (options_.fixed_plan) {
        FollowWith(AssignFixed(decision.stages), &*options_.fixed_plan, workers,
                   0);
      } else {
        FollowWith(std::move(decision.stages), nullptr, workers, 0);
      }
      break;
    }
  }
  FollowPreparation(passed);
  FollowMeasured();
}

std::vector<StageAssignment> Membership::AssignFixed(
    const std::vector<StageAssignment>& stages) const {
  // First those that the plan names; the others take what is left, in order.
  const std::vector<StagePlan>& planned = options_.fixed_plan->stages;
  std::vector<StageAssignment> assigned(planned.size());
  std::vector<WorkerId> free;
  for (const StageAssignment& stage : stages) free.push_back(stage.worker);
  std::vector<bool> done(planned.size());
  for (size_t s = 0; s < planned.size(); ++s) {
    const auto it = std::find_if(free.begin(), free.end(), [&](WorkerId id) {
      return workers_.at(id).info.name() == planned[s].worker;
    });
    if (it == free.end()) continue;
    assigned[s] = {*it, planned[s].layers};
    done[s] = true;
    free.erase(it);
  }
  for (size_t s = 0; s < planned.size(); ++s) {
    if (done[s]) continue;
    assigned[s] = {free.front(), planned[s].layers};
    free.erase(free.begin());
  }
  return assigned;
}

Policy Membership::StagePolicy(const Plan* plan, size_t stage) const {
  Policy policy = options_.policy;
  if (plan == nullptr) return policy;
  const Policy& planned = plan->stages[stage].policy;
  policy.gbs = planned.gbs;
  policy.num_microbatches = planned.num_microbatches;
  policy.max_step_tokens = planned.max_step_tokens;
  policy.weights = planned.weights;
  policy.automatic_weights = planned.automatic_weights;
  policy.kv_cache = planned.kv_cache;
  policy.automatic_kv_cache = planned.automatic_kv_cache;
  policy.activations = planned.activations;
  policy.automatic_activations = planned.automatic_activations;
  if (!options_.fixed_plan && planned.kv_cache.disk == 0) {
    // Shares of the KV of as many sequences as could be, of the greatest
    // length, which need not be there: pages are shared by need, and take what
    // the weights leave.
    policy.kv_cache = TierFractions();
    policy.automatic_kv_cache = true;
  }
  policy.compress_weights = planned.compress_weights;
  policy.compress_kv = planned.compress_kv;
  policy.attention_site = planned.attention_site;
  policy.compute_threads = planned.compute_threads;
  return policy;
}

ClusterView Membership::View() const {
  const absl::Duration now = options_.clock->Monotonic();
  const bool wait = NewcomersWait();
  ClusterView view;
  for (const auto& [id, worker] : workers_) {
    if (!worker.same_model) continue;
    const LeftOut::Entry* const out = OutOf(worker);
    absl::Duration out_for =
        out == nullptr ? absl::ZeroDuration() : out->until - now;
    if (wait && worker.newcomer) {
      out_for = std::max(out_for, options_.first_left_out);
    }
    view.workers.push_back(
        {id, worker.info.name(), worker.layers, worker.failure, out_for});
  }
  view.min_workers = options_.min_workers;
  view.num_layers = options_.num_layers;
  view.plan_stages = stages_.empty() ? 0 : plan_workers_;
  view.since_change = now - changed_at_;
  view.settle_time = options_.settle_time;
  view.back_off = std::max(absl::ZeroDuration(), retry_at_ - now);
  view.last_failure = last_failure_;
  return view;
}

std::optional<std::vector<v1::LinkTransport>> Membership::LinksFor(
    const std::vector<StageAssignment>& stages) {
  std::vector<LinkAbility> abilities;
  for (const StageAssignment& stage : stages) {
    const Worker& worker = workers_.at(stage.worker);
    abilities.push_back(LinkAbility::Of(worker.info));
    abilities.back().nccl_failed = worker.nccl_failed;
  }
  LinkPlan plan = PlanLinks(abilities);
  if (plan.misfit < 0) return std::move(plan.links);
  // Sits out if there are others enough.
  LogWarning(plan.why);
  workers_.at(stages[static_cast<size_t>(plan.misfit)].worker).failure =
      plan.why;
  if (phase_ == Phase::kNoPlan) PlanFailed("link", plan.why);
  return std::nullopt;
}

v1::AssignStage Membership::Assignment(
    const std::vector<StageAssignment>& stages,
    const std::vector<v1::LinkTransport>& links, const Plan* plan,
    PlanEpoch epoch, size_t s) const {
  v1::AssignStage assign;
  assign.set_epoch(epoch.value());
  assign.set_stage(static_cast<int32_t>(s));
  assign.set_num_stages(static_cast<int32_t>(stages.size()));
  assign.mutable_layers()->set_begin(stages[s].layers.begin);
  assign.mutable_layers()->set_end(stages[s].layers.end);
  if (s + 1 < stages.size()) {
    assign.set_next_link_address(
        workers_.at(stages[s + 1].worker).info.link_address());
    assign.set_next_link(links[s]);
  }
  if (s > 0) assign.set_previous_link(links[s - 1]);
  const Policy policy = StagePolicy(plan, s);
  const int32_t blocks = BlocksOf(plan, stages.size());
  ToProto(policy, assign.mutable_policy());
  assign.set_max_model_len(options_.max_model_len);
  assign.set_max_sequences(blocks * policy.gbs * policy.num_microbatches);
  assign.set_num_blocks(blocks);
  return assign;
}

void Membership::StartPlan(std::vector<StageAssignment> stages,
                           const Plan* plan, std::optional<PlanEpoch> epoch) {
  plan_.reset();
  std::optional<std::vector<v1::LinkTransport>> links = LinksFor(stages);
  if (!links.has_value()) return;
  links_ = *std::move(links);
  new_plan_ = plan != nullptr || planned_before_;
  planned_before_ = plan != nullptr;
  if (plan != nullptr) {
    plan_ = *plan;
    plan_policy_ = StagePolicy(plan, 0);
  }
  epoch_ = epoch ? *epoch : NextEpoch();
  phase_ = Phase::kLoading;
  load_began_ = options_.clock->Monotonic();
  for (auto& [id, worker] : workers_) {
    worker.stage = -1;
    worker.ready = false;
    worker.load_done = worker.load_total = 0;
    worker.load_rate.Start();
    worker.pace.Start();
  }
  stages_.clear();
  for (size_t s = 0; s < stages.size(); ++s) {
    stages_.push_back(stages[s].worker);
    Worker& worker = workers_.at(stages[s].worker);
    worker.stage = static_cast<int32_t>(s);
    worker.planned = epoch_;
    worker.layers = stages[s].layers;
    worker.failure.clear();
  }
  last_failure_.clear();
  LogInfo(absl::StrCat("plan made epoch=", epoch_.value(),
                       " stages=", stages_.size()));

  std::vector<std::pair<WorkerId, v1::CoordinatorMessage>> messages;
  // From the last stage on, so that a stage finds the next one expecting it.
  for (size_t s = stages_.size(); s-- > 0;) {
    v1::CoordinatorMessage message;
    *message.mutable_assign_stage() =
        Assignment(stages, links_, plan_ ? &*plan_ : nullptr, epoch_, s);
    messages.emplace_back(stages_[s], std::move(message));
  }
  for (auto& [id, worker] : workers_) {
    if (!worker.registered || worker.stage >= 0) continue;
    if (worker.layers.size() == 0) continue;
    worker.layers = {};
    v1::CoordinatorMessage message;
    message.mutable_retire()->set_epoch(epoch_.value());
    messages.emplace_back(id, std::move(message));
  }
  // Sending may end the plan again; the rest then goes to workers that ignore
  // it once the next plan comes.
  for (auto& [id, message] : messages) SendOrBreak(id, std::move(message));
}

int32_t Membership::BlocksOf(const Plan* plan, size_t stages) const {
  if (plan != nullptr) return plan->block.num_blocks;
  return std::max(options_.num_blocks, static_cast<int32_t>(stages));
}

int32_t Membership::num_blocks() const {
  return BlocksOf(plan_ ? &*plan_ : nullptr, stages_.size());
}

}  // namespace sluice
