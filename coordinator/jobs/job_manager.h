#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/access.h"
#include "common/metrics/metrics.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "common/threads/regular_update.h"
#include "coordinator/jobs/job_metrics.h"
#include "coordinator/jobs/line_joiner.h"
#include "coordinator/jobs/live_jobs.h"
#include "coordinator/jobs/requests/request_parser.h"
#include "coordinator/jobs/results/result_writer.h"
#include "coordinator/jobs/results/token_texts.h"
#include "coordinator/jobs/tenant_quotas.h"
#include "coordinator/request_queue.h"
#include "coordinator/store/job_store.h"
#include "coordinator/store/state_lock.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// Manages jobs: accepts them, keeps them in the store, hands their requests to
// the dispatcher and keeps their results. Everything acknowledged is on disk.
// Ended jobs are read from the store; others are in LiveJobs too, and
// commit_mu_ orders the two: a thread that changes a job in the store changes
// it there as well before another may. Thread-safe.
class JobManager : public RequestQueue, private ResultSink {
 public:
  struct Options {
    std::filesystem::path state_dir;   // holds sluice.db; created if missing
    std::filesystem::path input_root;  // for JobSpec.input_path; "" forbids it
    // The pointers in it must outlive the manager.
    RequestParser::Options requests;
    int64_t max_line_bytes = 16 << 20;
    int64_t max_requests_per_job = 100'000'000;
    // What tokens depend on beside the request: those of unfinished requests
    // that were kept with another one are not used.
    std::string answer_key;
    // A longer result line becomes an error. Stores hold at most 1e9 bytes.
    int64_t max_result_bytes = 256 << 20;
    // Whether answers say how many tokens of their prompts others had computed.
    bool prompt_details = false;
    // Whether requests share what they begin with: then PendingLengths has it.
    bool share_prefixes = false;
    // The quota of a tenant as it is now; null: nobody has one.
    std::function<TenantQuota(const std::string& tenant)> quota_of;
    const Clock* clock = nullptr;  // both must outlive the manager
    MetricsRegistry* metrics = nullptr;
    absl::Status Validate() const;
  };

  static absl::StatusOr<std::unique_ptr<JobManager>> Create(Options options);
  // Stores completed results, if the store takes them.
  ~JobManager() override;

  // Callbacks to the taker of requests, on any thread; each may be empty.
  struct Listener {
    std::function<void()> on_work;  // there may be new requests to take
    // Called when a job was cancelled: its requests must be generated no
    // further, and be completed with kCancelled.
    std::function<void(JobId)> on_cancel;
    std::function<void()> on_stored;  // the backlog is smaller
    // Other requests than those taken should go first, or some taken should not
    // be begun: a job was paused, or goes before another. What is not begun is
    // to be given back.
    std::function<void()> on_order;
  };
  void SetListener(Listener listener);

  // An upload in progress. Without Commit, its destruction removes the job.
  class Upload {
   public:
    virtual ~Upload() = default;
    // Adds the next bytes of the input; validates the lines that they complete.
    virtual absl::Status Append(absl::string_view data) = 0;
    // The bytes kept of a line that has begun.
    virtual size_t unfinished_bytes() const = 0;
    // Makes the job durable and starts it.
    virtual absl::StatusOr<v1::Job> Commit() = 0;
  };
  // Begins an upload of a job that belongs to `tenant`. With the request_id of
  // an existing job it creates none, and Commit returns that job if its input
  // was the same: kAlreadyExists if not, or if the spec is not the same.
  // kUnavailable while another upload with the request_id is under way.
  // kResourceExhausted, here and from Append and Commit, if the tenant's quota
  // is used up: see TenantQuotas.
  // `stopped`, if not null, is asked before every line: once it says so, Append
  // fails with kCancelled.
  absl::StatusOr<std::unique_ptr<Upload>> BeginUpload(
      const v1::JobSpec& spec, std::function<bool()> stopped = nullptr,
      const std::string& tenant = "");
  // Creates a job from spec.input_path: kPermissionDenied outside the root,
  // kNotFound; kCancelled as for BeginUpload. With the request_id of an
  // existing job and the same spec, returns that job without reading the file.
  absl::StatusOr<v1::Job> CreateFromPath(
      const v1::JobSpec& spec, const std::function<bool()>& stopped = nullptr,
      const std::string& tenant = "");

  absl::StatusOr<v1::Job> GetJob(const std::string& id);
  // A job that the caller may not see is not found.
  absl::StatusOr<v1::Job> GetJob(const std::string& id, const Caller& caller);
  // Lists those that the caller may see.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest& request,
      const Caller& caller = Caller::Trusted());
  absl::StatusOr<v1::Job> CancelJob(const std::string& id);
  // Requests of a paused job that have begun are brought to their end, and no
  // others begin. kFailedPrecondition if the job has ended or is being
  // cancelled.
  absl::StatusOr<v1::Job> PauseJob(const std::string& id);
  absl::StatusOr<v1::Job> ResumeJob(const std::string& id);
  absl::StatusOr<v1::Job> SetJobPriority(const std::string& id,
                                         int32_t priority);
  absl::Status DeleteJob(const std::string& id);

  // Reads results with index >= offset, in order, up to the first one missing,
  // at most about `max_bytes` (at least one if there is one).
  absl::StatusOr<v1::ResultChunk> ReadResults(const std::string& id,
                                              int64_t offset,
                                              int64_t max_bytes);

  // A request that ended with an error, as its line says.
  struct FailedRequest {
    int64_t index = 0;
    std::string custom_id;
    std::string code;
    std::string message;
  };
  // Reads failed requests with index >= from, in order, at most `limit`. Long
  // texts are cut.
  absl::StatusOr<std::vector<FailedRequest>> ReadErrors(const std::string& id,
                                                        int64_t from,
                                                        int64_t limit);

  // The course of a job, and of all, as far as this process knows it.
  absl::StatusOr<JobHistory> History(const std::string& id) const;
  LiveJobs::Pace PaceOf(const std::string& id) const;
  QueueHistory queue_history() const { return live_.queue_history(); }

  // Waits until jobs have changed, ended or been deleted since the last call,
  // or for the time-out, and returns them. Meant for one caller, which tells
  // all watchers.
  std::vector<std::string> WaitForChanges(absl::Duration timeout);

  absl::StatusOr<std::vector<Request>> TakeRequests(size_t max) override;
  void GiveBack(std::vector<Request> requests) override;
  absl::StatusOr<LengthHistogram> PendingLengths() override;
  void Complete(Request request, Generation generation) override;
  Backlog backlog() const override { return writer_->backlog(); }
  void KeepTokens(std::vector<NewTokens> tokens) override;
  bool keeping_tokens() const override;
  void ReportProgress(JobId job, const JobProgress& progress) override;
  void ReportPlan(const std::string& plan) override;
  void ReportModel(const ModelContent& model) override;
  void ReportDetail(const std::string& detail) override;

  // The model last given to ReportModel, by this process or an earlier one.
  ModelContent ReportedModel() const;
  // Whether an unfinished job has begun: some of its requests were handed out
  // or have answers.
  bool HasBegunJobs() const { return live_.AnyBegun(); }

  // Called before the taker of requests ends: TakeRequests then no longer waits
  // for results to be stored, as it does while the disk is full.
  void BeginShutdown() { writer_->StopWaiting(); }
  // Returns when all results and tokens that came so far are stored, or could
  // not be.
  void Flush();
  // Requests without a result of which tokens are stored, and these.
  struct Kept {
    int64_t requests = 0;
    int64_t tokens = 0;
  };
  absl::StatusOr<Kept> KeptTokens(const std::string& id);

 private:
  JobManager(Options options, std::unique_ptr<StateLock> lock);

  absl::Status Open();
  // Hands the job's requests of which tokens are known to live_.
  absl::Status Resume(const JobRecord& job);
  // The requests of a line with what is known of them, all of one index;
  // kDataLoss if there is no such line or the tokens are not its own.
  absl::StatusOr<std::vector<Request>> ResumedLine(
      const JobRecord& job, absl::Span<StoredProgress> known);
  int64_t NowMicros() const;
  // The time after which a tenant may have room in its queue.
  absl::Duration RetryDelay(const std::string& tenant) const;
  Listener listener() const;
  // The job that has the spec's request_id; kNotFound if none has,
  // kAlreadyExists if its spec is another.
  absl::StatusOr<JobRecord> FindExisting(const std::string& tenant,
                                         const v1::JobSpec& spec);
  std::unique_ptr<Upload> Repeat(JobRecord job);
  absl::StatusOr<v1::Job> Publish(JobId job, const JobTotals& totals);
  void Abandon(JobId job);
  void OnBegun();
  // Stores pending reports: the model, and the plan with the jobs that have
  // begun. A plan that can't be stored is given up.
  absl::Status StoreReports() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mu_);
  // Stores tokens that were taken; what can't be stored waits for the next
  // time.
  absl::Status StoreTokens() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mu_);
  int32_t VocabSize() const;
  // Returns a line's requests, and fills `line`. kFailedPrecondition if it does
  // not fit the model any more.
  absl::StatusOr<std::vector<Request>> Restore(const LiveJobs::Cursor& cursor,
                                               StoredRequest stored,
                                               Request* line) const;
  bool Fits(const Request& request) const;
  void CompleteLine(FinishedLine line);
  // Has more lines begun if so many waited for others that none were.
  void LetGo();

  // Changes a job that is in progress, in the store and in LiveJobs.
  absl::StatusOr<v1::Job> ChangeJob(
      const std::string& id,
      absl::FunctionRef<absl::StatusOr<JobRecord>(JobId)> change);
  void NotifyOrder();

  // Called on the writer's thread.
  StoredResult Format(FinishedLine finished) override;
  absl::Status Commit(absl::Span<const StoredResult> results) override;
  absl::StatusOr<bool> DoBackgroundWork() override;
  void OnWritten() override;
  // Commits results that did not come from the writer's queue.
  absl::Status Record(absl::Span<const StoredResult> results);
  absl::StatusOr<bool> CancelSome();
  absl::Status RemoveAbandoned();

  const Options options_;
  const std::unique_ptr<StateLock> state_lock_;
  JobMetrics metrics_;
  TokenTexts token_texts_;  // writer's thread only
  LiveJobs live_;
  TenantQuotas quotas_;
  LineJoiner joiner_;
  std::unique_ptr<JobStore> store_;

  Mutex commit_mu_;
  Mutex take_mu_;  // one TakeRequests at a time
  // Requests that live_ got at the start, so that they are not read again.
  std::map<JobId, std::set<int64_t>> resumed_ ABSL_GUARDED_BY(take_mu_);
  Mutex long_line_mu_;  // see JobUpload

  mutable Mutex mu_;  // held only briefly
  Listener listener_ ABSL_GUARDED_BY(mu_);
  std::string plan_ ABSL_GUARDED_BY(mu_);  // the last one reported
  bool plan_stored_ ABSL_GUARDED_BY(mu_) = true;
  // The model of coming results until it is stored, which is before them.
  std::optional<ModelContent> model_ ABSL_GUARDED_BY(mu_);
  std::vector<StoredProgress> tokens_ ABSL_GUARDED_BY(mu_);  // to be stored
  std::set<JobId> cancelling_ ABSL_GUARDED_BY(mu_);
  std::set<JobId> abandoned_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<RegularUpdate> state_gauges_;
  std::unique_ptr<ResultWriter> writer_;  // destroyed first
};

}  // namespace sluice
