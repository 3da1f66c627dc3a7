#include "coordinator/dispatch/dispatcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/text/text.h"
#include "coordinator/cluster/links/link_address.h"
#include "proto/convert.h"
#include "proto/wire_limits.h"

namespace sluice {
namespace {

constexpr size_t kInboxEvents = 1024;
constexpr size_t kMaxLookups = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Dispatcher>> Dispatcher::Create(
    Options options) {
  if (options.queue == nullptr || options.driver.tokenizer == nullptr ||
      options.metrics == nullptr || options.cluster.clock == nullptr) {
    return absl::InvalidArgumentError(
        "the dispatcher needs a queue, a tokenizer, metrics and a clock");
  }
  if (options.driver.vocab_size <= 0 || options.cluster.num_layers <= 0 ||
      options.cluster.min_workers <= 0) {
    return absl::InvalidArgumentError(
        "the dispatcher needs a model and at least one worker");
  }
  options.driver.clock = options.cluster.clock;
  return std::unique_ptr<Dispatcher>(new Dispatcher(std::move(options)));
}

Dispatcher::Dispatcher(Options options)
    : options_(std::move(options)),
      clock_(options_.cluster.clock),
      inbox_(kInboxEvents),
      fetcher_(std::make_unique<Executor>("request-fetch", 1)),
      planner_(std::make_unique<Executor>("job-planner", 1)),
      resolver_(std::make_unique<Executor>("resolver", 1)),
      membership_(options_.cluster),
      driver_(options_.driver),
      metrics_(options_.metrics),
      reported_at_(clock_->Monotonic()) {
  Publish();
  thread_ = Thread("dispatcher", [this] { Run(); });
}

void Dispatcher::Shutdown() {
  MutexLock lock(&shutdown_mu_);
  stopping_ = true;
  inbox_.Close();
  thread_.Join();
  resolver_.reset();
  planner_.reset();
  fetcher_.reset();
}

v1::ClusterState Dispatcher::cluster_state() const {
  MutexLock lock(&mu_);
  return state_;
}

bool Dispatcher::ready() const {
  MutexLock lock(&mu_);
  return ready_;
}

void Dispatcher::Run() {
  while (std::optional<DispatchEvents> events =
             inbox_.Wait(options_.tick_interval)) {
    for (WorkerEvent& event : events->workers) OnWorker(std::move(event));
    if (events->fetched) OnFetched(*std::move(events->fetched));
    for (JobId job : events->cancelled) OnCancel(job);
    if (events->planned) membership_.OnPlanned(std::move(*events->planned));
    if (events->new_work) {
      if (driver_.live() == 0 || !membership_.plan().running()) {
        membership_.OnNewJobs();
      }
      maybe_work_ = work_meanwhile_ = true;
      fetch_failure_.clear();
    }
    Pump();
  }
}

void Dispatcher::OnWorker(WorkerEvent event) {
  if (auto* opened = std::get_if<WorkerOpened>(&event.what)) {
    membership_.OnOpened(event.worker, std::move(opened->stream),
                         std::move(opened->place));
  } else if (auto* closed = std::get_if<WorkerClosed>(&event.what)) {
    membership_.OnClosed(event.worker, closed->reason);
  } else if (auto* resolved = std::get_if<WorkerResolved>(&event.what)) {
    membership_.OnResolved(event.worker, resolved->addresses);
  } else if (std::optional<v1::StepResult> result = membership_.OnMessage(
                 event.worker,
                 std::get<v1::WorkerMessage>(std::move(event.what)))) {
    OnResult(*result);
  }
}

void Dispatcher::OnResult(const v1::StepResult& message) {
  absl::StatusOr<StepResult> result = FromProto(message);
  if (!result.ok()) {
    membership_.BreakLastStage(result.status());
    return;
  }
  const absl::Status status = driver_.OnResult(*std::move(result));
  if (status.code() == absl::StatusCode::kInternal) {
    membership_.BreakLastStage(status);
  }
  // A kFailedPrecondition is for a result of an epoch that has ended.
}

void Dispatcher::OnFetched(absl::StatusOr<std::vector<Request>> requests) {
  fetching_ = false;
  if (!requests.ok()) {
    LogError("reading requests failed: ", requests.status().ToString());
    fetch_failure_ =
        absl::StrCat("reading requests failed: ", requests.status().message());
    maybe_work_ = false;  // until the next report
  } else {
    fetch_failure_.clear();
    // The read may have missed work that came after it began.
    if (requests->empty()) maybe_work_ = work_meanwhile_;
    for (Request& request : *requests) driver_.Add(std::move(request));
  }
  // Some requests may have been read just before their job was cancelled.
  for (JobId job : cancelled_meanwhile_) driver_.Cancel(job);
  cancelled_meanwhile_.clear();
}

void Dispatcher::OnCancel(JobId job) {
  driver_.Cancel(job);
  if (fetching_) cancelled_meanwhile_.insert(job);
}

void Dispatcher::Search(PlanTask task) {
  newest_search_ = task.ticket;
  planner_->Run([this, task = std::move(task)] {
    // A newer search may have replaced this one while it waited.
    if (stopping_ || task.ticket != newest_search_) return;
    inbox_.PutPlanned(std::make_shared<PlanAnswer>(
        AnswerTask(options_.planning, task, options_.queue)));
  });
}

void Dispatcher::Resolve(const WorkerRegistry::Lookup& lookup) {
  if (resolver_->waiting() >= kMaxLookups) {
    membership_.OnResolved(
        lookup.worker,
        absl::ResourceExhaustedError("too many names wait to be looked up"));
    return;
  }
  resolver_->Run([this, lookup] {
    if (stopping_) return;
    inbox_.Push({lookup.worker, WorkerResolved{ResolveHost(lookup.host)}});
  });
}

// Advances everything as far as possible now.
void Dispatcher::Pump() {
  membership_.plan().OnSteps(driver_.oldest_step());
  membership_.Advance();
  for (const auto& lookup : membership_.workers().TakeLookups()) {
    Resolve(lookup);
  }
  if (auto task = membership_.search().TakeTask()) Search(*std::move(task));
  if (std::optional<std::string> plan = membership_.plan().TakeNewPlan()) {
    options_.queue->ReportPlan(*plan);
  }
  if (std::optional<ModelContent> model =
          membership_.workers().TakeBegunModel()) {
    options_.queue->ReportModel(*model);
  }
  FollowPlan();
  std::vector<StepPlan> plans;
  if (options_.queue->backlog().bytes < options_.max_unwritten_bytes) {
    plans = driver_.TakePlans();
  }
  for (const StepPlan& plan : plans) {
    if (!membership_.plan().running() ||
        membership_.plan().epoch() != plan.epoch) {
      break;  // sending the plan before ended the epoch
    }
    v1::StepPlan message;
    ToProto(plan, &message);
    membership_.SendPlan(std::move(message));
  }
  FollowPlan();
  if (std::vector<FinishedRequest> finished = driver_.TakeFinished();
      !finished.empty()) {
    if (driver_.epoch()) membership_.plan().OnProgress();
    // Reports come first, so that a job that ends here has its final figures.
    ReportJobs();
    Observe();
    for (FinishedRequest& f : finished) {
      options_.queue->Complete(std::move(f.request), std::move(f.generation));
    }
  }
  FetchMore();
  const absl::Duration now = clock_->Monotonic();
  const bool due = now - reported_at_ >= options_.report_interval;
  if (due) {
    reported_at_ = now;
    // The cause of a failed read may be gone.
    if (!fetch_failure_.empty()) maybe_work_ = true;
    ReportJobs();
    Measure();
  }
  if (due || membership_.plan().phase() != published_phase_ ||
      membership_.detail() != detail_ || driver_.live() == 0) {
    Publish();
  }
}

// Starts and stops the driver's epoch with the plan.
void Dispatcher::FollowPlan() {
  const bool running = membership_.plan().running();
  if (driver_.epoch() &&
      (!running || *driver_.epoch() != membership_.plan().epoch())) {
    driver_.StopEpoch();
  }
  if (!running || driver_.epoch()) return;
  const Policy& policy = membership_.plan().policy();
  StepScheduler::Options scheduler;
  scheduler.num_blocks = membership_.plan().num_blocks();
  scheduler.gbs = policy.gbs;
  scheduler.num_microbatches = policy.num_microbatches;
  scheduler.max_step_tokens = policy.max_step_tokens;
  // FlexGen's schedule, which is for comparison, has no slices.
  if (options_.refill) {
    scheduler.steps_in_flight = membership_.plan().steps_in_flight();
  }
  if (policy.packing) scheduler.slice_context = policy.slice_context;
  scheduler.kv_pages = membership_.plan().kv_pages();
  scheduler.page_tokens = membership_.plan().page_tokens();
  scheduler.refill = options_.refill;
  scheduler.packing = policy.packing;
  scheduler.max_logit_biases = kMaxPlanLogitBiases;
  scheduler.max_releases = kMaxPlanReleases;
  // Padded prefill takes more rows than packed plans assume.
  scheduler.reserve =
      options_.kv_by_need && membership_.plan().kv_by_need() && policy.packing
          ? StepScheduler::Reserve::kProfile
          : StepScheduler::Reserve::kMaximum;
  if (absl::Status status =
          driver_.StartEpoch(membership_.plan().epoch(), scheduler);
      !status.ok()) {
    membership_.BreakLastStage(status);
    return;
  }
  window_ = std::max<int64_t>(
      options_.min_window, int64_t{2} * scheduler.num_blocks * scheduler.gbs *
                               scheduler.num_microbatches);
  maybe_work_ = true;
}

void Dispatcher::FetchMore() {
  if (fetching_ || !maybe_work_ || !driver_.epoch()) return;
  const int64_t room = window_ - driver_.live();
  // Requests are fetched in portions, not one by one.
  if (room < std::max<int64_t>(1, window_ / 8)) return;
  fetching_ = true;
  work_meanwhile_ = false;
  fetcher_->Run([this, room] {
    if (stopping_) return;
    inbox_.PutFetched(options_.queue->TakeRequests(static_cast<size_t>(room)));
  });
}

void Dispatcher::ReportJobs() {
  for (const auto& [job, progress] : driver_.TakeProgress()) {
    options_.queue->ReportProgress(job, progress);
  }
}

void Dispatcher::Measure() {
  const BlockDriver::PhaseSeconds phases = driver_.phase_seconds();
  membership_.search().OnProgress(static_cast<double>(driver_.rows()),
                                  phases.prefill + phases.decode,
                                  driver_.output_share());
  Observe();
  if (driver_.live() == 0) rate_.Clear();
}

void Dispatcher::Observe() {
  const BlockDriver::Stats stats = driver_.TakeStats();
  metrics_.Observe(stats);
  if (stats.tokens > 0) {
    rate_.Add(clock_->Monotonic(), stats.tokens);
  }
}

void Dispatcher::Publish() {
  published_phase_ = membership_.plan().phase();
  const bool ready = published_phase_ == Membership::Phase::kRunning;
  std::string detail = membership_.detail();
  if (detail.empty()) detail = fetch_failure_;
  detail = EscapeInvalidUtf8(detail);  // it may name a file
  v1::ClusterState state;
  membership_.Describe(&state);
  state.set_running(driver_.running());
  state.set_prefill_seconds(driver_.phase_seconds().prefill);
  state.set_decode_seconds(driver_.phase_seconds().decode);
  state.set_waiting(driver_.live() - driver_.running());
  state.set_generation_tokens_per_second(rate_.PerSecond(clock_->Monotonic()));
  if (published_phase_ == Membership::Phase::kLoading) {
    state.set_state("loading");
  } else if (ready) {
    state.set_state(driver_.live() > 0 ? "running" : "idle");
  } else {
    state.set_state(detail);
  }
  metrics_.Set(state, driver_.blocks_in_flight(),
               options_.queue->backlog().results, clock_->Monotonic());
  detail_ = membership_.detail();
  {
    MutexLock lock(&mu_);
    state_ = std::move(state);
    ready_ = ready;
  }
  if (detail != reported_detail_) {
    reported_detail_ = detail;
    options_.queue->ReportDetail(detail);
  }
}

}  // namespace sluice
