#include "server/job_service.h"

#include <utility>

#include "common/status_macros.h"
#include "proto/call_guard.h"
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
      operations_(jobs),
      guard_(options.guard),
      queries_(queries),
      uploads_(jobs, options.uploads, options.guard),
      follow_(jobs, options.follow, options.guard),
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
    grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
    v1::Job* response) {
  auto caller =
      CheckCall(guard_, *context, "sluice.v1.JobService/GetJob", request->id());
  return AnswerLater(
      queries_,
      [this, caller = std::move(caller), request, response]() -> absl::Status {
        SLUICE_RETURN_IF_ERROR(caller.status());
        return Answer(operations_.Get(request->id(), *caller), response);
      });
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobs(
    grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
    v1::ListJobsResponse* response) {
  auto caller = CheckCall(guard_, *context, "sluice.v1.JobService/ListJobs");
  return AnswerLater(
      queries_,
      [this, caller = std::move(caller), request, response]() -> absl::Status {
        SLUICE_RETURN_IF_ERROR(caller.status());
        return Answer(operations_.List(*request, *caller), response);
      });
}

grpc::ServerWriteReactor<v1::Job>* JobServiceImpl::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return follow_.Watch(context, request->id());
}

grpc::ServerWriteReactor<v1::ResultChunk>* JobServiceImpl::StreamResults(
    grpc::CallbackServerContext* context,
    const v1::StreamResultsRequest* request) {
  return follow_.Results(context, *request);
}

grpc::ServerUnaryReactor* JobServiceImpl::Change(
    grpc::CallbackServerContext* context, absl::string_view method,
    const std::string& id, std::function<absl::Status(const Caller&)> change) {
  auto caller = CheckCall(guard_, *context, method, id);
  return AnswerLater(&changes_,
                     [caller = std::move(caller),
                      change = std::move(change)]() -> absl::Status {
                       SLUICE_RETURN_IF_ERROR(caller.status());
                       return change(*caller);
                     });
}

grpc::ServerUnaryReactor* JobServiceImpl::CancelJob(
    grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
    v1::Job* response) {
  return Change(context, "sluice.v1.JobService/CancelJob", request->id(),
                [this, request, response](const Caller& caller) {
                  return Answer(operations_.Cancel(request->id(), caller),
                                response);
                });
}

grpc::ServerUnaryReactor* JobServiceImpl::PauseJob(
    grpc::CallbackServerContext* context, const v1::PauseJobRequest* request,
    v1::Job* response) {
  return Change(context, "sluice.v1.JobService/PauseJob", request->id(),
                [this, request, response](const Caller& caller) {
                  return Answer(operations_.Pause(request->id(), caller),
                                response);
                });
}

grpc::ServerUnaryReactor* JobServiceImpl::ResumeJob(
    grpc::CallbackServerContext* context, const v1::ResumeJobRequest* request,
    v1::Job* response) {
  return Change(context, "sluice.v1.JobService/ResumeJob", request->id(),
                [this, request, response](const Caller& caller) {
                  return Answer(operations_.Resume(request->id(), caller),
                                response);
                });
}

grpc::ServerUnaryReactor* JobServiceImpl::SetJobPriority(
    grpc::CallbackServerContext* context,
    const v1::SetJobPriorityRequest* request, v1::Job* response) {
  return Change(context, "sluice.v1.JobService/SetJobPriority", request->id(),
                [this, request, response](const Caller& caller) {
                  return Answer(operations_.SetPriority(
                                    request->id(), request->priority(), caller),
                                response);
                });
}

grpc::ServerUnaryReactor* JobServiceImpl::DeleteJob(
    grpc::CallbackServerContext* context, const v1::DeleteJobRequest* request,
    v1::DeleteJobResponse*) {
  return Change(context, "sluice.v1.JobService/DeleteJob", request->id(),
                [this, request](const Caller& caller) {
                  return operations_.Delete(request->id(), caller);
                });
}

}  // namespace sluice
