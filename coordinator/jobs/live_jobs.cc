#include "coordinator/jobs/live_jobs.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/text/text.h"
#include "coordinator/jobs/job_state.h"

namespace sluice {
namespace {

// The interval between two reports of a job's progress.
constexpr absl::Duration kTellInterval = absl::Milliseconds(200);
// Jobs that have ended whose histories are kept.
constexpr size_t kMaxEndedHistories = 200;

void SetTime(int64_t us, google::protobuf::Timestamp* time) {
  time->set_seconds(us / 1'000'000);
  time->set_nanos(static_cast<int32_t>(us % 1'000'000) * 1000);
}

}  // namespace

LiveJobs::LiveJobs(std::string served_model, int64_t default_max_tokens,
                   const Clock* clock, JobMetrics* metrics)
    : served_model_(std::move(served_model)),
      default_max_tokens_(default_max_tokens),
      clock_(clock),
      metrics_(metrics) {
  MutexLock lock(&mu_);
  for (const v1::JobState state :
       {v1::JOB_STATE_VALIDATING, v1::JOB_STATE_IN_PROGRESS,
        v1::JOB_STATE_COMPLETED, v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLING,
        v1::JOB_STATE_CANCELLED}) {
    CountState(state, 0);
  }
  metrics_->SetWaiting(0);
}

std::pair<int64_t, JobId> LiveJobs::RunKey(const JobRecord& record) {
  return {-record.priority, record.id};
}

LiveJobs::Live* LiveJobs::Get(JobId job) {
  const auto it = live_.find(job);
  return it == live_.end() ? nullptr : &it->second;
}

void LiveJobs::Tell(JobId job, Live* live) {
  live->dirty = false;
  live->told_at = Clock::Real()->Monotonic();
  dirty_.erase(job);
  changes_.insert(job);
  changed_.NotifyAll();
}

void LiveJobs::TellSoon(JobId job, Live* live) {
  if (live->dirty) return;
  live->dirty = true;
  dirty_.insert(job);
  changed_.NotifyAll();  // waiters then know when to wake again
}

void LiveJobs::TellAll() {
  for (auto& [id, live] : live_) Tell(id, &live);
}

void LiveJobs::SetWaiting(Live* live, int64_t waiting) {
  waiting_ += waiting - live->waiting;
  live->waiting = waiting;
  metrics_->SetWaiting(waiting_);
}

void LiveJobs::CountState(v1::JobState state, int64_t delta) {
  states_[state] += delta;
  metrics_->SetJobs(state, states_[state]);
}

void LiveJobs::Add(const JobRecord& job) {
  MutexLock lock(&mu_);
  CountState(job.state, 1);
  if (IsTerminal(job.state)) return;
  Live& live = live_[job.id];
  live.record = job;
  live.prompt_before = job.prompt_tokens;
  live.generated_before = job.generation_tokens;
  if (job.state == v1::JOB_STATE_IN_PROGRESS) {
    SetWaiting(&live, job.pending());
    SetRunnable(live);
  }
  live.history.AddEvent(
      job.started_us, "accepted",
      absl::StrCat("accepted with ", job.total,
                   job.total == 1 ? " request" : " requests"));
  SampleJob(&live, true);
  Tell(job.id, &live);
}

void LiveJobs::Return(Request request, Live* live) {
  const int64_t left =
      request.known.tokens.empty() ? INT64_MAX : request.left();
  const std::tuple key(left, request.index, request.part);
  live->returned.try_emplace(key, std::move(request));
}

void LiveJobs::AddBegun(JobId job, std::vector<Request> requests) {
  MutexLock lock(&mu_);
  Live* live = Get(job);
  if (live == nullptr) return;
  for (Request& request : requests) {
    live->begun = true;
    live->generated_before += std::ssize(request.known.tokens);
    Return(std::move(request), live);
  }
  SampleJob(live, true);
}

void LiveJobs::SetRunnable(const Live& live) {
  const JobRecord& job = live.record;
  if (job.state == v1::JOB_STATE_IN_PROGRESS && job.model == served_model_ &&
      !job.paused && (!live.drained || !live.returned.empty())) {
    runnable_.insert(RunKey(job));
  } else {
    runnable_.erase(RunKey(job));
  }
}

void LiveJobs::Update(const JobRecord& job) {
  MutexLock lock(&mu_);
  Live* live = Get(job.id);
  if (live == nullptr) return;
  const JobRecord before = std::exchange(live->record, job);
  AddChange(before, live);
  if (before.state == job.state) {
    if (before.paused == job.paused && before.priority == job.priority) {
      TellSoon(job.id, live);
      return;
    }
    runnable_.erase(RunKey(before));
    SetRunnable(*live);
    Tell(job.id, live);
    return;
  }
  CountState(before.state, -1);
  CountState(job.state, 1);
  runnable_.erase(RunKey(before));
  live->returned.clear();
  SetWaiting(live, 0);
  metrics_->RemoveProgress(job.id);
  Tell(job.id, live);
  if (IsTerminal(job.state)) {
    ended_generated_[job.id] = live->generated;
    ended_histories_.emplace_back(job.id, std::move(live->history));
    if (ended_histories_.size() > kMaxEndedHistories) {
      ended_histories_.pop_front();
    }
    running_ -= live->running;
    live_.erase(job.id);
  }
}

void LiveJobs::CountEnded(v1::JobState state, int64_t count) {
  MutexLock lock(&mu_);
  CountState(state, count);
}

void LiveJobs::CountUpload(int64_t delta) {
  MutexLock lock(&mu_);
  CountState(v1::JOB_STATE_VALIDATING, delta);
}

void LiveJobs::NotifyDeleted(JobId job) {
  MutexLock lock(&mu_);
  ended_generated_.erase(job);
  std::erase_if(ended_histories_,
                [&](const auto& entry) { return entry.first == job; });
  changes_.insert(job);
  changed_.NotifyAll();
}

double LiveJobs::RateLocked() const {
  return running_ > 0 ? rate_.PerSecond(clock_->Monotonic()) : 0;
}

std::string LiveJobs::DetailLocked(const JobRecord& record,
                                   const Live& live) const {
  if (!store_detail_.empty()) return store_detail_;
  if (record.state != v1::JOB_STATE_IN_PROGRESS) return "";
  if (record.paused) {
    return live.running > 0
               ? absl::StrCat("paused; ", live.running,
                              " requests that had begun are brought to their "
                              "end")
               : "paused";
  }
  if (record.model != served_model_) {
    return absl::StrCat("waiting for model \"", record.model,
                        "\": this coordinator serves \"", served_model_, "\"");
  }
  return detail_;
}

// Unfinished requests are expected to need the same share of their max_tokens
// as finished ones. Tokens of running requests count as both needed and
// allowed, so that the first, short answers do not bias the share.
void LiveJobs::DescribeTokens(const JobRecord& record, const Live* live,
                              v1::Job* job) {
  const int64_t ended = record.prompt_tokens + record.generation_tokens;
  if (live == nullptr) {
    job->set_processed_tokens(ended);
    job->set_expected_tokens(ended);
    return;
  }
  // Prompt tokens of requests without a result, or with one not stored yet.
  const int64_t prompts = std::max<int64_t>(
      0, live->prompt_before + live->prefilled - record.prompt_tokens);
  const int64_t generated = std::max<int64_t>(
      0, live->generated_before + live->generated - record.generation_tokens);
  const int64_t processed = ended + prompts + generated;
  job->set_processed_tokens(processed);
  if (record.wanted_prompt_tokens <= 0) return;
  const auto allowed =
      static_cast<double>(record.answered_max_tokens + generated);
  const auto needed = static_cast<double>(record.generation_tokens + generated);
  const double share = allowed > 0 ? std::min(1.0, needed / allowed) : 1;
  const int64_t prompts_left =
      record.wanted_prompt_tokens - record.prompt_tokens - prompts;
  const auto to_generate = static_cast<int64_t>(
      share * static_cast<double>(record.wanted_max_tokens -
                                  record.answered_max_tokens));
  job->set_expected_tokens(processed + std::max<int64_t>(0, prompts_left) +
                           std::max<int64_t>(0, to_generate - generated));
}

v1::Job LiveJobs::DescribeLocked(const JobRecord& record,
                                 const Live* live) const {
  v1::Job job;
  job.set_id(FormatJobId(record.id));
  *job.mutable_spec() = record.spec;
  job.set_state(record.state);
  v1::RequestCounts* counts = job.mutable_counts();
  counts->set_total(record.total);
  counts->set_completed(record.completed);
  counts->set_failed(record.failed);
  counts->set_cancelled(record.cancelled);
  job.set_prompt_tokens(record.prompt_tokens);
  job.set_generation_tokens(record.generation_tokens);
  job.set_cached_tokens(record.cached_tokens);
  job.set_replays(record.replays);
  job.set_plan(record.plan);
  job.set_input_hash(absl::BytesToHexString(record.content));
  job.set_tenant(record.tenant);
  job.set_paused(record.paused && live != nullptr);
  job.set_priority(static_cast<int32_t>(record.priority));
  job.set_default_max_tokens(
      static_cast<int32_t>(record.spec.defaults().has_max_tokens()
                               ? record.spec.defaults().max_tokens()
                               : default_max_tokens_));
  job.set_requests_by_default(record.by_default);
  job.set_answers_cut_by_default(record.cut_by_default);
  DescribeTokens(record, live, &job);
  SetTime(record.created_us, job.mutable_created_at());
  if (record.started_us) {
    SetTime(record.started_us, job.mutable_in_progress_at());
  }
  if (record.finished_us) {
    SetTime(record.finished_us, job.mutable_finished_at());
  }
  if (live != nullptr) {
    // All is generated, but not all stored yet.
    if (record.state == v1::JOB_STATE_IN_PROGRESS &&
        live->queued >= record.pending()) {
      job.set_state(v1::JOB_STATE_FINALIZING);
    }
    job.set_detail(EscapeInvalidUtf8(DetailLocked(record, *live)));
    // Requests of a line run beside each other.
    counts->set_running(std::min(live->running, record.pending()));
    job.set_replays(record.replays + live->replays);
    job.set_generated_so_far(live->generated);
    job.set_generation_tokens_per_second(RateLocked());
  } else if (const auto it = ended_generated_.find(record.id);
             it != ended_generated_.end()) {
    job.set_generated_so_far(it->second);
  }
  return job;
}

v1::Job LiveJobs::Describe(const JobRecord& stored) const {
  MutexLock lock(&mu_);
  const auto it = live_.find(stored.id);
  if (it == live_.end()) return DescribeLocked(stored, nullptr);
  return DescribeLocked(it->second.record, &it->second);
}

std::optional<v1::Job> LiveJobs::Find(JobId job) const {
  MutexLock lock(&mu_);
  const auto it = live_.find(job);
  if (it == live_.end()) return std::nullopt;
  return DescribeLocked(it->second.record, &it->second);
}

bool LiveJobs::IsLive(JobId job) const {
  MutexLock lock(&mu_);
  return live_.contains(job);
}

std::optional<LiveJobs::Cursor> LiveJobs::NextRunnable() const {
  MutexLock lock(&mu_);
  if (runnable_.empty()) return std::nullopt;
  const JobId job = runnable_.begin()->second;
  const Live& live = live_.at(job);
  return Cursor{job, live.next_index, live.record.started_us,
                live.record.priority};
}

bool LiveJobs::Advance(JobId job, int64_t next_index, int64_t taken,
                       bool drained) {
  MutexLock lock(&mu_);
  Live* live = Get(job);
  if (live == nullptr || !runnable_.contains(RunKey(live->record))) {
    return false;
  }
  live->next_index = next_index;
  const auto returned =
      std::count_if(live->returned.begin(), live->returned.end(),
                    [](const auto& entry) { return entry.second.part == 0; });
  SetWaiting(live,
             drained ? returned : std::max<int64_t>(live->waiting - taken, 0));
  live->drained = drained;
  SetRunnable(*live);
  return true;
}

std::vector<Request> LiveJobs::TakeReturned(JobId job, size_t max) {
  MutexLock lock(&mu_);
  std::vector<Request> taken;
  Live* live = Get(job);
  if (live == nullptr || !runnable_.contains(RunKey(live->record))) {
    return taken;
  }
  while (taken.size() < max && !live->returned.empty()) {
    TakeOne(live, live->returned.begin(), &taken);
  }
  return taken;
}

std::vector<Request> LiveJobs::TakeReturnedParts(size_t max) {
  MutexLock lock(&mu_);
  std::vector<Request> taken;
  for (auto& [id, live] : live_) {
    if (live.record.state != v1::JOB_STATE_IN_PROGRESS ||
        live.record.model != served_model_) {
      continue;
    }
    for (auto it = live.returned.begin();
         it != live.returned.end() && taken.size() < max;) {
      const auto next = std::next(it);
      if (it->second.num_parts > 1) TakeOne(&live, it, &taken);
      it = next;
    }
  }
  return taken;
}

void LiveJobs::TakeOne(Live* live, Returned::iterator at,
                       std::vector<Request>* taken) {
  Request& request =
      taken->emplace_back(std::move(live->returned.extract(at).mapped()));
  request.priority = live->record.priority;
  if (request.part == 0) {
    SetWaiting(live, std::max<int64_t>(live->waiting - 1, 0));
  }
  SetRunnable(*live);
}

void LiveJobs::GiveBack(std::vector<Request> requests) {
  MutexLock lock(&mu_);
  for (Request& request : requests) {
    Live* live = Get(request.job);
    if (live == nullptr || live->record.state != v1::JOB_STATE_IN_PROGRESS) {
      continue;
    }
    const int64_t lines = request.part == 0 ? 1 : 0;
    Return(std::move(request), live);
    SetWaiting(live, live->waiting + lines);
    SetRunnable(*live);
  }
}

bool LiveJobs::GoesBefore(JobId job) const {
  MutexLock lock(&mu_);
  const auto it = live_.find(job);
  if (it == live_.end()) return false;
  return std::any_of(live_.begin(), live_.end(), [&](const auto& other) {
    const Live& live = other.second;
    return live.record.priority < it->second.record.priority && Begun(live) &&
           live.record.state == v1::JOB_STATE_IN_PROGRESS;
  });
}

void LiveJobs::AddProgress(JobId job, const JobProgress& progress) {
  MutexLock lock(&mu_);
  const absl::Duration now = clock_->Monotonic();
  if (running_ <= 0) {
    rate_.Clear();
    rate_.Add(now, 0);  // tokens are made from now on
  }
  if (progress.new_tokens > 0) rate_.Add(now, progress.new_tokens);
  Live* live = Get(job);
  if (live == nullptr) return;
  running_ += progress.running - live->running;
  const int64_t running = std::exchange(live->running, progress.running);
  // A stretch without work ends here.
  const bool turns = (running == 0) != (progress.running == 0);
  if (turns && running == 0) SampleJob(live, true);
  live->generated += progress.new_tokens;
  live->prefilled += progress.prompt_tokens;
  live->replays += progress.replays;
  generation_tokens_ += progress.new_tokens;
  prompt_tokens_ += progress.prompt_tokens;
  SampleJob(live, turns);
  if (progress.replays > 0) {
    live->history.AddReplays(NowMicros(), progress.replays);
  }
  TellSoon(job, live);
}

int64_t LiveJobs::TakeReplays(JobId job) {
  MutexLock lock(&mu_);
  Live* live = Get(job);
  return live == nullptr ? 0 : std::exchange(live->replays, 0);
}

void LiveJobs::CountQueued(JobId job, int64_t delta) {
  MutexLock lock(&mu_);
  if (Live* live = Get(job)) live->queued += delta;
}

void LiveJobs::SetDetail(const std::string& detail) {
  MutexLock lock(&mu_);
  if (detail_ == detail) return;
  detail_ = detail;
  if (store_detail_.empty()) queue_.AddDetail(NowMicros(), detail);
  TellAll();
}

bool LiveJobs::SetStoreDetail(const std::string& detail) {
  MutexLock lock(&mu_);
  if (store_detail_ == detail) return false;
  store_detail_ = detail;
  queue_.AddDetail(NowMicros(), detail.empty() ? detail_ : detail);
  TellAll();
  return true;
}

int64_t LiveJobs::NowMicros() const {
  return absl::ToUnixMicros(clock_->Now());
}

void LiveJobs::SampleJob(Live* live, bool due) {
  const JobRecord& job = live->record;
  live->history.Add(
      {.time_us = NowMicros(),
       .prompt_tokens =
           std::max(live->prompt_before + live->prefilled, job.prompt_tokens),
       .generation_tokens = std::max(live->generated_before + live->generated,
                                     job.generation_tokens),
       .ended = job.completed + job.failed,
       .running = IsTerminal(job.state) ? 0 : live->running},
      due);
}

void LiveJobs::AddChange(const JobRecord& before, Live* live) {
  const JobRecord& job = live->record;
  const auto add = [&](const char* kind, std::string text) {
    live->history.AddEvent(NowMicros(), kind, std::move(text));
  };
  if (before.paused != job.paused && job.state == before.state) {
    add(job.paused ? "paused" : "resumed", job.paused ? "paused" : "resumed");
  }
  if (before.priority != job.priority) {
    add("priority", absl::StrCat("priority ", job.priority, " instead of ",
                                 before.priority));
  }
  if (before.plan != job.plan) {
    add("plan", before.plan.empty() ? "planned" : "planned anew");
  }
  const bool ended = IsTerminal(job.state);
  if (before.state != job.state) {
    add(ended ? "ended" : "state",
        ended ? absl::StrCat(JobStateName(job.state), ": ", job.completed,
                             " answers, ", job.failed, " failed")
              : JobStateName(job.state));
  }
  SampleJob(live, ended || before.paused != job.paused);
}

void LiveJobs::Sample() {
  MutexLock lock(&mu_);
  int64_t unfinished = 0;
  for (auto& [id, live] : live_) {
    SampleJob(&live, false);
    if (live.record.state == v1::JOB_STATE_IN_PROGRESS) {
      unfinished += live.record.pending() - live.queued;
    }
  }
  queue_.Add({.time_us = NowMicros(),
              .prompt_tokens = prompt_tokens_,
              .generation_tokens = generation_tokens_,
              .running = running_,
              .waiting = std::max<int64_t>(0, unfinished - running_)});
  ShowProgress();
}

void LiveJobs::ShowProgress() {
  std::set<std::pair<int64_t, JobId>> first;
  for (const auto& [id, live] : live_) {
    if (live.record.state != v1::JOB_STATE_IN_PROGRESS) continue;
    first.insert(RunKey(live.record));
    if (first.size() > kMaxJobsInMetrics) first.erase(std::prev(first.end()));
  }
  std::map<JobId, JobMetrics::Progress> shown;
  for (const auto& [priority, id] : first) {
    const Live& live = live_.at(id);
    v1::Job tokens;
    DescribeTokens(live.record, &live, &tokens);
    JobMetrics::Progress& progress = shown[id];
    progress.processed_tokens = tokens.processed_tokens();
    if (tokens.expected_tokens() > 0) {
      progress.expected_tokens = tokens.expected_tokens();
    }
    progress.seconds_left = PaceLocked(live).seconds_left;
  }
  metrics_->SetProgress(shown);
}

void LiveJobs::AddEvent(JobId job, const std::string& kind,
                        const std::string& text) {
  MutexLock lock(&mu_);
  if (Live* live = Get(job)) live->history.AddEvent(NowMicros(), kind, text);
}

JobHistory LiveJobs::History(JobId job) const {
  MutexLock lock(&mu_);
  if (const auto it = live_.find(job); it != live_.end()) {
    return it->second.history;
  }
  const auto ended =
      std::find_if(ended_histories_.begin(), ended_histories_.end(),
                   [&](const auto& entry) { return entry.first == job; });
  return ended == ended_histories_.end() ? JobHistory() : ended->second;
}

LiveJobs::Pace LiveJobs::PaceOf(JobId job) const {
  MutexLock lock(&mu_);
  const auto it = live_.find(job);
  return it == live_.end() ? Pace() : PaceLocked(it->second);
}

LiveJobs::Pace LiveJobs::PaceLocked(const Live& live) const {
  const JobHistory::Pace pace = live.history.PaceAt(NowMicros());
  Pace found = {.generation_tokens_per_second =
                    pace.generation_tokens_per_second};
  v1::Job tokens;
  DescribeTokens(live.record, &live, &tokens);
  if (pace.tokens_per_second > 0 && !live.record.paused &&
      tokens.expected_tokens() > 0) {
    found.seconds_left = static_cast<double>(tokens.expected_tokens() -
                                             tokens.processed_tokens()) /
                         pace.tokens_per_second;
  }
  return found;
}

std::optional<double> LiveJobs::SecondsToFirstEnd(
    const std::string& tenant) const {
  MutexLock lock(&mu_);
  std::optional<double> least;
  for (const auto& [id, live] : live_) {
    if (live.record.tenant != tenant) continue;
    const std::optional<double> left = PaceLocked(live).seconds_left;
    if (left && (!least || *left < *least)) least = left;
  }
  return least;
}

QueueHistory LiveJobs::queue_history() const {
  MutexLock lock(&mu_);
  return queue_;
}

std::vector<JobId> LiveJobs::WaitForChanges(absl::Duration timeout) {
  const absl::Duration deadline = Clock::Real()->Monotonic() + timeout;
  MutexLock lock(&mu_);
  while (true) {
    const absl::Duration now = Clock::Real()->Monotonic();
    absl::Duration wait = deadline - now;
    std::vector<JobId> due;
    for (const JobId job : dirty_) {
      const absl::Duration left = live_.at(job).told_at + kTellInterval - now;
      if (left <= absl::ZeroDuration()) {
        due.push_back(job);
      } else {
        wait = std::min(wait, left);
      }
    }
    for (const JobId job : due) Tell(job, &live_.at(job));
    if (!changes_.empty() || now >= deadline) {
      std::vector<JobId> changes(changes_.begin(), changes_.end());
      changes_.clear();
      return changes;
    }
    changed_.WaitFor(&mu_, wait);
  }
}

std::set<JobId> LiveJobs::Begun() const {
  MutexLock lock(&mu_);
  std::set<JobId> begun;
  for (const auto& [id, live] : live_) {
    if (live.record.state == v1::JOB_STATE_IN_PROGRESS && Begun(live)) {
      begun.insert(id);
    }
  }
  return begun;
}

bool LiveJobs::AnyBegun() const {
  MutexLock lock(&mu_);
  return std::any_of(live_.begin(), live_.end(), [](const auto& entry) {
    const Live& live = entry.second;
    return live.record.state == v1::JOB_STATE_IN_PROGRESS &&
           (Begun(live) || live.record.completed > 0);
  });
}

}  // namespace sluice
