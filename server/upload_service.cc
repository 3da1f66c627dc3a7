#include "server/upload_service.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "common/threads/retry_delay.h"
#include "proto/grpc_status.h"
#include "proto/tsan_handoff.h"
#include "server/shutting_down.h"

namespace sluice {
namespace {

constexpr int kUploadThreads = 4;
constexpr int kFileThreads = 2;
// When an upload that finds no place is to come again.
constexpr absl::Duration kFullDelay = absl::Seconds(10);

// Bytes of the longest line that `data` leaves unfinished or goes on with, if
// `begun` bytes of the first are there.
size_t LongestPart(absl::string_view data, size_t begun) {
  const size_t first = data.find('\n');
  if (first == absl::string_view::npos) return begun + data.size();
  return std::max(begun + first, data.size() - data.rfind('\n') - 1);
}

}  // namespace

// One upload. Keeps itself alive until gRPC is done with it. All work that may
// wait is done on the strand, one task after another.
class UploadService::Stream
    : public grpc::ServerReadReactor<v1::CreateJobRequest> {
 public:
  Stream(UploadService* service, std::string tenant, v1::Job* response)
      : service_(service),
        tenant_(std::move(tenant)),
        response_(response),
        strand_(&service->executor_) {
    HandOff(this);
  }

  // Must be called first.
  void Keep(const std::shared_ptr<Stream>& self) { self_ = self; }
  // Take or end the stream: one of these is called, once.
  void Begin() { Read(); }
  void Refuse(const absl::Status& why) { End(why); }

  // The methods below are for any thread; `self` is this.

  // Ends the stream on its strand, whose present work stops soon.
  void EndSoon(const std::shared_ptr<Stream>& self,
               const absl::Status& status) {
    stopped_.store(true);
    strand_.Run([self, status] { self->End(status); });
  }

  // Ends the stream if nothing came for too long, or, if others wait for a long
  // line's turn, if its own takes too long.
  void EndIfIdle(const std::shared_ptr<Stream>& self, bool others_wait) {
    if (Idle(others_wait).ok() || asked_.exchange(true)) return;
    strand_.Run([self, others_wait] {
      self->asked_.store(false);
      const absl::Status idle = self->Idle(others_wait);
      if (!idle.ok()) self->End(idle);  // else a message came just now
    });
  }

  // Called when a long line may come.
  void EnterLongLine(const std::shared_ptr<Stream>& self) {
    strand_.Run([self] {
      self->BeginLongLine();
      self->waits_ = false;
      if (self->ended()) return self->LeaveLongLine();
      self->Go(self->TakeData());
    });
  }

  void OnReadDone(bool ok) override {
    const Reaction reaction(this);
    {
      MutexLock lock(&mu_);
      reading_since_.reset();
    }
    strand_.Run([self = self_, ok] {
      if (self->ended()) return;
      if (ok) {
        self->Go(self->Take());
      } else {
        self->End(absl::CancelledError(
            "the upload ended without `commit`: no job was made of it"));
      }
    });
  }

  void OnCancel() override {
    const Reaction reaction(this);
    EndSoon(self_, absl::CancelledError("the client left"));
  }

  void OnDone() override {
    TakeOver(this);
    const std::shared_ptr<Stream> self = std::move(self_);
    service_->Remove(self);
    HandOff(service_);
  }

 private:
  // The results of a message: the next one is read; or not, as other work goes
  // on; or the stream ends.
  struct ReadOn {};
  struct Wait {};
  using Next = std::variant<ReadOn, Wait, absl::Status>;

  void Read() {
    MutexLock lock(&mu_);  // keeps the stream from finishing meanwhile
    if (ended_) return;
    reading_since_ = Clock::Real()->Monotonic();
    HandOff(this);
    StartRead(&message_);
  }

  void Go(const Next& next) {
    if (std::holds_alternative<ReadOn>(next)) Read();
    if (const auto* end = std::get_if<absl::Status>(&next)) End(*end);
  }

  bool ended() {
    MutexLock lock(&mu_);
    return ended_;
  }
  // Returns OK, or the reason why the stream ends.
  absl::Status Idle(bool others_wait) {
    const Options& options = service_->options_;
    const absl::Duration now = Clock::Real()->Monotonic();
    const auto ended = [](absl::string_view what, absl::Duration limit) {
      return absl::AbortedError(
          absl::StrCat(what, " for ", absl::FormatDuration(limit),
                       ": the upload was ended, and no job was made of it; "
                       "send it again"));
    };
    MutexLock lock(&mu_);
    if (reading_since_ && now - *reading_since_ >= options.idle_timeout) {
      return ended("nothing came", options.idle_timeout);
    }
    if (others_wait && long_line_since_ &&
        now - *long_line_since_ >= options.long_line_timeout) {
      return ended("others waited while one line was coming",
                   options.long_line_timeout);
    }
    return absl::OkStatus();
  }

  Next Take() {
    if (!begun_) {
      begun_ = true;
      if (!message_.has_spec()) {
        return absl::InvalidArgumentError("the first message must hold `spec`");
      }
      spec_ = message_.spec();
      return BeginUpload();
    }
    switch (message_.kind_case()) {
      case v1::CreateJobRequest::kData:
        return TakeData();
      case v1::CreateJobRequest::kCommit:
        return Commit();
      default:
        return absl::InvalidArgumentError(
            "after `spec`, messages must hold `data`, the last one `commit`");
    }
  }

  Next BeginUpload() {
    if (!spec_.input_path().empty()) return ReadOn();
    // The stream outlives its upload.
    auto upload = service_->jobs_->BeginUpload(
        spec_, [this] { return stopped_.load(); }, tenant_);
    if (!upload.ok()) return upload.status();
    upload_ = *std::move(upload);
    return ReadOn();
  }

  Next TakeData() {
    if (upload_ == nullptr) {
      return absl::InvalidArgumentError(
          "spec.input_path is set, so no `data` may come");
    }
    const bool long_line =
        LongestPart(message_.data(), upload_->unfinished_bytes()) >
        service_->options_.long_line_bytes;
    if (long_line && !in_long_line_) {
      if (!service_->EnterLongLine(self_)) {
        waits_ = true;
        return Wait();
      }
      BeginLongLine();
    }
    absl::Status status;
    {
      // The data is freed before the next message comes.
      const std::unique_ptr<std::string> data(message_.release_data());
      status = upload_->Append(*data);
    }
    if (upload_->unfinished_bytes() <= service_->options_.long_line_bytes) {
      LeaveLongLine();
    }
    if (!status.ok()) return status;
    return ReadOn();
  }

  Next Commit() {
    if (!message_.commit()) {
      return absl::InvalidArgumentError("`commit` must be true");
    }
    if (upload_ != nullptr) return Answer(upload_->Commit());
    service_->files_.Run([self = self_] {
      const auto stopped = [&self] { return self->stopped_.load(); };
      if (stopped()) return;
      auto job = self->service_->jobs_->CreateFromPath(self->spec_, stopped,
                                                       self->tenant_);
      self->strand_.Run([self, job = std::move(job)] {
        if (!self->ended()) self->Go(self->Answer(job));
      });
    });
    return Wait();
  }

  Next Answer(absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return job.status();
    *response_ = *std::move(job);
    return absl::OkStatus();
  }

  void BeginLongLine() {
    in_long_line_ = true;
    MutexLock lock(&mu_);
    long_line_since_ = Clock::Real()->Monotonic();
  }

  void LeaveLongLine() {
    if (!std::exchange(in_long_line_, false)) return;
    {
      MutexLock lock(&mu_);
      long_line_since_.reset();
    }
    service_->LeaveLongLine();
  }

  void End(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (ended_) return;
      ended_ = true;
    }
    // The upload ends before the client is told, which may reuse the
    // request_id.
    upload_.reset();
    LeaveLongLine();
    if (waits_) service_->Forget(this);
    HandOff(this);
    Finish(ToGrpcStatus(status));
  }

  UploadService* const service_;
  const std::string tenant_;
  v1::Job* const response_;
  std::shared_ptr<Stream> self_;  // from the start to OnDone
  Strand strand_;

  // These are used on the strand.
  bool begun_ = false;
  v1::JobSpec spec_;
  std::unique_ptr<JobManager::Upload> upload_;  // null for a path
  bool in_long_line_ = false;
  bool waits_ = false;            // for a long line's turn
  v1::CreateJobRequest message_;  // owned by gRPC while it reads

  std::atomic<bool> stopped_{false};  // the client does not wait any more
  std::atomic<bool> asked_{false};    // it was asked whether it is idle
  Mutex mu_;
  std::optional<absl::Duration> reading_since_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Duration> long_line_since_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

UploadService::UploadService(JobManager* jobs, const Options& options,
                             CallGuard* guard)
    : jobs_(jobs),
      guard_(guard),
      options_(options),
      executor_("uploads", kUploadThreads),
      files_("input-files", kFileThreads) {
  HandOff(this);
}

UploadService::~UploadService() { TakeOver(this); }

grpc::ServerReadReactor<v1::CreateJobRequest>* UploadService::Create(
    grpc::CallbackServerContext* context, v1::Job* response) {
  TakeOver(this);
  const absl::StatusOr<Caller> caller =
      CheckCall(guard_, *context, "sluice.v1.JobService/CreateJob");
  auto stream = std::make_shared<Stream>(this, caller.value_or(Caller{}).tenant,
                                         response);
  Stream* const reactor = stream.get();
  stream->Keep(stream);
  if (!caller.ok()) {
    stream->Refuse(caller.status());
    return reactor;
  }
  bool full = false;
  {
    MutexLock lock(&mu_);
    full = streams_.size() >= options_.max_uploads;
    if (!full) streams_.insert(stream);
  }
  if (full) {
    stream->Refuse(WithRetryDelay(
        ResourceExhausted(options_.max_uploads,
                          " uploads are open, as many as may be; try again in ",
                          absl::FormatDuration(kFullDelay)),
        kFullDelay));
  } else if (stopping_.load()) {
    stream->Refuse(ShuttingDown());
  } else {
    stream->Begin();
  }
  return reactor;
}

bool UploadService::EnterLongLine(const std::shared_ptr<Stream>& stream) {
  MutexLock lock(&mu_);
  if (long_lines_ < options_.max_long_lines) {
    ++long_lines_;
    return true;
  }
  waiting_.push_back(stream);
  return false;
}

void UploadService::LeaveLongLine() {
  std::shared_ptr<Stream> next;
  {
    MutexLock lock(&mu_);
    if (waiting_.empty()) {
      --long_lines_;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  next->EnterLongLine(next);
}

void UploadService::Forget(const Stream* stream) {
  MutexLock lock(&mu_);
  const auto it =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [&](const auto& s) { return s.get() == stream; });
  if (it != waiting_.end()) waiting_.erase(it);
}

void UploadService::Remove(const std::shared_ptr<Stream>& stream) {
  MutexLock lock(&mu_);
  streams_.erase(stream);
}

void UploadService::EndIdle() {
  std::vector<std::shared_ptr<Stream>> streams;
  bool some_wait = false;
  {
    MutexLock lock(&mu_);
    streams.assign(streams_.begin(), streams_.end());
    some_wait = !waiting_.empty();
  }
  for (const std::shared_ptr<Stream>& stream : streams) {
    stream->EndIfIdle(stream, some_wait);
  }
}

void UploadService::BeginShutdown() {
  stopping_.store(true);
  std::vector<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mu_);
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const std::shared_ptr<Stream>& stream : streams) {
    stream->EndSoon(stream, ShuttingDown());
  }
}

}  // namespace sluice
