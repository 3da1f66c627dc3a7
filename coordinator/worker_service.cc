#include "coordinator/worker_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/bounded_queue.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "proto/grpc_status.h"
#include "sluice/v1/pipeline.grpc.pb.h"

namespace sluice {
namespace {

using AttachStream =
    grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

class Session : public WorkerStream {
 public:
  Session(grpc::ServerContext* context, size_t outgoing_messages)
      : outgoing_(outgoing_messages), context_(context) {}

  void Accept() override {
    MutexLock lock(&mu_);
    accepted_ = true;
    changed_.NotifyAll();
  }

  bool Send(v1::CoordinatorMessage message) override {
    return outgoing_.TryPush(message);
  }

  void Break(const absl::Status& reason) override {
    MutexLock lock(&mu_);
    if (!reason_.ok()) return;
    reason_ = reason;  // before the queue ends, so that it is the first one
    outgoing_.Close();
    changed_.NotifyAll();
    // The handler may hang in a read or a write.
    if (context_ != nullptr && !awaiting_verdict_) context_->TryCancel();
  }

  // From now on until AwaitVerdict returns, Break doesn't cancel the call, so
  // that the handler can answer with the reason.
  void BeginVerdict() {
    MutexLock lock(&mu_);
    awaiting_verdict_ = true;
  }

  // Waits for Accept or Break.
  absl::Status AwaitVerdict() {
    MutexLock lock(&mu_);
    while (!accepted_ && reason_.ok()) changed_.Wait(&mu_);
    awaiting_verdict_ = false;
    return reason_;
  }

  std::optional<v1::CoordinatorMessage> NextOutgoing() {
    return outgoing_.Pop();
  }

  absl::Status reason() {
    MutexLock lock(&mu_);
    return reason_;
  }

  bool CallCancelled() {
    MutexLock lock(&mu_);
    return context_ == nullptr || context_->IsCancelled();
  }

  // The call ends: its context may not be touched any more.
  void Detach() {
    MutexLock lock(&mu_);
    context_ = nullptr;
  }

 private:
  BoundedQueue<v1::CoordinatorMessage> outgoing_;
  Mutex mu_;
  CondVar changed_;
  grpc::ServerContext* context_ ABSL_GUARDED_BY(mu_);
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;
  bool awaiting_verdict_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
};

class WorkerAttachServiceImpl : public WorkerAttachService,
                                public v1::WorkerService::Service {
 public:
  WorkerAttachServiceImpl(WorkerEventSink* sink, const Options& options)
      : sink_(sink), options_(options) {}

  grpc::Service* service() override { return this; }

  void Shutdown() override {
    absl::flat_hash_set<std::shared_ptr<Session>> sessions;
    {
      MutexLock lock(&mu_);
      shut_down_ = true;
      sessions = sessions_;
    }
    for (const std::shared_ptr<Session>& session : sessions) {
      session->Break(absl::UnavailableError("the coordinator shuts down"));
    }
  }

  grpc::Status Attach(grpc::ServerContext* context,
                      AttachStream* stream) override {
    auto session =
        std::make_shared<Session>(context, options_.outgoing_messages);
    if (absl::Status status = Add(session); !status.ok()) {
      return ToGrpcStatus(status);
    }
    const absl::Status status =
        Serve(WorkerId(next_id_.fetch_add(1)), session, stream);
    MutexLock lock(&mu_);
    sessions_.erase(session);
    return ToGrpcStatus(status);
  }

 private:
  absl::Status Add(const std::shared_ptr<Session>& session) {
    MutexLock lock(&mu_);
    if (shut_down_) {
      return absl::UnavailableError("the coordinator shuts down");
    }
    if (sessions_.size() >= options_.max_workers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", sessions_.size(),
                       " workers attached, as many as may be"));
    }
    sessions_.insert(session);
    return absl::OkStatus();
  }

  absl::Status Serve(WorkerId id, const std::shared_ptr<Session>& session,
                     AttachStream* stream) {
    if (!sink_->Push({id, WorkerOpened{session}})) {
      return absl::UnavailableError("the coordinator shuts down");
    }
    absl::Status status = Register(id, session.get(), stream);
    if (status.ok()) {
      Exchange(id, session.get(), stream);
      status = session->reason();
    }
    // What returns here is the worker's answer, which a cancellation would
    // hide.
    session->Detach();
    session->Break(status);
    sink_->Push({id, WorkerClosed{status}});
    return status;
  }

  absl::Status Register(WorkerId id, Session* session, AttachStream* stream) {
    v1::WorkerMessage message;
    if (!stream->Read(&message)) {
      const absl::Status reason = session->reason();
      return reason.ok()
                 ? absl::UnavailableError("the stream ended before a Register")
                 : reason;
    }
    if (!message.has_register_()) {
      return absl::InvalidArgumentError(
          "the first message of a worker must be a Register");
    }
    session->BeginVerdict();
    if (!sink_->Push({id, std::move(message)})) {
      return absl::UnavailableError("the coordinator shuts down");
    }
    return session->AwaitVerdict();
  }

  // Reads and writes until the stream ends.
  void Exchange(WorkerId id, Session* session, AttachStream* stream) {
    // Both threads would want to send it with their first operation.
    stream->SendInitialMetadata();
    Thread writer("worker-out", [session, stream] {
      while (std::optional<v1::CoordinatorMessage> message =
                 session->NextOutgoing()) {
        if (!stream->Write(*message)) break;
      }
      // Whoever closed the queue gave a reason before; this is for a failed
      // write.
      session->Break(absl::UnavailableError("the stream broke"));
    });
    v1::WorkerMessage message;
    while (stream->Read(&message)) {
      if (!sink_->Push({id, std::move(message)})) break;
      message = v1::WorkerMessage();
    }
    // A worker that shuts down half-closes; one that dies does not get to it.
    session->Break(session->CallCancelled()
                       ? absl::UnavailableError("the worker's stream broke")
                       : absl::CancelledError("the worker left"));
    writer.Join();
  }

  WorkerEventSink* const sink_;
  const Options options_;
  std::atomic<int64_t> next_id_{1};
  Mutex mu_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<WorkerAttachService> WorkerAttachService::Create(
    WorkerEventSink* sink, const Options& options) {
  return std::make_unique<WorkerAttachServiceImpl>(sink, options);
}

}  // namespace sluice
