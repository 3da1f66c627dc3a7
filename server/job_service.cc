#include "server/job_service.h"

#include <memory>
#include <utility>

#include "proto/grpc_status.h"

namespace sluice {
namespace {

// How often a waiting stream looks whether its client is still there.
constexpr absl::Duration kPoll = absl::Milliseconds(250);
// Result lines in one message; gRPC's default limit for messages is 4 MB.
constexpr int64_t kChunkBytes = 1 << 20;

grpc::Status ShuttingDown() {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE,
                      "the coordinator is shutting down; try again");
}

// Writes a chunk; a line beyond kChunkBytes, which is alone in its chunk, in
// pieces. False if the client is gone.
bool WriteChunk(const v1::ResultChunk& chunk, int64_t offset,
                grpc::ServerWriter<v1::ResultChunk>* writer) {
  constexpr auto kPiece = static_cast<size_t>(kChunkBytes);
  if (chunk.results_size() != 1 || chunk.results(0).line().size() <= kPiece) {
    return writer->Write(chunk);
  }
  const v1::Result& whole = chunk.results(0);
  for (size_t at = 0; at < whole.line().size(); at += kPiece) {
    v1::ResultChunk piece;
    v1::Result* result = piece.add_results();
    result->set_index(whole.index());
    result->set_is_error(whole.is_error());
    result->set_line(whole.line().substr(at, kPiece));
    result->set_more(at + kPiece < whole.line().size());
    piece.set_next_offset(result->more() ? offset : chunk.next_offset());
    if (!writer->Write(piece)) return false;
  }
  return true;
}

template <typename T>
grpc::Status Answer(absl::StatusOr<T> result, T* response) {
  if (!result.ok()) return ToGrpcStatus(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace

grpc::Status JobServiceImpl::CreateJob(
    grpc::ServerContext* context,
    grpc::ServerReader<v1::CreateJobRequest>* reader, v1::Job* response) {
  v1::CreateJobRequest message;
  if (!reader->Read(&message) || !message.has_spec()) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                        "the first message must hold `spec`");
  }
  const v1::JobSpec spec = message.spec();
  const bool from_path = !spec.input_path().empty();
  std::unique_ptr<JobManager::Upload> upload;
  if (!from_path) {
    v1::Job existing;
    auto begun = jobs_->BeginUpload(spec, &existing);
    if (!begun.ok()) return ToGrpcStatus(begun.status());
    if (*begun == nullptr) {
      *response = std::move(existing);
      return grpc::Status::OK;
    }
    upload = *std::move(begun);
  }
  while (reader->Read(&message)) {
    if (stopping_.load()) return ShuttingDown();
    switch (message.kind_case()) {
      case v1::CreateJobRequest::kData: {
        if (from_path) {
          return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                              "spec.input_path is set, so no `data` may come");
        }
        absl::Status status = upload->Append(message.data());
        if (!status.ok()) return ToGrpcStatus(status);
        break;
      }
      case v1::CreateJobRequest::kCommit:
        if (!message.commit()) {
          return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                              "`commit` must be true");
        }
        return Answer(
            from_path ? jobs_->CreateFromPath(spec) : upload->Commit(),
            response);
      default:
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                            "after `spec`, messages must hold `data`, the last "
                            "one `commit`");
    }
  }
  return grpc::Status(
      grpc::StatusCode::CANCELLED,
      "the upload ended without `commit`: no job was made of it");
}

grpc::Status JobServiceImpl::GetJob(grpc::ServerContext*,
                                    const v1::GetJobRequest* request,
                                    v1::Job* response) {
  return Answer(jobs_->GetJob(request->id()), response);
}

grpc::Status JobServiceImpl::ListJobs(grpc::ServerContext*,
                                      const v1::ListJobsRequest* request,
                                      v1::ListJobsResponse* response) {
  return Answer(jobs_->ListJobs(*request), response);
}

grpc::Status JobServiceImpl::WatchJob(grpc::ServerContext* context,
                                      const v1::WatchJobRequest* request,
                                      grpc::ServerWriter<v1::Job>* writer) {
  uint64_t seen = 0;
  while (!Stopping(context)) {
    auto version = jobs_->WaitForChange(request->id(), seen, kPoll);
    if (!version.ok()) return ToGrpcStatus(version.status());
    if (*version == seen) continue;
    seen = *version;
    auto job = jobs_->GetJob(request->id());
    if (!job.ok()) return ToGrpcStatus(job.status());
    if (!writer->Write(*job)) break;
    if (IsTerminal(job->state())) return grpc::Status::OK;
  }
  return stopping_.load() ? ShuttingDown() : grpc::Status::CANCELLED;
}

grpc::Status JobServiceImpl::CancelJob(grpc::ServerContext*,
                                       const v1::CancelJobRequest* request,
                                       v1::Job* response) {
  return Answer(jobs_->CancelJob(request->id()), response);
}

grpc::Status JobServiceImpl::StreamResults(
    grpc::ServerContext* context, const v1::StreamResultsRequest* request,
    grpc::ServerWriter<v1::ResultChunk>* writer) {
  if (request->offset() < 0) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                        "offset must not be negative");
  }
  int64_t offset = request->offset();
  uint64_t seen = 0;
  while (!Stopping(context)) {
    // State and version are read before the results, so that nothing that comes
    // in between is missed.
    auto version = jobs_->WaitForChange(request->id(), seen, kPoll);
    if (!version.ok()) return ToGrpcStatus(version.status());
    auto job = jobs_->GetJob(request->id());
    if (!job.ok()) return ToGrpcStatus(job.status());
    seen = *version;
    while (!Stopping(context)) {
      auto chunk = jobs_->ReadResults(request->id(), offset, kChunkBytes);
      if (!chunk.ok()) return ToGrpcStatus(chunk.status());
      if (chunk->results().empty()) break;
      if (!WriteChunk(*chunk, offset, writer)) return grpc::Status::CANCELLED;
      offset = chunk->next_offset();
    }
    if (!request->follow() || IsTerminal(job->state())) {
      return grpc::Status::OK;
    }
  }
  return stopping_.load() ? ShuttingDown() : grpc::Status::CANCELLED;
}

grpc::Status JobServiceImpl::DeleteJob(grpc::ServerContext*,
                                       const v1::DeleteJobRequest* request,
                                       v1::DeleteJobResponse*) {
  return ToGrpcStatus(jobs_->DeleteJob(request->id()));
}

}  // namespace sluice
