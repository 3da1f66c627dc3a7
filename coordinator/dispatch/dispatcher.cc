#include "coordinator/dispatch/dispatcher.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "coordinator/cluster/links/name_resolver.h"
#include "coordinator/dispatch/block_driver.h"
#include "coordinator/dispatch/dispatch_metrics.h"
#include "coordinator/dispatch/inbox.h"
#include "coordinator/dispatch/request_fetcher.h"
#include "proto/convert.h"
#include "proto/wire_limits.h"

namespace sluice {
namespace {

constexpr size_t kInboxEvents = 1024;

class DispatcherImpl : public Dispatcher {
 public:
  explicit DispatcherImpl(Options options)
      : options_(std::move(options)),
        clock_(options_.cluster.clock),
        inbox_(kInboxEvents),
        membership_(options_.cluster),
        driver_({.tokenizer = options_.tokenizer,
                 .vocab_size = options_.vocab_size,
                 .eos_tokens = options_.eos_tokens,
                 .clock = clock_}),
        metrics_(options_.metrics),
        reported_at_(clock_->Monotonic()),
        measured_at_(clock_->Monotonic()) {
    fetcher_ = std::make_unique<RequestFetcher>(
        options_.queue, [this](absl::StatusOr<std::vector<Request>> requests) {
          inbox_.PutFetched(std::move(requests));
        });
    if (options_.cluster.plan_jobs) {
      planner_ = std::make_unique<JobPlanner>(
          options_.queue, options_.planning,
          [this](PlanAnswer answer) { inbox_.PutPlanned(std::move(answer)); });
    }
    Publish();
    thread_ = Thread("dispatcher", [this] { Run(); });
  }

  ~DispatcherImpl() override { Shutdown(); }

  WorkerEventSink* sink() override { return &inbox_; }
  void NotifyWork() override { inbox_.NotifyWork(); }
  void Cancel(JobId job) override { inbox_.Cancel(job); }
  void Tick() override { inbox_.Wake(); }

  v1::ClusterState cluster_state() const override {
    MutexLock lock(&mu_);
    return state_;
  }

  bool ready() const override {
    MutexLock lock(&mu_);
    return ready_;
  }

  void Shutdown() override {
    MutexLock lock(&shutdown_mu_);
    inbox_.Close();
    thread_.Join();
    resolver_.reset();
    planner_.reset();
    fetcher_.reset();
  }

 private:
  void Run() {
    while (std::optional<DispatchEvents> events =
               inbox_.Wait(options_.tick_interval)) {
      for (WorkerEvent& event : events->workers) OnWorker(std::move(event));
      if (events->fetched) OnFetched(*std::move(events->fetched));
      for (JobId job : events->cancelled) OnCancel(job);
      if (events->planned) membership_.OnPlanned(*std::move(events->planned));
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

  void OnWorker(WorkerEvent event) {
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

  void OnResult(const v1::StepResult& message) {
    absl::StatusOr<StepResult> result = FromProto(message);
    if (!result.ok()) {
      membership_.BreakLastStage(result.status());
      return;
    }
    const absl::Status status = driver_.OnResult(*std::move(result));
    if (status.code() == absl::StatusCode::kInternal) {
      membership_.BreakLastStage(status);
    }
    // kFailedPrecondition: of an epoch that ended meanwhile.
  }

  void OnFetched(absl::StatusOr<std::vector<Request>> requests) {
    fetching_ = false;
    if (!requests.ok()) {
      LogError(absl::StrCat("reading requests failed: ",
                            requests.status().ToString()));
      fetch_failure_ = absl::StrCat("reading requests failed: ",
                                    requests.status().message());
      maybe_work_ = false;  // until the next report
    } else {
      fetch_failure_.clear();
      // What came in after the read began may not have been seen by it.
      if (requests->empty()) maybe_work_ = work_meanwhile_;
      for (Request& request : *requests) driver_.Add(std::move(request));
    }
    // Requests read just before their job was cancelled.
    for (JobId job : cancelled_meanwhile_) driver_.Cancel(job);
    cancelled_meanwhile_.clear();
  }

  void OnCancel(JobId job) {
    driver_.Cancel(job);
    if (fetching_) cancelled_meanwhile_.insert(job);
  }

  // Moves everything on as far as it goes now.
  void Pump() {
    membership_.plan().OnSteps(driver_.oldest_step());
    membership_.Advance();
    for (const WorkerRegistry::Lookup& lookup :
         membership_.workers().TakeLookups()) {
      const absl::Status asked = resolver_->Resolve(
          lookup.host, [this, worker = lookup.worker](auto addresses) {
            inbox_.Push({worker, WorkerResolved{std::move(addresses)}});
          });
      if (!asked.ok()) membership_.OnResolved(lookup.worker, asked);
    }
    if (std::optional<PlanTask> task = membership_.search().TakeTask();
        task && planner_ != nullptr) {
      planner_->Search(*std::move(task));
    }
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
        break;  // sending the one before ended the plan
      }
      v1::StepPlan message;
      ToProto(plan, &message);
      membership_.SendPlan(std::move(message));
    }
    FollowPlan();
    if (std::vector<FinishedRequest> finished = driver_.TakeFinished();
        !finished.empty()) {
      if (driver_.epoch()) membership_.plan().OnProgress();
      // First, so that a job that ends with these has its figures.
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
      // Whatever made a read fail may be over.
      if (!fetch_failure_.empty()) maybe_work_ = true;
      ReportJobs();
      Measure(now);
    }
    if (due || membership_.plan().phase() != published_phase_ ||
        membership_.detail() != detail_ || driver_.live() == 0) {
      Publish();
    }
  }

  // Starts and stops the driver's epoch with the plan.
  void FollowPlan() {
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
    scheduler.kv_pages = membership_.plan().kv_pages();
    scheduler.page_tokens = membership_.plan().page_tokens();
    scheduler.refill = options_.refill;
    scheduler.packing = policy.packing;
    scheduler.max_logit_biases = kMaxPlanLogitBiases;
    scheduler.max_releases = kMaxPlanReleases;
    // Padded prefill takes longer than a profile allows for.
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
    window_ = std::max<int64_t>(options_.least_window,
                                int64_t{2} * scheduler.num_blocks *
                                    scheduler.gbs * scheduler.num_microbatches);
    maybe_work_ = true;
  }

  void FetchMore() {
    if (fetching_ || !maybe_work_ || !driver_.epoch()) return;
    const int64_t room = window_ - driver_.live();
    // In portions, not one by one.
    if (room < std::max<int64_t>(1, window_ / 8)) return;
    fetching_ = true;
    work_meanwhile_ = false;
    fetcher_->Fetch(static_cast<size_t>(room));
  }

  void ReportJobs() {
    for (const auto& [job, progress] : driver_.TakeProgress()) {
      options_.queue->ReportProgress(job, progress);
    }
  }

  void Measure(absl::Duration now) {
    const BlockDriver::PhaseSeconds phases = driver_.phase_seconds();
    membership_.search().OnProgress(static_cast<double>(driver_.rows()),
                                    phases.prefill + phases.decode,
                                    driver_.output_share());
    Observe();
    const auto tokens = static_cast<double>(std::exchange(tokens_, 0));
    const double seconds = absl::ToDoubleSeconds(now - measured_at_);
    measured_at_ = now;
    if (seconds > 0) {
      // Forgets with a time constant of a few seconds.
      const double weight = seconds / (seconds + 3);
      rate_ += weight * (tokens / seconds - rate_);
      if (driver_.live() == 0 && tokens == 0) rate_ = 0;
    }
  }

  void Observe() {
    const BlockDriver::Stats stats = driver_.TakeStats();
    metrics_.Observe(stats);
    tokens_ += stats.tokens;
  }

  void Publish() {
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
    state.set_generation_tokens_per_second(rate_);
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

  const Options options_;
  const Clock* const clock_;
  Inbox inbox_;
  std::unique_ptr<NameResolver> resolver_ = std::make_unique<NameResolver>();
  std::unique_ptr<RequestFetcher> fetcher_;
  std::unique_ptr<JobPlanner> planner_;  // null: none are made

  // Of the dispatcher's thread.
  Membership membership_;
  BlockDriver driver_;
  DispatchMetrics metrics_;
  int64_t window_ = 0;
  bool maybe_work_ = true;
  bool fetching_ = false;
  bool work_meanwhile_ = false;  // since the fetch under way began
  absl::flat_hash_set<JobId> cancelled_meanwhile_;
  std::string fetch_failure_;
  std::string detail_;
  std::optional<std::string> reported_detail_;
  Membership::Phase published_phase_ = Membership::Phase::kNoPlan;
  absl::Duration reported_at_;
  absl::Duration measured_at_;
  int64_t tokens_ = 0;  // sampled since measured_at_
  double rate_ = 0;

  mutable Mutex mu_;
  v1::ClusterState state_ ABSL_GUARDED_BY(mu_);
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  Mutex shutdown_mu_;
  Thread thread_ ABSL_GUARDED_BY(shutdown_mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dispatcher>> Dispatcher::Create(
    Options options) {
  if (options.queue == nullptr || options.tokenizer == nullptr ||
      options.metrics == nullptr || options.cluster.clock == nullptr) {
    return absl::InvalidArgumentError(
        "the dispatcher needs a queue, a tokenizer, metrics and a clock");
  }
  if (options.vocab_size <= 0 || options.cluster.num_layers <= 0 ||
      options.cluster.min_workers <= 0) {
    return absl::InvalidArgumentError(
        "the dispatcher needs a model and at least one worker");
  }
  return std::make_unique<DispatcherImpl>(std::move(options));
}

}  // namespace sluice
