#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/threads/mutex.h"
#include "common/threads/regular_update.h"
#include "coordinator/job_manager.h"
#include "coordinator/jobs/job_metrics.h"
#include "coordinator/jobs/job_upload.h"
#include "coordinator/jobs/live_jobs.h"
#include "coordinator/jobs/results/result_writer.h"
#include "coordinator/jobs/results/token_texts.h"
#include "coordinator/store/job_store.h"
#include "coordinator/store/state_lock.h"

namespace sluice {

// JobManager over a JobStore. What has ended is read from the store; what has
// not is in LiveJobs too. commit_mu_ orders the two: whoever changes a job in
// the store changes it there as well before another may.
class JobManagerImpl : public JobManager {
 public:
  static absl::StatusOr<std::unique_ptr<JobManager>> Create(Options options);
  ~JobManagerImpl() override;

  void SetOnWork(std::function<void()> on_work) override;
  void SetOnCancel(std::function<void(JobId)> on_cancel) override;
  absl::StatusOr<std::unique_ptr<Upload>> BeginUpload(
      const v1::JobSpec& spec, std::function<bool()> stopped) override;
  absl::StatusOr<v1::Job> CreateFromPath(
      const v1::JobSpec& spec, const std::function<bool()>& stopped) override;
  absl::StatusOr<v1::Job> GetJob(const std::string& id) override;
  absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest& request) override;
  absl::StatusOr<v1::Job> CancelJob(const std::string& id) override;
  absl::Status DeleteJob(const std::string& id) override;
  absl::StatusOr<v1::ResultChunk> ReadResults(const std::string& id,
                                              int64_t offset,
                                              int64_t max_bytes) override;
  std::vector<std::string> WaitForChanges(absl::Duration timeout) override;
  void BeginShutdown() override;
  void Flush() override;

  absl::StatusOr<std::vector<Request>> TakeRequests(size_t max) override;
  absl::StatusOr<LengthHistogram> PendingLengths() override;
  void Complete(const Request& request, Generation generation) override;
  void ReportProgress(JobId job, int64_t running, int64_t new_tokens,
                      int64_t prompt_tokens) override;
  void ReportReplays(JobId job, int64_t count) override;
  void ReportPlan(const std::string& plan) override;
  void ReportModel(const ModelContent& model) override;
  ModelContent ReportedModel() override;
  bool HasBegunJobs() override;
  void ReportDetail(const std::string& detail) override;

 private:
  JobManagerImpl(Options options, std::unique_ptr<StateLock> lock);

  absl::Status Open();
  int64_t NowMicros() const;
  // The job that has the spec's request_id; kNotFound if none has,
  // kAlreadyExists if its spec is another.
  absl::StatusOr<JobRecord> FindExisting(const v1::JobSpec& spec);
  std::unique_ptr<Upload> Repeat(JobRecord job);
  absl::StatusOr<v1::Job> Publish(JobId job, const JobUpload::Totals& totals);
  void Abandon(JobId job);
  // Stores model_ if there is one.
  absl::Status StoreModel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mu_);
  // Records plan_ with the jobs in progress.
  void RecordPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mu_);
  absl::StatusOr<Request> Restore(const LiveJobs::Cursor& cursor,
                                  StoredRequest stored) const;

  // For the writer's thread.
  StoredResult Format(const ResultHead& head, const Generation& generation);
  absl::Status Commit(absl::Span<const StoredResult> results);
  absl::Status CommitQueued(absl::Span<const StoredResult> results);
  absl::StatusOr<bool> DoBackgroundWork();
  absl::StatusOr<bool> CancelSome();
  absl::Status RemoveAbandoned();
  void OnStoreState(const absl::Status& status);

  const Options options_;
  const std::unique_ptr<StateLock> state_lock_;
  JobMetrics metrics_;
  TokenTexts token_texts_;  // writer's thread only
  LiveJobs live_;
  std::unique_ptr<JobStore> store_;

  Mutex commit_mu_;
  std::string plan_ ABSL_GUARDED_BY(commit_mu_);  // of jobs that begin
  // What results to come are of, until that is stored: before them.
  std::optional<ModelContent> model_ ABSL_GUARDED_BY(commit_mu_);
  Mutex take_mu_;       // one TakeRequests at a time
  Mutex long_line_mu_;  // see JobUpload

  Mutex mu_;
  std::function<void()> on_work_ ABSL_GUARDED_BY(mu_);
  std::function<void(JobId)> on_cancel_ ABSL_GUARDED_BY(mu_);
  std::set<JobId> cancelling_ ABSL_GUARDED_BY(mu_);
  std::set<JobId> abandoned_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<RegularUpdate> state_gauges_;
  std::unique_ptr<ResultWriter> writer_;  // first to go
};

}  // namespace sluice
