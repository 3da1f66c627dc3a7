#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "coordinator/job_manager.h"
#include "sluice/v1/jobs.grpc.pb.h"

namespace sluice {

// JobService over a JobManager, which must outlive it. Thread-safe.
class JobServiceImpl final : public v1::JobService::Service {
 public:
  explicit JobServiceImpl(JobManager* jobs) : jobs_(jobs) {}

  // Ends streams that wait (Watch, StreamResults with follow) soon.
  void BeginShutdown() { stopping_.store(true); }

  grpc::Status CreateJob(grpc::ServerContext* context,
                         grpc::ServerReader<v1::CreateJobRequest>* reader,
                         v1::Job* response) override;
  grpc::Status GetJob(grpc::ServerContext* context,
                      const v1::GetJobRequest* request,
                      v1::Job* response) override;
  grpc::Status ListJobs(grpc::ServerContext* context,
                        const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status WatchJob(grpc::ServerContext* context,
                        const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::Job>* writer) override;
  grpc::Status CancelJob(grpc::ServerContext* context,
                         const v1::CancelJobRequest* request,
                         v1::Job* response) override;
  grpc::Status StreamResults(
      grpc::ServerContext* context, const v1::StreamResultsRequest* request,
      grpc::ServerWriter<v1::ResultChunk>* writer) override;
  grpc::Status DeleteJob(grpc::ServerContext* context,
                         const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse* response) override;

 private:
  bool Stopping(const grpc::ServerContext* context) const {
    return stopping_.load() || context->IsCancelled();
  }

  JobManager* const jobs_;
  std::atomic<bool> stopping_{false};
};

}  // namespace sluice
