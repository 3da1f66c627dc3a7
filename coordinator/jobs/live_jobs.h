#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/deadline.h"
#include "common/mutex.h"
#include "common/types.h"
#include "coordinator/jobs/job_metrics.h"
#include "coordinator/store/job_store.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// What is known in memory about the jobs that have not ended: their records as
// last committed, how far their requests were handed out, what is being
// generated, and who waits for a change. A fixed size per job. Thread-safe; no
// I/O.
class LiveJobs {
 public:
  // Version of a job that has ended.
  static constexpr uint64_t kEndedVersion = ~uint64_t{0};

  // `default_max_tokens` holds for requests and jobs that do not say.
  LiveJobs(std::string served_model, int64_t default_max_tokens,
           const Clock* clock, JobMetrics* metrics);

  // -- Records. Calls must be in the order of the commits that they follow.

  // A job that was published or found at start-up.
  void Add(const JobRecord& job);
  // The job changed; if it has ended it is live no more.
  void Update(const JobRecord& job);
  // An ended job was found at start-up (`count` of them) or deleted (-1).
  void CountEnded(v1::JobState state, int64_t count);
  // An upload began (+1) or ended (-1).
  void CountUpload(int64_t delta);
  void NotifyDeleted(JobId job);

  // `stored` as clients see it, with what only memory knows. If the job is
  // live, its live record counts.
  v1::Job Describe(const JobRecord& stored) const;
  std::optional<v1::Job> Find(JobId job) const;

  // Whether requests of an unfinished job were handed out or have answers, and
  // more are to come.
  bool AnyBegun() const;

  // -- Handing out.

  struct Cursor {
    JobId job;
    int64_t next_index = 0;
    int64_t accepted_us = 0;  // as JobRecord::started_us
  };
  // The job whose requests come next.
  std::optional<Cursor> NextRunnable() const;
  // `taken` requests were read, all before `next_index`. False (and nothing is
  // noted) if the job does not run any more.
  bool Advance(JobId job, int64_t next_index, int64_t taken, bool drained);

  // -- Reports.

  void AddProgress(JobId job, int64_t running, int64_t new_tokens,
                   int64_t prompt_tokens);
  void AddReplays(JobId job, int64_t count);
  // Replays since the last call, to be stored.
  int64_t TakeReplays(JobId job);
  // A result was given to the writer (+1) or came out of it (-1).
  void CountQueued(JobId job, int64_t delta);
  void SetDetail(const std::string& detail);
  // Why results cannot be stored; goes before any other detail. "" if they can.
  // True if this is news.
  bool SetStoreDetail(const std::string& detail);

  // -- Watching. Changes of progress and counters are noticed a few times a
  // second, others at once.

  // As JobManager::WaitForChange for a live job; kEndedVersion if it is not
  // live (any more).
  uint64_t WaitForChange(JobId job, uint64_t version, Deadline deadline);
  // Waits until a job is deleted or the deadline passed. `seen` is a value of
  // deletions() from before the caller looked for its job.
  void WaitForDeletion(uint64_t seen, Deadline deadline);
  uint64_t deletions() const;

 private:
  struct Live {
    JobRecord record;
    int64_t next_index = 0;
    int64_t waiting = 0;  // requests not handed out
    int64_t queued = 0;   // results on their way to the store
    int64_t running = 0;
    int64_t generated = 0;
    int64_t prefilled = 0;
    // Tokens of answers that were there when the job became live.
    int64_t prompt_before = 0, generated_before = 0;
    int64_t replays = 0;  // not stored yet
    uint64_t version = 0;
    bool dirty = false;  // changed since `version`
    double bumped_at = 0;
  };

  Live* Get(JobId job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Bump(Live* live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MarkDirty(Live* live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BumpAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetWaiting(Live* live, int64_t waiting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountState(v1::JobState state, int64_t delta)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::Job DescribeLocked(const JobRecord& record, const Live* live) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string DetailLocked(const JobRecord& record) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double RateLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static std::pair<int64_t, JobId> RunKey(const JobRecord& record);

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
  // Tokens of the last seconds: the start of each slot, and its tokens.
  std::deque<std::pair<absl::Duration, int64_t>> rate_ ABSL_GUARDED_BY(mu_);
  int64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t running_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_version_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t deletions_ ABSL_GUARDED_BY(mu_) = 0;
  std::string detail_ ABSL_GUARDED_BY(mu_);
  std::string store_detail_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
