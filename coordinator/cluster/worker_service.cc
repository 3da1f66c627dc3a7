#include "coordinator/cluster/worker_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/status_macros.h"
#include "common/threads/executor.h"
#include "common/threads/mutex.h"
#include "proto/call_guard.h"
#include "proto/callback_queue.h"
#include "proto/grpc_status.h"
#include "proto/tsan_handoff.h"
#include "sluice/v1/pipeline.grpc.pb.h"

namespace sluice {
namespace {

// The threads wait only for room in the sink, which all workers share.
constexpr int kThreads = 2;

class WorkerAttachServiceImpl;

// One worker's stream. Keeps itself alive until gRPC is done with it. Pushing
// events, which may wait, is done on the strand.
class Session : public WorkerStream,
                public grpc::ServerBidiReactor<v1::WorkerMessage,
                                               v1::CoordinatorMessage> {
 public:
  Session(WorkerAttachServiceImpl* service, Executor* executor,
          WorkerEventSink* sink, WorkerId id,
          grpc::CallbackServerContext* context, size_t outgoing_messages)
      : service_(service),
        sink_(sink),
        id_(id),
        outgoing_messages_(outgoing_messages),
        peer_(context->peer()),
        strand_(executor),
        context_(context) {
    HandOff(this);
  }

  // Takes the stream: one of Begin and Refuse is called, once.
  void Begin(const std::shared_ptr<Session>& self) {
    {
      MutexLock lock(&mu_);
      self_ = self;
    }
    strand_.Run([self] {
      self->opened_ = self->sink_->Push(
          {self->id_, WorkerOpened{self, PlaceOf(self->peer_)}});
      self->ReadOn(self->opened_);
    });
  }
  void Refuse(const std::shared_ptr<Session>& self, const absl::Status& why) {
    {
      MutexLock lock(&mu_);
      self_ = self;
    }
    Break(why);
  }

  void Accept() override {
    {
      MutexLock lock(&mu_);
      if (reason_.has_value() || accepted_) return;
      accepted_ = true;
      ReadLocked();
    }
    WriteNext();
  }

  bool Send(v1::CoordinatorMessage message) override {
    {
      MutexLock lock(&mu_);
      if (reason_.has_value() || outgoing_.size() >= outgoing_messages_) {
        return false;
      }
      outgoing_.push_back(std::move(message));
    }
    WriteNext();
    return true;
  }

  void Break(const absl::Status& reason) override {
    {
      MutexLock lock(&mu_);
      if (reason_.has_value()) return;
      reason_ = reason;
      if (writing_) {
        // A write may hang if a worker does not read; OnWriteDone continues.
        if (context_ != nullptr) {
          broke_ = context_->IsCancelled();
          context_->TryCancel();
        }
        return;
      }
    }
    HandOff(this);
    Finish(ToGrpcStatus(reason));
  }

  void OnReadDone(bool ok) override {
    const Reaction reaction(this);
    std::shared_ptr<Session> self = Self();
    self->strand_.Run([self, ok] { self->Take(ok); });
  }

  void OnWriteDone(bool ok) override {
    const Reaction reaction(this);
    std::optional<absl::Status> end;
    {
      MutexLock lock(&mu_);
      writing_ = false;
      if (!ok && !reason_.has_value()) {
        reason_ = absl::UnavailableError("the stream broke");
      }
      end = reason_;
    }
    if (end.has_value()) {
      Finish(ToGrpcStatus(*end));
    } else {
      WriteNext();
    }
  }

  void OnDone() override;

 private:
  std::shared_ptr<Session> Self() {
    MutexLock lock(&mu_);
    return self_;
  }

  // Takes the message that OnReadDone has read. Runs on the strand.
  void Take(bool ok) {
    if (!ok) {
      if (registered_) {
        // The worker half-closed or is gone: OnDone tells them apart.
        Break(absl::CancelledError("the worker left"));
      } else {
        Break(absl::UnavailableError("the stream ended before a Register"));
      }
      return;
    }
    if (!registered_ && !in_.has_register_()) {
      Break(absl::InvalidArgumentError(
          "the first message of a worker must be a Register"));
      return;
    }
    const bool first = !std::exchange(registered_, true);
    const bool pushed = sink_->Push({id_, std::move(in_)});
    // Accept reads on after the first message. The next may be on its way.
    if (!first || !pushed) ReadOn(pushed);
  }

  void ReadOn(bool sink_is_open) {
    if (!sink_is_open) {
      Break(absl::UnavailableError("the coordinator shuts down"));
      return;
    }
    MutexLock lock(&mu_);
    if (!reason_.has_value()) ReadLocked();
  }

  // Holding the lock keeps the stream from finishing meanwhile.
  void ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    HandOff(this);
    StartRead(&in_);
  }

  void WriteNext() {
    {
      MutexLock lock(&mu_);
      if (!accepted_ || writing_ || reason_.has_value() || outgoing_.empty()) {
        return;
      }
      writing_ = true;
      out_ = std::move(outgoing_.front());
      outgoing_.pop_front();
    }
    HandOff(this);
    StartWrite(&out_);
  }

  WorkerAttachServiceImpl* const service_;
  WorkerEventSink* const sink_;
  const WorkerId id_;
  const size_t outgoing_messages_;
  const std::string peer_;  // as gRPC writes it
  Strand strand_;
  bool opened_ = false;      // used on the strand: the sink knows of it
  bool registered_ = false;  // used on the strand
  v1::WorkerMessage in_;     // owned by gRPC between StartRead and OnReadDone
  v1::CoordinatorMessage out_;  // owned by gRPC while writing_

  Mutex mu_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Session> self_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::CoordinatorMessage> outgoing_ ABSL_GUARDED_BY(mu_);
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  // Whether the stream had broken before this end cancelled it, if it did.
  std::optional<bool> broke_ ABSL_GUARDED_BY(mu_);
  // The reason of the end; once set, nothing is read or written any more.
  std::optional<absl::Status> reason_ ABSL_GUARDED_BY(mu_);
};

class WorkerAttachServiceImpl : public WorkerAttachService,
                                private v1::WorkerService::CallbackService {
 public:
  WorkerAttachServiceImpl(WorkerEventSink* sink, const Options& options)
      : sink_(sink), options_(options), executor_("worker-events", kThreads) {
    HandOff(this);
  }
  ~WorkerAttachServiceImpl() override { TakeOver(this); }

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

  // Called by sessions that have ended.
  void Remove(const std::shared_ptr<Session>& session) {
    MutexLock lock(&mu_);
    sessions_.erase(session);
  }

 private:
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override {
    TakeOver(this);
    auto session = std::make_shared<Session>(
        this, &executor_, sink_, WorkerId(next_id_.fetch_add(1)), context,
        options_.outgoing_messages);
    Session* const reactor = session.get();
    absl::Status status =
        CheckCall(options_.guard, *context, "sluice.v1.WorkerService/Attach")
            .status();
    if (status.ok()) status = Add(session);
    if (!status.ok()) {
      session->Refuse(session, status);
    } else {
      session->Begin(session);
    }
    return reactor;
  }

  absl::Status Add(const std::shared_ptr<Session>& session) {
    MutexLock lock(&mu_);
    if (shut_down_) {
      return absl::UnavailableError("the coordinator shuts down");
    }
    if (sessions_.size() >= options_.max_workers) {
      return ResourceExhausted("there are ", sessions_.size(),
                               " workers attached, as many as may be");
    }
    sessions_.insert(session);
    return absl::OkStatus();
  }

  WorkerEventSink* const sink_;
  const Options options_;
  std::atomic<int64_t> next_id_{1};
  Mutex mu_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
  Executor executor_;  // destroyed first: its tasks end sessions
};

void Session::OnDone() {
  TakeOver(this);
  std::shared_ptr<Session> self;
  absl::Status reason;
  {
    MutexLock lock(&mu_);
    self = std::move(self_);
    reason = reason_.value_or(absl::UnavailableError("the stream broke"));
    if (absl::IsCancelled(reason) && broke_.value_or(context_->IsCancelled())) {
      reason = absl::UnavailableError("the worker's stream broke");
    }
    reason_ = reason;
    context_ = nullptr;
  }
  service_->Remove(self);
  HandOff(service_);  // to its destruction after the server's shutdown
  // Runs after the worker's messages, which may still wait for room.
  self->strand_.Run([self, reason] {
    if (self->opened_) self->sink_->Push({self->id_, WorkerClosed{reason}});
  });
}

}  // namespace

std::unique_ptr<WorkerAttachService> WorkerAttachService::Create(
    WorkerEventSink* sink, const Options& options) {
  KeepCallbackQueue();
  return std::make_unique<WorkerAttachServiceImpl>(sink, options);
}

}  // namespace sluice
