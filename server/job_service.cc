#include "server/job_service.h"

#include <utility>

#include "proto/callback_queue.h"
#include "proto/tsan_handoff.h"
#include "server/unary_service.h"

namespace sluice {
namespace {

constexpr int kChangeThreads = 1;  // more would wait for each other
// The interval at which the notifier checks for idle uploads and its stop.
constexpr absl::Duration kTick = absl::Milliseconds(100);

template <typename T>
absl::Status Answer(absl::StatusOr<T> result, T* response) {
  if (!result.ok()) return result.status();
  *response = *std::move(result);
  return absl::OkStatus();
}

}  // namespace

JobServiceImpl::JobServiceImpl(JobManager* jobs, Executor* queries,
                               const Options& options)
    : jobs_(jobs),
      queries_(queries),
      uploads_(jobs, options.uploads),
      follow_(jobs, options.follow),
      changes_("job-changes", kChangeThreads) {
  KeepCallbackQueue();
  HandOff(this);
  HandOff(queries_);
  HandOff(&changes_);
  notifier_ = Thread("job-notifier", [this] {
    while (!stop_.load()) {
      follow_.Tell(jobs_->WaitForChanges(kTick));
      uploads_.EndIdle();
    }
  });
}

JobServiceImpl::~JobServiceImpl() {
  TakeOver(this);
  stop_.store(true);
}

void JobServiceImpl::BeginShutdown() {
  uploads_.BeginShutdown();
  follow_.BeginShutdown();
}

grpc::ServerReadReactor<v1::CreateJobRequest>* JobServiceImpl::CreateJob(
    grpc::CallbackServerContext* context, v1::Job* response) {
  return uploads_.Create(context, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::GetJob(
    grpc::CallbackServerContext*, const v1::GetJobRequest* request,
    v1::Job* response) {
  return AnswerLater(queries_, [this, request, response] {
    return Answer(jobs_->GetJob(request->id()), response);
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobs(
    grpc::CallbackServerContext*, const v1::ListJobsRequest* request,
    v1::ListJobsResponse* response) {
  return AnswerLater(queries_, [this, request, response] {
    return Answer(jobs_->ListJobs(*request), response);
  });
}

grpc::ServerWriteReactor<v1::Job>* JobServiceImpl::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return follow_.Watch(context, request->id());
}

grpc::ServerUnaryReactor* JobServiceImpl::CancelJob(
    grpc::CallbackServerContext*, const v1::CancelJobRequest* request,
    v1::Job* response) {
  return AnswerLater(&changes_, [this, request, response] {
    return Answer(jobs_->CancelJob(request->id()), response);
  });
}

grpc::ServerWriteReactor<v1::ResultChunk>* JobServiceImpl::StreamResults(
    grpc::CallbackServerContext* context,
    const v1::StreamResultsRequest* request) {
  return follow_.Results(context, *request);
}

grpc::ServerUnaryReactor* JobServiceImpl::DeleteJob(
    grpc::CallbackServerContext*, const v1::DeleteJobRequest* request,
    v1::DeleteJobResponse*) {
  return AnswerLater(
      &changes_, [this, request] { return jobs_->DeleteJob(request->id()); });
}

}  // namespace sluice
