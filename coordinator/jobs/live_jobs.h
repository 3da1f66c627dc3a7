#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/event_rate.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "common/types.h"
#include "coordinator/jobs/job_history.h"
#include "coordinator/jobs/job_metrics.h"
#include "coordinator/request.h"
#include "coordinator/request_queue.h"
#include "coordinator/store/job_record.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// The state in memory of jobs that have not ended: their records as last
// committed, the requests handed out and being generated, and changes to be
// told. A fixed size per job. Thread-safe; no I/O.
class LiveJobs {
 public:
  // `default_max_tokens` is for requests and jobs that have none.
  LiveJobs(std::string served_model, int64_t default_max_tokens,
           const Clock* clock, JobMetrics* metrics);

  // -- Records. Calls must be in the order of the commits that they follow.

  // Adds a job that was published or found at start-up.
  void Add(const JobRecord& job);
  // Adds requests of a live job that have known tokens, to be handed out first.
  void AddBegun(JobId job, std::vector<Request> requests);
  // Updates a changed job; an ended one is no longer live.
  void Update(const JobRecord& job);
  // Counts ended jobs found at start-up (`count` of them) or deleted (-1).
  void CountEnded(v1::JobState state, int64_t count);
  // Counts an upload that began (+1) or ended (-1).
  void CountUpload(int64_t delta);
  void NotifyDeleted(JobId job);

  // Returns `stored` as clients see it, with the state that is only in memory.
  // If the job is live, its live record counts.
  v1::Job Describe(const JobRecord& stored) const;
  std::optional<v1::Job> Find(JobId job) const;
  bool IsLive(JobId job) const;

  // The jobs in progress of which requests were handed out.
  std::set<JobId> Begun() const;
  // Whether requests of an unfinished job were handed out or have answers, and
  // more are to come.
  bool AnyBegun() const;

  // -- Handing out.

  struct Cursor {
    JobId job;
    int64_t next_index = 0;
    int64_t accepted_us = 0;  // JobRecord::started_us
    int64_t priority = 0;
  };
  // The job whose requests are handed out next.
  std::optional<Cursor> NextRunnable() const;
  // Requests of this job that have known tokens, or were handed out and given
  // back: at most `max`, in the order of RequestQueue::TakeRequests.
  std::vector<Request> TakeReturned(JobId job, size_t max);
  // Returned requests of lines that have several, of any job in progress, of a
  // paused one, too: others of their lines may wait for them.
  std::vector<Request> TakeReturnedParts(size_t max);
  // Takes back requests that nobody has begun. Those of a job that does not
  // run any more are dropped: it has ended, or ends them itself.
  void GiveBack(std::vector<Request> requests);
  // Whether requests of other jobs that were handed out should be given back
  // for this job's: it goes before one of them.
  bool GoesBefore(JobId job) const;
  // Notes that `taken` requests were read, all before `next_index`. Returns
  // false (and notes nothing) if the job does not run any more.
  bool Advance(JobId job, int64_t next_index, int64_t taken, bool drained);

  // -- Reports.

  void AddProgress(JobId job, const JobProgress& progress);
  // Returns the replays since the last call, to be stored.
  int64_t TakeReplays(JobId job);
  // Counts a result that was given to the writer (+1) or came out of it (-1).
  void CountQueued(JobId job, int64_t delta);
  void SetDetail(const std::string& detail);
  // Sets the reason why results cannot be stored, or ""; it overrides any other
  // detail. Returns true if it changed.
  bool SetStoreDetail(const std::string& detail);

  // -- History, in memory only.

  // Called regularly, so that histories also know when nothing happens, and
  // metrics how far jobs are.
  void Sample();
  // Notes what happened to a live job.
  void AddEvent(JobId job, const std::string& kind, const std::string& text);
  // The history of a live job, or of one of those that ended last; empty for
  // others.
  JobHistory History(JobId job) const;
  // Tokens a second of a live job, and the seconds that it will still take;
  // nothing for the latter if that is not known.
  struct Pace {
    double generation_tokens_per_second = 0;
    std::optional<double> seconds_left;
  };
  Pace PaceOf(JobId job) const;
  // The time until the first of a tenant's jobs ends; nothing if none is known.
  std::optional<double> SecondsToFirstEnd(const std::string& tenant) const;
  QueueHistory queue_history() const;
  // Metrics tell the progress of at most so many jobs, those that go first.
  static constexpr size_t kMaxJobsInMetrics = 100;

  // -- Watching. Changes of progress and counters are told a few times a
  // second, others at once.

  // Waits as JobManager::WaitForChanges does.
  std::vector<JobId> WaitForChanges(absl::Duration timeout);

 private:
  // By the tokens that are left (of all that have no known tokens, as many),
  // then by index and part.
  using Returned = std::map<std::tuple<int64_t, int64_t, int32_t>, Request>;
  struct Live {
    JobRecord record;
    int64_t next_index = 0;
    int64_t waiting = 0;   // lines whose first requests are not handed out
    bool drained = false;  // all in the store were handed out
    bool begun = false;    // an earlier process knew tokens of some
    Returned returned;
    int64_t queued = 0;  // results on their way to the store
    int64_t running = 0;
    int64_t generated = 0;
    int64_t prefilled = 0;
    // Tokens of answers that existed when the job became live, and those known
    // of other requests.
    int64_t prompt_before = 0, generated_before = 0;
    int64_t replays = 0;  // not stored yet
    bool dirty = false;   // changed since told_at
    absl::Duration told_at = -absl::InfiniteDuration();
    JobHistory history;
  };

  Live* Get(JobId job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes that the job has changes to tell, at once or soon.
  void Tell(JobId job, Live* live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellSoon(JobId job, Live* live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetWaiting(Live* live, int64_t waiting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountState(v1::JobState state, int64_t delta)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::Job DescribeLocked(const JobRecord& record, const Live* live) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string DetailLocked(const JobRecord& record, const Live& live) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double RateLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static std::pair<int64_t, JobId> RunKey(const JobRecord& record);
  // Whether requests of the job were handed out, by this process or another.
  static bool Begun(const Live& live) {
    return live.next_index > 0 || live.begun;
  }
  static void Return(Request request, Live* live);
  void TakeOne(Live* live, Returned::iterator at, std::vector<Request>* taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts the job among the runnable ones if it is one, or takes it out.
  // REQUIRES: its record is the same as when it was put there.
  void SetRunnable(const Live& live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  int64_t NowMicros() const;
  Pace PaceLocked(const Live& live) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ShowProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SampleJob(Live* live, bool due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes what a change of a record is to people.
  void AddChange(const JobRecord& before, Live* live)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  static void DescribeTokens(const JobRecord& record, const Live* live,
                             v1::Job* job);

  const std::string served_model_;
  const int64_t default_max_tokens_;
  const Clock* const clock_;
  JobMetrics* const metrics_;

  mutable Mutex mu_;
  CondVar changed_;
  std::map<JobId, Live> live_ ABSL_GUARDED_BY(mu_);
  // Jobs with requests to hand out: by falling priority, then age.
  std::set<std::pair<int64_t, JobId>> runnable_ ABSL_GUARDED_BY(mu_);
  // Tokens generated by jobs that have ended since.
  std::map<JobId, int64_t> ended_generated_ ABSL_GUARDED_BY(mu_);
  std::map<v1::JobState, int64_t> states_ ABSL_GUARDED_BY(mu_);
  EventRate rate_ ABSL_GUARDED_BY(mu_);  // of tokens, all jobs together
  int64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t running_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<JobId> changes_ ABSL_GUARDED_BY(mu_);  // to be told
  std::set<JobId> dirty_
      ABSL_GUARDED_BY(mu_);  // to be told at the next interval
  std::string detail_ ABSL_GUARDED_BY(mu_);
  QueueHistory queue_ ABSL_GUARDED_BY(mu_);
  int64_t prompt_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t generation_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  // Of jobs that have ended, the last ones.
  std::deque<std::pair<JobId, JobHistory>> ended_histories_
      ABSL_GUARDED_BY(mu_);
  std::string store_detail_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
