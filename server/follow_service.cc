#include "server/follow_service.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/status_macros.h"
#include "coordinator/jobs/job_state.h"
#include "proto/grpc_status.h"
#include "proto/tsan_handoff.h"
#include "server/shutting_down.h"

namespace sluice {
namespace {

// The threads read the store; one of them may wait for the disk.
constexpr int kStreamThreads = 2;
// The limit of result streams, each of which may hold a chunk.
constexpr size_t kMaxResults = 512;
// Result lines in one message; many streams may each hold one.
constexpr size_t kChunkBytes = 256 << 10;

constexpr const char* kKindNames[] = {"WatchJob", "StreamResults"};

}  // namespace

// The service's interface to a stream. All work of a stream runs on its strand,
// one task after another.
class FollowService::Stream {
 public:
  Stream(FollowService* service, std::string job, Kind kind)
      : service_(service),
        job_(std::move(job)),
        kind_(kind),
        strand_(service->executor()) {}
  virtual ~Stream() = default;

  const std::string& job() const { return job_; }
  Kind kind() const { return kind_; }

  // Called when there may be something to send. `self` is this.
  void Poke(const std::shared_ptr<Stream>& self) {
    if (poked_.exchange(true)) return;  // it has not looked yet
    strand_.Run([self] {
      self->poked_.store(false);
      self->changed_ = true;
      self->Go();
    });
  }

 protected:
  // Sends or ends, if it is time to.
  virtual void Go() = 0;

  FollowService* const service_;
  const std::string job_;
  const Kind kind_;
  Strand strand_;
  bool changed_ = false;  // since the last look; used on the strand
  std::atomic<bool> poked_{false};
};

namespace {

// A stream of messages of one kind. Keeps itself alive until gRPC is done with
// it.
template <class Message>
class Follower : public FollowService::Stream,
                 public grpc::ServerWriteReactor<Message> {
 public:
  Follower(FollowService* service, std::string job, FollowService::Kind kind)
      : Stream(service, std::move(job), kind) {}

  // Must be called first.
  void Keep(const std::shared_ptr<Follower>& self) {
    self_ = self;
    HandOff(this);
  }
  // Ends the stream instead of the first Poke.
  void Refuse(const absl::Status& why) { End(why); }

  void OnWriteDone(bool ok) override {
    const Reaction reaction(this);
    this->strand_.Run([self = self_, ok] {
      self->writing_ = false;
      self->gone_ = self->gone_ || !ok;
      self->Go();
    });
  }
  void OnCancel() override {
    const Reaction reaction(this);
    this->strand_.Run([self = self_] {
      self->gone_ = true;
      self->Go();
    });
  }
  void OnDone() override {
    TakeOver(this);
    const std::shared_ptr<Follower> self = std::move(self_);
    this->service_->Remove(this);
    HandOff(this->service_);
  }

 protected:
  // The end of a stream. Next returns it, a message, or nothing for now.
  struct Ended {
    absl::Status status;
  };
  using Next = std::variant<std::monostate, Message, Ended>;
  virtual Next Look() = 0;

 private:
  void Go() override {
    if (ended_ || writing_) return;
    if (gone_) return End(absl::CancelledError("the client left"));
    if (this->service_->stopping()) return End(ShuttingDown());
    Next next = Look();
    if (auto* end = std::get_if<Ended>(&next)) return End(end->status);
    if (auto* message = std::get_if<Message>(&next)) {
      message_ = std::move(*message);
      writing_ = true;
      HandOff(this);
      this->StartWrite(&message_);
    }
  }

  void End(const absl::Status& status) {
    ended_ = true;
    HandOff(this);
    this->Finish(ToGrpcStatus(status));
  }

  std::shared_ptr<Follower> self_;  // from Keep to OnDone
  // These are used on the strand.
  Message message_;  // owned by gRPC while writing_
  bool writing_ = false;
  bool gone_ = false;  // the client is gone
  bool ended_ = false;
};

// Sends the job's state at once, then whenever it has changed, up to its last.
class Watcher : public Follower<v1::Job> {
 public:
  Watcher(FollowService* service, const std::string& id, Caller caller)
      : Follower(service, id, FollowService::kWatch),
        caller_(std::move(caller)) {}

 private:
  Next Look() override {
    if (last_) return Ended{};
    if (!std::exchange(changed_, false)) return std::monostate();
    absl::StatusOr<v1::Job> job = service_->jobs()->GetJob(job_, caller_);
    if (!job.ok()) return Ended{job.status()};
    last_ = IsTerminal(job->state());
    return *std::move(job);
  }

  const Caller caller_;
  bool last_ = false;  // the last state was sent
};

// Sends results in order. A line larger than a chunk is sent alone, in pieces.
class ResultReader : public Follower<v1::ResultChunk> {
 public:
  ResultReader(FollowService* service, const v1::StreamResultsRequest& request,
               Caller caller)
      : Follower(service, request.id(), FollowService::kResults),
        caller_(std::move(caller)),
        follow_(request.follow()),
        offset_(request.offset()) {}

 private:
  Next Look() override {
    if (at_ < whole_.line().size()) return NextPiece();
    if (offset_ < 0) {
      return Ended{absl::InvalidArgumentError("offset must not be negative")};
    }
    // The state is read before the results, so that nothing that comes in
    // between is missed.
    absl::StatusOr<v1::Job> job = service_->jobs()->GetJob(job_, caller_);
    if (!job.ok()) return Ended{job.status()};
    absl::StatusOr<v1::ResultChunk> chunk =
        service_->jobs()->ReadResults(job_, offset_, kChunkBytes);
    if (!chunk.ok()) return Ended{chunk.status()};
    if (chunk->results().empty()) {
      if (!follow_ || IsTerminal(job->state())) return Ended{};
      return std::monostate();
    }
    if (chunk->results_size() == 1 &&
        chunk->results(0).line().size() > kChunkBytes) {
      whole_ = std::move(*chunk->mutable_results(0));
      at_ = 0;
      return NextPiece();
    }
    offset_ = chunk->next_offset();
    return *std::move(chunk);
  }

  v1::ResultChunk NextPiece() {
    v1::ResultChunk piece;
    v1::Result* result = piece.add_results();
    result->set_index(whole_.index());
    result->set_is_error(whole_.is_error());
    result->set_line(whole_.line().substr(at_, kChunkBytes));
    at_ += result->line().size();
    if (at_ < whole_.line().size()) {
      result->set_more(true);
    } else {
      ++offset_;
      whole_ = v1::Result();
      at_ = 0;
    }
    piece.set_next_offset(offset_);
    return piece;
  }

  const Caller caller_;
  const bool follow_;
  int64_t offset_;
  v1::Result whole_;  // a line that is sent in pieces
  size_t at_ = 0;     // bytes of it sent
};

}  // namespace

FollowService::FollowService(JobManager* jobs, const Options& options,
                             CallGuard* guard)
    : jobs_(jobs),
      options_(options),
      guard_(guard),
      executor_("job-streams", kStreamThreads) {
  HandOff(this);
}

FollowService::~FollowService() { TakeOver(this); }

template <class F>
F* FollowService::Add(std::shared_ptr<F> follower,
                      const absl::Status& allowed) {
  TakeOver(this);
  const Kind kind = follower->kind();
  const size_t max_streams =
      kind == kWatch ? options_.max_watches : kMaxResults;
  follower->Keep(follower);
  if (!allowed.ok()) {
    follower->Refuse(allowed);
    return follower.get();
  }
  bool full = false;
  {
    MutexLock lock(&mu_);
    full = open_[kind] >= max_streams;
    if (!full) {
      ++open_[kind];
      streams_.emplace(follower->job(), follower);
    }
  }
  F* const reactor = follower.get();
  if (full) {
    follower->Refuse(
        ResourceExhausted(max_streams, " streams of ", kKindNames[kind],
                          " are open, as many as may be; try again later"));
  } else {
    follower->Poke(follower);
  }
  return reactor;
}

grpc::ServerWriteReactor<v1::Job>* FollowService::Watch(
    grpc::CallbackServerContext* context, const std::string& id) {
  const absl::StatusOr<Caller> caller =
      CheckCall(guard_, *context, "sluice.v1.JobService/WatchJob", id);
  return Add(std::make_shared<Watcher>(this, id, caller.value_or(Caller{})),
             caller.status());
}

grpc::ServerWriteReactor<v1::ResultChunk>* FollowService::Results(
    grpc::CallbackServerContext* context,
    const v1::StreamResultsRequest& request) {
  const absl::StatusOr<Caller> caller = CheckCall(
      guard_, *context, "sluice.v1.JobService/StreamResults", request.id());
  return Add(
      std::make_shared<ResultReader>(this, request, caller.value_or(Caller{})),
      caller.status());
}

void FollowService::Remove(const Stream* stream) {
  std::shared_ptr<Stream> removed;
  MutexLock lock(&mu_);
  const auto [begin, end] = streams_.equal_range(stream->job());
  const auto it = std::find_if(
      begin, end, [&](const auto& e) { return e.second.get() == stream; });
  if (it == end) return;  // it was refused
  --open_[stream->kind()];
  removed = std::move(it->second);
  streams_.erase(it);
}

void FollowService::Tell(const std::vector<std::string>& jobs) {
  for (const std::string& job : jobs) {
    std::vector<std::shared_ptr<Stream>> streams;
    {
      MutexLock lock(&mu_);
      const auto [begin, end] = streams_.equal_range(job);
      for (auto it = begin; it != end; ++it) streams.push_back(it->second);
    }
    for (const std::shared_ptr<Stream>& stream : streams) stream->Poke(stream);
  }
}

void FollowService::BeginShutdown() {
  stopping_.store(true);
  std::vector<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mu_);
    for (const auto& [job, stream] : streams_) streams.push_back(stream);
  }
  for (const std::shared_ptr<Stream>& stream : streams) stream->Poke(stream);
}

}  // namespace sluice
