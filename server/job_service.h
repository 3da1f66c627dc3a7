#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "common/threads/executor.h"
#include "common/threads/thread.h"
#include "coordinator/jobs/job_manager.h"
#include "server/follow_service.h"
#include "server/job_operations.h"
#include "server/upload_service.h"
#include "sluice/v1/jobs.grpc.pb.h"

namespace sluice {

// JobService over a JobManager, which must outlive it; it must outlive the
// server. No call and no stream holds a thread while it waits for a client.
// Thread-safe.
class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  struct Options {
    FollowService::Options follow;
    UploadService::Options uploads;
    CallGuard* guard = nullptr;  // must outlive the service
  };
  // `queries` runs calls that only read; it must outlive the service.
  JobServiceImpl(JobManager* jobs, Executor* queries, const Options& options);
  ~JobServiceImpl() override;

  // Ends the streams, which would go on forever.
  void BeginShutdown();

  grpc::ServerReadReactor<v1::CreateJobRequest>* CreateJob(
      grpc::CallbackServerContext* context, v1::Job* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::Job* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerWriteReactor<v1::Job>* WatchJob(
      grpc::CallbackServerContext* context,
      const v1::WatchJobRequest* request) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerWriteReactor<v1::ResultChunk>* StreamResults(
      grpc::CallbackServerContext* context,
      const v1::StreamResultsRequest* request) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext* context,
                                      const v1::DeleteJobRequest* request,
                                      v1::DeleteJobResponse* response) override;
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext* context,
                                     const v1::PauseJobRequest* request,
                                     v1::Job* response) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context,
                                      const v1::ResumeJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* SetJobPriority(
      grpc::CallbackServerContext* context,
      const v1::SetJobPriorityRequest* request, v1::Job* response) override;

 private:
  // Changes a job, on the threads for changes.
  grpc::ServerUnaryReactor* Change(
      grpc::CallbackServerContext* context, absl::string_view method,
      const std::string& id, std::function<absl::Status(const Caller&)> change);

  JobManager* const jobs_;
  JobOperations operations_;
  CallGuard* const guard_;
  Executor* const queries_;
  UploadService uploads_;
  FollowService follow_;
  Executor changes_;  // runs changes of jobs, which wait for the disk
  std::atomic<bool> stop_{false};
  Thread notifier_;
};

}  // namespace sluice
