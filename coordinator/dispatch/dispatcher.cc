#include "coordinator/dispatch/dispatcher.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
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
// No more requests are read while so many wait for pipelines that stopped.
constexpr int64_t kMaxAwaiting = 1024;
// The share of its window by which a lane may be fuller than another one, to
// get requests for what they begin with.
constexpr double kMaxImbalance = 0.25;
// The search for groups of workers, among those for pipelines' plans.
constexpr size_t kGroups = SIZE_MAX;

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
      trace_(clock_->Monotonic()),
      fetcher_(std::make_unique<Executor>("request-fetch", 1)),
      planner_(std::make_unique<Executor>("job-planner", 1)),
      resolver_(std::make_unique<Executor>("resolver", 1)),
      membership_(options_.cluster),
      metrics_(options_.metrics),
      reported_at_(clock_->Monotonic()),
      kept_at_(reported_at_) {
  AddLanes();
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

void Dispatcher::KeepTokens() {
  MutexLock lock(&mu_);
  const int64_t ticket = ++keeps_asked_;
  inbox_.KeepTokens();
  while (keeps_done_ < ticket) kept_.Wait(&mu_);
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
    for (const auto& [worker, drained] : events->drains) {
      membership_.Drain(worker, drained);
    }
    if (events->fetched) OnFetched(*std::move(events->fetched));
    for (JobId job : events->cancelled) OnCancel(job);
    if (events->reordered) {
      GiveBackWaiting();
      reordered_meanwhile_ = fetching_;
    }
    for (const auto& answer : events->planned) {
      membership_.OnPlanned(std::move(*answer));
    }
    if (events->new_work) {
      if (live() == 0 || membership_.phase() != Membership::Phase::kRunning) {
        membership_.OnNewJobsWhileIdle();
      }
      for (size_t p = 0; p < lanes_.size(); ++p) {
        const bool idle = lanes_[p]->driver.live() == 0;
        if (idle || !membership_.plan(p).running()) membership_.OnNewJobs(p);
      }
      maybe_work_ = work_meanwhile_ = true;
      fetch_failure_.clear();
    }
    Pump();
    if (events->keep_tokens) {
      int64_t asked = 0;
      {
        MutexLock lock(&mu_);
        asked = keeps_asked_;
      }
      StoreTokens();
      MutexLock lock(&mu_);
      keeps_done_ = asked;
      kept_.NotifyAll();
    }
  }
  StoreTokens();
  MutexLock lock(&mu_);
  keeps_done_ = INT64_MAX;
  kept_.NotifyAll();
}

void Dispatcher::OnWorker(WorkerEvent event) {
  if (auto* opened = std::get_if<WorkerOpened>(&event.what)) {
    membership_.OnOpened(event.worker, std::move(opened->stream),
                         std::move(opened->place));
  } else if (auto* closed = std::get_if<WorkerClosed>(&event.what)) {
    trace_.Forget(event.worker);
    membership_.OnClosed(event.worker, closed->reason);
  } else if (auto* resolved = std::get_if<WorkerResolved>(&event.what)) {
    membership_.OnResolved(event.worker, resolved->addresses);
  } else {
    OnMessage(event.worker, std::get<v1::WorkerMessage>(std::move(event.what)));
  }
}

void Dispatcher::OnMessage(WorkerId worker, v1::WorkerMessage message) {
  if (message.has_heartbeat()) {
    const AttachedWorker* const from = membership_.workers().Find(worker);
    if (from != nullptr && from->registered) {
      trace_.TakeHeartbeat(worker, from->info.name(), clock_->Monotonic(),
                           message.mutable_heartbeat());
    }
  }
  if (const std::optional<v1::StepResult> result =
          membership_.OnMessage(worker, std::move(message))) {
    OnResult(*result);
  }
}

void Dispatcher::OnResult(const v1::StepResult& message) {
  for (size_t p = 0; p < lanes_.size(); ++p) {
    BlockDriver& driver = lanes_[p]->driver;
    // Another's is of an epoch that has ended.
    if (!driver.epoch() || driver.epoch()->value() != message.epoch()) continue;
    absl::StatusOr<StepResult> result = FromProto(message);
    if (!result.ok()) {
      membership_.BreakLastStage(result.status(), p);
      return;
    }
    const absl::Status status = driver.OnResult(*std::move(result));
    if (status.code() == absl::StatusCode::kInternal) {
      membership_.BreakLastStage(status, p);
    }
    return;
  }
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
    for (Request& request : *requests) {
      BlockDriver& driver = LaneFor(request).driver;
      driver.Add(std::move(request));
    }
  }
  // Some requests may have been read just before their job was cancelled.
  for (JobId job : cancelled_meanwhile_) {
    for (const auto& lane : lanes_) lane->driver.Cancel(job);
  }
  cancelled_meanwhile_.clear();
  // They may have been read in the order from before.
  if (std::exchange(reordered_meanwhile_, false)) GiveBackWaiting();
}

void Dispatcher::GiveBackWaiting() {
  for (const auto& lane : lanes_) {
    std::vector<Request> requests = lane->driver.ReleaseNotBegun();
    if (!requests.empty()) options_.queue->GiveBack(std::move(requests));
  }
  maybe_work_ = work_meanwhile_ = true;
}

void Dispatcher::OnCancel(JobId job) {
  for (const auto& lane : lanes_) lane->driver.Cancel(job);
  if (fetching_) cancelled_meanwhile_.insert(job);
}

void Dispatcher::Search(PlanTask task) {
  const size_t whose = task.layout ? kGroups : task.pipeline;
  {
    MutexLock lock(&searches_mu_);
    newest_search_[whose] = task.ticket;
  }
  planner_->Run([this, whose, task = std::move(task)] {
    {
      // A newer search may have replaced this one while it waited.
      MutexLock lock(&searches_mu_);
      if (stopping_ || task.ticket != newest_search_[whose]) return;
    }
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
  for (size_t p = 0; p < lanes_.size(); ++p) {
    membership_.plan(p).OnSteps(lanes_[p]->driver.oldest_step());
  }
  membership_.Advance();
  AddLanes();
  for (const auto& lookup : membership_.workers().TakeLookups()) {
    Resolve(lookup);
  }
  while (auto task = membership_.TakeTask()) Search(*std::move(task));
  if (std::optional<std::string> plan = membership_.TakeNewPlan()) {
    options_.queue->ReportPlan(*plan);
  }
  if (std::optional<ModelContent> model =
          membership_.workers().TakeBegunModel()) {
    options_.queue->ReportModel(*model);
  }
  for (size_t p = 0; p < lanes_.size(); ++p) FollowPlan(p);
  MoveRequests();
  if (options_.queue->backlog().bytes < options_.max_unwritten_bytes) {
    for (size_t p = 0; p < lanes_.size(); ++p) SendSteps(p);
  }
  for (size_t p = 0; p < lanes_.size(); ++p) FollowPlan(p);
  CompleteFinished();
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
  if (now - kept_at_ >= options_.keep_interval &&
      !options_.queue->keeping_tokens()) {
    StoreTokens();
  }
  if (due || membership_.phase() != published_phase_ ||
      membership_.detail() != detail_ || live() == 0) {
    Publish();
  }
}

void Dispatcher::AddLanes() {
  while (lanes_.size() < membership_.num_pipelines()) {
    BlockDriver::Options driver = options_.driver;
    driver.busy_time = &busy_time_;
    driver.trace = &trace_;
    driver.pipeline = static_cast<int32_t>(lanes_.size());
    lanes_.push_back(std::make_unique<Lane>(driver));
  }
  for (const auto& lane : lanes_) {
    lane->driver.SetKeepsUnfit(lanes_.size() > 1);
  }
}

int64_t Dispatcher::live() const {
  int64_t live = 0;
  for (const auto& lane : lanes_) live += lane->driver.live();
  return live;
}

void Dispatcher::SendSteps(size_t pipeline) {
  const RunningPlan& running = membership_.plan(pipeline);
  for (const StepPlan& plan : lanes_[pipeline]->driver.TakePlans()) {
    // Sending the plan before may have ended the epoch.
    if (!running.running() || running.epoch() != plan.epoch) break;
    v1::StepPlan message;
    ToProto(plan, &message);
    membership_.SendPlan(std::move(message), pipeline);
  }
}

void Dispatcher::CompleteFinished() {
  std::vector<FinishedRequest> finished;
  for (size_t p = 0; p < lanes_.size(); ++p) {
    BlockDriver& driver = lanes_[p]->driver;
    std::vector<FinishedRequest> some = driver.TakeFinished();
    if (some.empty()) continue;
    if (driver.epoch()) membership_.plan(p).OnProgress();
    std::move(some.begin(), some.end(), std::back_inserter(finished));
  }
  if (finished.empty()) return;
  // Reports come first, so that a job that ends here has its final figures.
  ReportJobs();
  Observe();
  for (FinishedRequest& f : finished) {
    options_.queue->Complete(std::move(f.request), std::move(f.generation));
  }
}

// Starts and stops the lane's epoch with the pipeline's plan.
void Dispatcher::FollowPlan(size_t pipeline) {
  const RunningPlan& plan = membership_.plan(pipeline);
  Lane& lane = *lanes_[pipeline];
  BlockDriver& driver = lane.driver;
  const bool running = plan.running();
  if (driver.epoch() && (!running || *driver.epoch() != plan.epoch())) {
    driver.StopEpoch();
  }
  if (!running || driver.epoch()) return;
  const Policy& policy = plan.policy();
  StepScheduler::Options scheduler;
  scheduler.num_blocks = plan.num_blocks();
  scheduler.gbs = policy.gbs;
  scheduler.num_microbatches = policy.num_microbatches;
  scheduler.max_step_tokens = policy.max_step_tokens;
  // FlexGen's schedule, which is for comparison, has no slices.
  if (options_.refill) scheduler.steps_in_flight = plan.steps_in_flight();
  if (policy.packing) scheduler.slice_context = policy.slice_context;
  scheduler.kv_pages = plan.kv_pages();
  scheduler.kv_window = plan.kv_window();
  scheduler.page_tokens = plan.page_tokens();
  scheduler.refill = options_.refill;
  // Sparse attention makes what a chunk computes depend on where it begins.
  scheduler.share_prefixes =
      options_.share_prefixes && plan.kv_shared() && policy.sparsity >= 1;
  scheduler.order = options_.order;
  scheduler.packing = policy.packing;
  scheduler.max_logit_biases = kMaxPlanLogitBiases;
  scheduler.max_releases = kMaxPlanReleases;
  scheduler.max_keeps = kMaxPlanKeeps;
  // Padded prefill takes more rows than packed plans assume.
  scheduler.reserve = options_.kv_by_need && plan.kv_by_need() && policy.packing
                          ? StepScheduler::Reserve::kProfile
                          : StepScheduler::Reserve::kMaximum;
  if (absl::Status status = driver.StartEpoch(plan.epoch(), scheduler);
      !status.ok()) {
    membership_.BreakLastStage(status, pipeline);
    return;
  }
  lane.slots = int64_t{scheduler.num_blocks} * scheduler.gbs *
               scheduler.num_microbatches;
  lane.window = std::max<int64_t>(options_.min_window, 2 * lane.slots);
  maybe_work_ = true;
}

// -- From lane to lane.

void Dispatcher::MoveRequests() {
  if (lanes_.size() < 2) return;
  std::vector<Lane*> stopped;
  for (size_t p = 0; p < lanes_.size(); ++p) {
    MoveUnfit(p);
    const BlockDriver& driver = lanes_[p]->driver;
    if (!driver.epoch() && driver.live() > 0) stopped.push_back(&*lanes_[p]);
  }
  for (Lane* const from : stopped) {
    for (const auto& to : lanes_) {
      const int64_t room = Wanted(*to) - to->driver.live();
      if (!to->driver.epoch() || room <= 0) continue;
      const auto fits = [&](const SequenceState& sequence) {
        return to->driver.Fits(sequence);
      };
      for (SequenceState& sequence : from->driver.Release(room, fits)) {
        to->driver.Adopt(std::move(sequence));
      }
    }
  }
  if (!stopped.empty()) MoveFromLost();
  if (!maybe_work_ && !fetching_) EvenOut();
}

bool Dispatcher::FitsNone(const SequenceState& sequence) const {
  return std::none_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
    return lane->driver.epoch() && lane->driver.Fits(sequence);
  });
}

// What fits no pipeline that runs must not wait for one that is given up.
void Dispatcher::MoveFromLost() {
  const auto running =
      std::find_if(lanes_.begin(), lanes_.end(),
                   [](const auto& lane) { return lane->driver.epoch(); });
  if (running == lanes_.end()) return;
  for (size_t p = 0; p < lanes_.size(); ++p) {
    BlockDriver& from = lanes_[p]->driver;
    if (from.epoch() || from.live() == 0 || membership_.Awaited(p)) continue;
    for (SequenceState& sequence :
         from.Release(from.live(), [this](const SequenceState& sequence) {
           return FitsNone(sequence);
         })) {
      (*running)->driver.Adopt(std::move(sequence));  // see MoveUnfit
    }
  }
}

// What is too long for one pipeline may fit another, or one that is to come.
void Dispatcher::MoveUnfit(size_t from) {
  Lane& lane = *lanes_[from];
  for (SequenceState& sequence : lane.driver.TakeUnfit()) {
    BlockDriver* to = nullptr;
    for (size_t p = 0; p < lanes_.size(); ++p) {
      BlockDriver& other = lanes_[p]->driver;
      if (other.epoch()) {
        if (!other.Fits(sequence)) continue;
        to = &other;
        break;
      }
      if (membership_.Awaited(p)) to = &other;
    }
    if (to != nullptr) {
      to->Adopt(std::move(sequence));
      continue;
    }
    // It ends with an error.
    lane.driver.SetKeepsUnfit(false);
    lane.driver.Adopt(std::move(sequence));
    lane.driver.SetKeepsUnfit(true);
  }
}

// At the end of all jobs, no pipeline waits for the last ones of another.
void Dispatcher::EvenOut() {
  const auto longest = [&] {
    return &**std::max_element(
        lanes_.begin(), lanes_.end(), [](const auto& a, const auto& b) {
          // What waits for an epoch is moved by MoveRequests.
          return (a->driver.epoch() ? a->driver.waiting() : -1) <
                 (b->driver.epoch() ? b->driver.waiting() : -1);
        });
  };
  Lane* from = longest();
  for (const auto& to : lanes_) {
    // Half of them: so nothing goes to and fro.
    const int64_t half = from->driver.waiting() / 2;
    if (!from->driver.epoch() || half == 0) return;
    if (!to->driver.epoch() || to->driver.waiting() > 0) continue;
    const int64_t free = to->slots - to->driver.running();
    for (SequenceState& sequence :
         from->driver.ReleaseWaiting(std::min(free, half))) {
      BlockDriver& takes =
          to->driver.Fits(sequence) ? to->driver : from->driver;
      takes.Adopt(std::move(sequence));
    }
    from = longest();
  }
}

Dispatcher::Lane& Dispatcher::LaneFor(const Request& request) {
  Lane* best = &*lanes_[fetching_for_];
  if (lanes_.size() < 2) return *best;
  const auto fill = [this](const Lane& lane) {
    return static_cast<double>(lane.driver.live()) /
           static_cast<double>(std::max<int64_t>(1, Wanted(lane)));
  };
  const double most = fill(*best) + kMaxImbalance;
  int64_t known = best->driver.KnownTokens(request);
  for (const auto& lane : lanes_) {
    if (!lane->driver.epoch() || fill(*lane) > std::min(most, 1.0)) continue;
    const int64_t here = lane->driver.KnownTokens(request);
    if (here <= known) continue;
    known = here;
    best = &*lane;
  }
  return *best;
}

int64_t Dispatcher::Wanted(const Lane& lane) const {
  const bool more =
      options_.order == Order::kLongest &&
      lane.driver.ExpectedLoad().prompt_tokens < options_.max_window_tokens;
  return more ? std::max<int64_t>(lane.window, options_.max_window)
              : lane.window;
}

void Dispatcher::FetchMore() {
  if (fetching_ || !maybe_work_) return;
  // Requests are fetched in portions, not one by one, for the lane that has
  // most room.
  int64_t room = 0;
  int64_t awaiting = 0;
  double share = 0;
  for (size_t p = 0; p < lanes_.size(); ++p) {
    const Lane& lane = *lanes_[p];
    if (!lane.driver.epoch()) {
      awaiting += lane.driver.live();
      continue;
    }
    const int64_t wanted = Wanted(lane);
    const int64_t own = wanted - lane.driver.ExpectedLoad().requests;
    if (own < std::max<int64_t>(1, lane.window / 8)) continue;
    const double of_window =
        static_cast<double>(own) / static_cast<double>(wanted);
    if (of_window <= share) continue;
    share = of_window;
    room = std::min(own, lane.window);
    fetching_for_ = p;
  }
  if (room == 0 || awaiting >= kMaxAwaiting) return;
  fetching_ = true;
  work_meanwhile_ = false;
  fetcher_->Run([this, room] {
    if (stopping_) return;
    inbox_.PutFetched(options_.queue->TakeRequests(static_cast<size_t>(room)));
  });
}

// -- Reports.

void Dispatcher::StoreTokens() {
  kept_at_ = clock_->Monotonic();
  std::vector<NewTokens> tokens;
  for (const auto& lane : lanes_) lane->driver.TakeNewTokens(&tokens);
  if (!tokens.empty()) options_.queue->KeepTokens(std::move(tokens));
}

void Dispatcher::ReportJobs() {
  absl::flat_hash_map<JobId, JobProgress> all;
  for (const auto& lane : lanes_) {
    for (const auto& [job, progress] : lane->driver.TakeProgress()) {
      JobProgress& sum = all[job];
      sum.running += progress.running;
      sum.new_tokens += progress.new_tokens;
      sum.prompt_tokens += progress.prompt_tokens;
      sum.replays += progress.replays;
    }
  }
  for (const auto& [job, progress] : all) {
    options_.queue->ReportProgress(job, progress);
  }
}

void Dispatcher::Measure() {
  for (size_t p = 0; p < lanes_.size(); ++p) {
    const BlockDriver& driver = lanes_[p]->driver;
    membership_.search(p).OnProgress(
        {.rows = driver.rows(),
         .rows_in_flight = static_cast<double>(driver.rows_in_flight()),
         .seconds = driver.busy_seconds(),
         .output_share = driver.output_share(),
         .held_rows = static_cast<double>(driver.held_rows())});
  }
  Observe();
  if (live() == 0) rate_.Clear();
}

void Dispatcher::Observe() {
  int64_t tokens = 0;
  for (const auto& lane : lanes_) {
    const BlockDriver::Stats stats = lane->driver.TakeStats();
    metrics_.Observe(stats);
    lane->tokens += stats.tokens;
    tokens += stats.tokens;
  }
  if (tokens > 0) rate_.Add(clock_->Monotonic(), tokens);
}

void Dispatcher::DescribeLanes(v1::ClusterState* state) const {
  double prefill = 0;
  double decode = 0;
  for (const auto& lane : lanes_) {
    state->set_running(state->running() + lane->driver.running());
    state->set_waiting(state->waiting() + lane->driver.waiting());
    prefill += lane->driver.phase_seconds().prefill;
    decode += lane->driver.phase_seconds().decode;
  }
  state->set_prefill_seconds(prefill);
  state->set_decode_seconds(decode);
  for (v1::PipelineInfo& info : *state->mutable_pipelines()) {
    const Lane& lane = *lanes_[static_cast<size_t>(info.pipeline())];
    info.set_running(lane.driver.running());
    info.set_waiting(lane.driver.waiting());
    info.set_blocks_in_flight(lane.driver.blocks_in_flight());
    info.set_generated_tokens(lane.tokens);
    if (!lane.driver.epoch()) continue;
    info.set_state(lane.driver.live() > 0 ? "running" : "idle");
  }
}

std::string Dispatcher::AwaitedDetail() {
  std::string detail;
  const bool any_runs =
      std::any_of(lanes_.begin(), lanes_.end(),
                  [](const auto& lane) { return lane->driver.epoch(); });
  for (size_t p = 0; p < lanes_.size(); ++p) {
    Lane& lane = *lanes_[p];
    // What fits others only waits until they have room.
    const int64_t count =
        any_runs ? lane.driver.CountPending(
                       [this](const SequenceState& s) { return FitsNone(s); })
                 : 0;
    const bool news = lane.awaiting == 0;
    lane.awaiting = count;
    if (count == 0) continue;
    const std::string text =
        absl::StrCat(count, count == 1 ? " request waits" : " requests wait",
                     " for pipeline ", p,
                     ", being longer than the KV cache of the others holds: ",
                     membership_.detail(p));
    if (news) Log(options_.cluster.failure_level, text);
    if (detail.empty()) detail = text;
  }
  return detail;
}

void Dispatcher::Publish() {
  published_phase_ = membership_.phase();
  const bool ready = published_phase_ == Membership::Phase::kRunning;
  std::string detail = AwaitedDetail();
  if (detail.empty()) detail = membership_.detail();
  if (detail.empty()) detail = fetch_failure_;
  detail = EscapeInvalidUtf8(detail);  // it may name a file
  v1::ClusterState state;
  membership_.Describe(&state);
  DescribeLanes(&state);
  state.set_generation_tokens_per_second(rate_.PerSecond(clock_->Monotonic()));
  if (published_phase_ == Membership::Phase::kLoading) {
    state.set_state("loading");
  } else if (ready) {
    state.set_state(live() > 0 ? "running" : "idle");
  } else {
    state.set_state(detail);
  }
  int64_t blocks_in_flight = 0;
  for (const auto& lane : lanes_) {
    blocks_in_flight += lane->driver.blocks_in_flight();
  }
  metrics_.Set(state, blocks_in_flight, options_.queue->backlog().results,
               clock_->Monotonic());
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
