#include "server/job_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "common/host/stop_signals.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "proto/grpc_endpoint.h"
#include "proto/grpc_status.h"
#include "sluice/v1/cluster.grpc.pb.h"
#include "sluice/v1/jobs.grpc.pb.h"

namespace sluice {
namespace {

constexpr std::streamsize kUploadChunk = 1 << 20;
// The pulse is well below the coordinators' time limit.
constexpr absl::Duration kUploadPulse = absl::Seconds(10);

// Sends empty data while there is nothing else to send, so that the coordinator
// does not take an upload of slow input for a dead one.
class UploadPulse {
 public:
  using Writer = grpc::ClientWriter<v1::CreateJobRequest>;
  explicit UploadPulse(Writer* writer)
      : writer_(writer), thread_("upload-pulse", [this] { Beat(); }) {}
  ~UploadPulse() { Stop(); }

  // Returns false if the upload has ended.
  bool Write(const v1::CreateJobRequest& message) {
    MutexLock lock(&mu_);
    wrote_ = true;
    return writer_->Write(message);
  }

  void Stop() {
    {
      MutexLock lock(&mu_);
      stop_ = true;
      stopped_.NotifyAll();
    }
    thread_.Join();
  }

 private:
  void Beat() {
    v1::CreateJobRequest nothing;
    nothing.set_data("");
    MutexLock lock(&mu_);
    while (!stop_) {
      const bool waited = !stopped_.WaitFor(&mu_, kUploadPulse);
      if (waited && !stop_ && !std::exchange(wrote_, false)) {
        writer_->Write(nothing);
      }
    }
  }

  Writer* const writer_;
  Mutex mu_;
  CondVar stopped_;
  bool wrote_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

// The calls that run, so that they can be ended. Thread-safe.
class OpenCalls {
 public:
  // One of them, from before it begins until it has ended.
  class Call {
   public:
    explicit Call(OpenCalls* calls) : calls_(calls) {
      MutexLock lock(&calls_->mu_);
      if (!calls_->stopped_) calls_->open_.insert(&context_);
      may_begin_ = !calls_->stopped_;
    }
    ~Call() {
      MutexLock lock(&calls_->mu_);
      calls_->open_.erase(&context_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // kCancelled after Stop(): then the call must not begin.
    absl::Status MayBegin() const {
      return may_begin_ ? absl::OkStatus()
                        : absl::CancelledError("the client was stopped");
    }
    grpc::ClientContext& context() { return context_; }

   private:
    OpenCalls* const calls_;
    grpc::ClientContext context_;
    bool may_begin_ = false;
  };

  void Stop() {
    MutexLock lock(&mu_);
    stopped_ = true;
    for (grpc::ClientContext* const context : open_) context->TryCancel();
  }

 private:
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> open_ ABSL_GUARDED_BY(mu_);
};

class GrpcJobClient : public JobClient {
 public:
  // `signals` may be null.
  GrpcJobClient(std::shared_ptr<grpc::Channel> channel, std::string name,
                StopSignals* signals)
      : name_(std::move(name)),
        jobs_(v1::JobService::NewStub(channel)),
        cluster_(v1::ClusterService::NewStub(channel)) {
    if (signals != nullptr) {
      watch_.emplace(signals, [this] { Stop(); });
    }
  }

  absl::StatusOr<v1::Job> CreateJob(const v1::JobSpec& spec,
                                    std::istream* input,
                                    const UploadProgress& progress) override {
    OpenCalls::Call call(&calls_);
    SLUICE_RETURN_IF_ERROR(call.MayBegin());
    v1::Job job;
    auto writer = jobs_->CreateJob(&call.context(), &job);
    v1::CreateJobRequest message;
    *message.mutable_spec() = spec;
    bool open = writer->Write(message);
    // The input may be a pipe from something slow.
    UploadPulse pulse(writer.get());
    int64_t sent = 0;
    std::string buffer(kUploadChunk, '\0');
    while (open && input != nullptr) {
      input->read(buffer.data(), kUploadChunk);
      if (input->bad()) {
        call.context().TryCancel();
        pulse.Stop();
        writer->Finish().ok();
        return absl::DataLossError("reading the input failed");
      }
      const std::streamsize got = input->gcount();
      if (got == 0) break;
      message.set_data(buffer.data(), static_cast<size_t>(got));
      open = pulse.Write(message);
      sent += got;
      if (progress) progress(sent);
    }
    pulse.Stop();
    if (open) {
      message.set_commit(true);
      writer->Write(message);
      writer->WritesDone();
    }
    SLUICE_RETURN_IF_ERROR(Check(writer->Finish()));
    return job;
  }

  absl::StatusOr<v1::Job> GetJob(const std::string& id) override {
    v1::GetJobRequest request;
    request.set_id(id);
    return Ask(*jobs_, &v1::JobService::Stub::GetJob, request);
  }

  absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest& request) override {
    return Ask(*jobs_, &v1::JobService::Stub::ListJobs, request);
  }

  absl::StatusOr<v1::Job> CancelJob(const std::string& id) override {
    v1::CancelJobRequest request;
    request.set_id(id);
    return Ask(*jobs_, &v1::JobService::Stub::CancelJob, request);
  }

  absl::StatusOr<v1::Job> PauseJob(const std::string& id) override {
    v1::PauseJobRequest request;
    request.set_id(id);
    return Ask(*jobs_, &v1::JobService::Stub::PauseJob, request);
  }

  absl::StatusOr<v1::Job> ResumeJob(const std::string& id) override {
    v1::ResumeJobRequest request;
    request.set_id(id);
    return Ask(*jobs_, &v1::JobService::Stub::ResumeJob, request);
  }

  absl::StatusOr<v1::Job> SetJobPriority(const std::string& id,
                                         int32_t priority) override {
    v1::SetJobPriorityRequest request;
    request.set_id(id);
    request.set_priority(priority);
    return Ask(*jobs_, &v1::JobService::Stub::SetJobPriority, request);
  }

  absl::Status DeleteJob(const std::string& id) override {
    OpenCalls::Call call(&calls_);
    SLUICE_RETURN_IF_ERROR(call.MayBegin());
    v1::DeleteJobRequest request;
    request.set_id(id);
    v1::DeleteJobResponse response;
    return Check(jobs_->DeleteJob(&call.context(), request, &response));
  }

  absl::StatusOr<v1::Job> WatchJob(
      const std::string& id,
      const std::function<bool(const v1::Job&)>& on_job) override {
    OpenCalls::Call call(&calls_);
    SLUICE_RETURN_IF_ERROR(call.MayBegin());
    v1::WatchJobRequest request;
    request.set_id(id);
    auto reader = jobs_->WatchJob(&call.context(), request);
    v1::Job job;
    while (reader->Read(&job)) {
      if (!on_job(job)) {
        call.context().TryCancel();
        reader->Finish().ok();  // cancelled on purpose
        return job;
      }
    }
    SLUICE_RETURN_IF_ERROR(Check(reader->Finish()));
    return job;
  }

  absl::Status StreamResults(
      const std::string& id, int64_t offset, bool follow,
      const std::function<absl::Status(const v1::Result&)>& on_result)
      override {
    OpenCalls::Call call(&calls_);
    SLUICE_RETURN_IF_ERROR(call.MayBegin());
    v1::StreamResultsRequest request;
    request.set_id(id);
    request.set_offset(offset);
    request.set_follow(follow);
    auto reader = jobs_->StreamResults(&call.context(), request);
    v1::ResultChunk chunk;
    std::string begun;  // the beginning of a line that comes in pieces
    while (reader->Read(&chunk)) {
      for (v1::Result& result : *chunk.mutable_results()) {
        if (result.more()) {
          begun += result.line();
          continue;
        }
        if (!begun.empty()) {
          *result.mutable_line() = begun + result.line();
          begun.clear();
        }
        if (absl::Status status = on_result(result); !status.ok()) {
          call.context().TryCancel();
          reader->Finish().ok();  // cancelled on purpose
          return status;
        }
      }
    }
    return Check(reader->Finish());
  }

  absl::StatusOr<v1::ClusterState> GetClusterState() override {
    v1::ClusterState state;
    v1::GetClusterStateRequest request;
    for (;;) {  // a large cluster comes in pages
      SLUICE_ASSIGN_OR_RETURN(
          v1::ClusterState page,
          Ask(*cluster_, &v1::ClusterService::Stub::GetClusterState, request));
      const int64_t next = page.next_after();
      if (request.after() == 0) {
        state = std::move(page);
      } else {
        state.mutable_workers()->MergeFrom(page.workers());
      }
      if (next <= request.after()) break;
      request.set_after(next);
    }
    state.clear_next_after();
    return state;
  }

  absl::Status DrainWorker(const std::string& name, bool undo) override {
    v1::DrainWorkerRequest request;
    request.set_name(name);
    request.set_undo(undo);
    return Ask<v1::DrainWorkerResponse>(
               *cluster_, &v1::ClusterService::Stub::DrainWorker, request)
        .status();
  }

  absl::StatusOr<v1::Trace> GetTrace(const std::string& id) override {
    v1::Trace trace;
    v1::GetTraceRequest request;
    request.set_id(id);
    for (;;) {  // it comes in pages
      SLUICE_ASSIGN_OR_RETURN(
          v1::Trace page,
          Ask(*cluster_, &v1::ClusterService::Stub::GetTrace, request));
      const int64_t next = page.next_after();
      if (request.after() == 0) {
        trace = std::move(page);
      } else {
        trace.mutable_processes()->MergeFrom(page.processes());
      }
      if (next <= request.after()) break;
      request.set_after(next);
    }
    trace.clear_next_after();
    return trace;
  }

  void Stop() override { calls_.Stop(); }

 private:
  // Makes a call with one answer, which comes soon.
  template <typename Response, typename Stub, typename Request>
  absl::StatusOr<Response> Ask(Stub& stub,
                               grpc::Status (Stub::*call)(grpc::ClientContext*,
                                                          const Request&,
                                                          Response*),
                               const Request& request) {
    OpenCalls::Call open(&calls_);
    SLUICE_RETURN_IF_ERROR(open.MayBegin());
    open.context().set_deadline(std::chrono::system_clock::now() +
                                std::chrono::seconds(30));
    Response response;
    SLUICE_RETURN_IF_ERROR(
        Check((stub.*call)(&open.context(), request, &response)));
    return response;
  }

  absl::Status Check(const grpc::Status& status) const {
    absl::Status result = FromGrpcStatus(status);
    if (absl::IsUnavailable(result)) {
      return Unavailable("no coordinator answers at ", name_, " (",
                         result.message(),
                         "); is sluice-coordinator running? Say where with "
                         "--coordinator HOST:PORT");
    }
    return result;
  }

  const std::string name_;
  OpenCalls calls_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::optional<StopSignals::Watch> watch_;
};

}  // namespace

std::unique_ptr<JobClient> JobClient::Connect(const std::string& address,
                                              const ChannelSecurity& security,
                                              StopSignals* signals) {
  auto channel = OpenChannel(ChannelKind::kClient, address, security);
  // A first connection may fail on a busy machine: calls made too soon would
  // fail with it.
  channel->WaitForConnected(std::chrono::system_clock::now() +
                            std::chrono::seconds(1));
  return std::make_unique<GrpcJobClient>(std::move(channel), address, signals);
}

std::unique_ptr<JobClient> JobClient::FromChannel(
    std::shared_ptr<grpc::Channel> channel, const std::string& name) {
  return std::make_unique<GrpcJobClient>(std::move(channel), name, nullptr);
}

}  // namespace sluice
