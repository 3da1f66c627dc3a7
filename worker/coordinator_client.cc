#include "worker/coordinator_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "common/host/logging.h"
#include "common/limits.h"
#include "common/sampling_params.h"
#include "common/text/text.h"
#include "common/threads/bounded_queue.h"
#include "common/threads/deadline.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "proto/convert.h"
#include "proto/grpc_status.h"
#include "proto/wire_limits.h"
#include "sluice/v1/pipeline.grpc.pb.h"
#include "worker/probe/link_survey.h"
#include "worker/stage/assigned_stage.h"
#include "worker/stage/span_log.h"
#include "worker/stage/stage_reporter.h"
#include "worker/stage/stage_runner.h"

namespace sluice {
namespace {

// The reason why a link could not be used, cut to a message's limit.
std::string LinkError(const absl::Status& status) {
  return std::string(
      ClipUtf8(EscapeInvalidUtf8(status.message()), kMaxLinkErrorBytes));
}

constexpr int kMaxBackoff = 16;  // times reconnect_delay
// Messages that may wait for the coordinator to read them: a few are normal,
// and the parts of the largest result fit.
constexpr size_t kMaxOutbox = 1 << 14;
static_assert(2 * kMaxBlockTokens * (1 + 2 * kMaxTopLogprobs) <
              kMaxOutbox * kMaxResultValues);
static_assert(2 * int64_t{kMaxGbs} * kMaxMicroBatches *
                  (4 + 2 * kMaxBeamCandidates) <
              kMaxOutbox * kMaxResultValues);
// The coordinator has this time to acknowledge that the worker leaves.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);
// Registering waits this long for hashes, which small files have at once.
constexpr absl::Duration kContentTime = absl::Milliseconds(100);
// The same error is logged again after this many attempts.
constexpr int kRepeatLog = 30;

template <typename Message>
std::vector<LinkSurvey::Peer> PeersOf(const Message& message) {
  std::vector<LinkSurvey::Peer> peers;
  for (const auto& peer : message.peers()) {
    peers.push_back({peer.name(), peer.link_address(),
                     peer.link() == v1::LINK_TRANSPORT_TCP});
  }
  return peers;
}

// One Attach stream.
class Session {
 public:
  // `context` must live until End().
  explicit Session(grpc::ClientContext* context)
      : outbox_(kMaxOutbox), context_(context) {}

  void LinksMeasured(const std::vector<LinkSurvey::Measured>& measured) {
    v1::WorkerMessage message;
    auto* out = message.mutable_links_measured();
    for (const LinkSurvey::Measured& one : measured) {
      auto* link = out->add_links();
      link->set_peer(one.peer);
      if (one.link.ok()) {
        link->set_bytes_per_second(one.link->bytes_per_second);
        link->set_latency_seconds(one.link->latency_seconds);
      } else {
        link->set_error(LinkError(one.link.status()));
      }
    }
    Send(std::move(message));
  }

  void LinksReached(int64_t epoch, const std::vector<LinkSurvey::Peer>& peers,
                    const std::vector<absl::Status>& reached) {
    v1::WorkerMessage message;
    auto* out = message.mutable_links_reached();
    out->set_epoch(epoch);
    for (size_t i = 0; i < peers.size(); ++i) {
      auto* link = out->add_links();
      link->set_peer(peers[i].name);
      if (!reached[i].ok()) {
        link->set_error(LinkError(reached[i]));
      }
    }
    Send(std::move(message));
  }

  // Cancels the stream if the coordinator does not read its messages, as such a
  // coordinator is of no use.
  void Send(v1::WorkerMessage message) {
    if (!outbox_.TryPush(message) && !outbox_.closed()) Cancel();
  }

  void Cancel() {
    MutexLock lock(&mu_);
    if (context_ != nullptr) context_->TryCancel();
  }

  // Called when the stream is over; messages are dropped from then on.
  void End() {
    outbox_.Close();
    MutexLock lock(&mu_);
    context_ = nullptr;
  }

  BoundedQueue<v1::WorkerMessage>& outbox() { return outbox_; }

 private:
  BoundedQueue<v1::WorkerMessage> outbox_;
  Mutex mu_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_);
};

using AttachStream =
    grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>;

class CoordinatorClientImpl : public CoordinatorClient {
 public:
  explicit CoordinatorClientImpl(Options options)
      : options_(std::move(options)),
        measuring_(options_.identity.measuring()),
        profile_json_(options_.identity.profile_json()),
        thread_("coordinator", [this] { AttachForEver(); }) {}

  ~CoordinatorClientImpl() override { Shutdown(); }

  bool attached() const override { return attached_; }

  void SetMeasured(double share, bool awaits) override {
    measured_share_ = share;
    awaits_measurement_ = awaits;
  }

  void SetProfile(const std::string& profile_json) override {
    MutexLock lock(&mu_);
    measuring_ = false;
    profile_json_ = profile_json;
    if (attached_) TellProfile();
  }

  void BeginLeaving() override {
    MutexLock lock(&mu_);
    if (std::exchange(leaving_, true)) return;
    changed_.NotifyAll();
    if (session_ == nullptr) return;
    if (!attached_) {
      session_->Cancel();
      return;
    }
    v1::WorkerMessage message;
    message.mutable_leave();
    session_->Send(std::move(message));
  }

  bool left() const override { return left_; }

  void Shutdown() override {
    std::shared_ptr<Session> session;
    {
      MutexLock lock(&mu_);
      shutdown_ = true;
      session = session_;
      changed_.NotifyAll();
    }
    if (session != nullptr) {
      // The writer half-closes once all is written; a coordinator that is
      // well then ends the stream.
      session->outbox().Close();
      const Deadline deadline = Deadline::In(kLeaveTimeout);
      MutexLock lock(&mu_);
      while (session_ == session && !deadline.passed()) {
        changed_.WaitFor(&mu_, deadline.left());
      }
      if (session_ == session) session->Cancel();
    }
    thread_.Join();
  }

 private:
  void AttachForEver() {
    absl::Duration delay = options_.reconnect_delay;
    absl::Status last;
    int repeated = 0;
    for (;;) {
      bool attached = false;
      const absl::Status status = Attach(&attached);
      MutexLock lock(&mu_);
      if (Ends()) return;
      if (attached) delay = options_.reconnect_delay;
      repeated = status == last ? repeated + 1 : 0;
      last = status;
      if (repeated % kRepeatLog == 0) {
        Log(attached ? options_.lost_level : LogLevel::kError,
            absl::StrCat(
                "coordinator=", options_.address,
                attached ? " lost: " : " can't attach: ",
                status.ok() ? "it ended the stream" : status.ToString(),
                "; trying again",
                repeated > 0 ? absl::StrCat(" (attempt ", repeated + 1, ")")
                             : ""));
      }
      const Deadline deadline = Deadline::In(delay);
      while (!Ends() && !deadline.passed()) {
        changed_.WaitFor(&mu_, deadline.left());
      }
      if (Ends()) return;
      delay = std::min(delay * 2, options_.reconnect_delay * kMaxBackoff);
    }
  }

  void TellProfile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::WorkerMessage message;
    message.mutable_measured()->set_profile_json(profile_json_);
    session_->Send(std::move(message));
  }

  // Whether no stream is to be opened any more.
  bool Ends() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (leaving_) left_ = true;
    return shutdown_ || leaving_;
  }

  // Serves one stream until it ends, and returns the reason.
  absl::Status Attach(bool* attached) {
    std::shared_ptr<grpc::Channel> channel =
        options_.channels(options_.address);
    if (channel == nullptr) return absl::UnavailableError("no such address");
    grpc::ClientContext context;
    auto session = std::make_shared<Session>(&context);
    {
      MutexLock lock(&mu_);
      if (Ends()) return absl::OkStatus();
      session_ = session;
    }
    const auto stub = v1::WorkerService::NewStub(channel);
    const std::unique_ptr<AttachStream> stream = stub->Attach(&context);
    Thread writer;
    v1::CoordinatorMessage message;
    bool content_told = false;
    const v1::WorkerMessage registration = Registration(&content_told);
    if (stream->Write(registration) && stream->Read(&message)) {
      if (message.has_registered()) {
        *attached = true;
        const absl::Duration interval = absl::Milliseconds(std::clamp<int64_t>(
            message.registered().heartbeat_interval_ms(), 10, 60'000));
        LogInfo("coordinator=", options_.address, " attached as worker ",
                message.registered().worker_id());
        {
          MutexLock lock(&mu_);
          attached_ = true;
          // What was told is outdated if measuring has ended since.
          if (registration.register_().measuring() && !measuring_) {
            TellProfile();
          }
        }
        writer = Thread("heartbeat", [&, interval, content_told] {
          Write(*session, *stream, interval, content_told);
        });
        while (stream->Read(&message)) Dispatch(message, session);
        {
          MutexLock lock(&mu_);
          attached_ = false;
        }
        options_.survey->Cancel();
        options_.runner->Detach();
      } else {
        session->Cancel();
      }
    }
    session->outbox().Close();
    writer.Join();
    const absl::Status status = FromGrpcStatus(stream->Finish());
    session->End();
    MutexLock lock(&mu_);
    session_ = nullptr;
    changed_.NotifyAll();
    return status;
  }

  // Writes heartbeats and the stage's messages until the outbox is closed and
  // empty.
  void Write(Session& session, AttachStream& stream, absl::Duration interval,
             bool content_told) {
    Deadline next = Deadline::In(absl::ZeroDuration());
    for (;;) {
      std::optional<v1::WorkerMessage> message =
          session.outbox().PopFor(next.left());
      if (message.has_value()) {
        if (!stream.Write(*message)) return;
      } else if (session.outbox().closed()) {
        stream.WritesDone();
        return;
      }
      if (!next.passed()) continue;
      next = Deadline::In(interval);
      if (!stream.Write(HeartbeatNow())) return;
      if (options_.content == nullptr) continue;
      const ContentCheck::State content = options_.content->state();
      if (content.outdated) {
        // The hashes told are outdated: the worker registers anew.
        session.Cancel();
      } else if (!content_told && (content.known() || !content.error.ok())) {
        content_told = true;
        v1::WorkerMessage told;
        Fill(content, told.mutable_model_content());
        if (!stream.Write(told)) return;
      }
    }
  }

  void Dispatch(const v1::CoordinatorMessage& message,
                const std::shared_ptr<Session>& session) {
    switch (message.kind_case()) {
      case v1::CoordinatorMessage::kAssignStage:
        Assign(message.assign_stage(), session);
        break;
      case v1::CoordinatorMessage::kStepPlan: {
        absl::StatusOr<StepPlan> plan = FromProto(message.step_plan());
        if (plan.ok()) {
          options_.runner->OnPlan(*std::move(plan));
        } else {
          options_.runner->OnBadPlan(PlanEpoch(message.step_plan().epoch()),
                                     plan.status());
        }
        break;
      }
      case v1::CoordinatorMessage::kRetire:
        LogInfo(LogEpoch(message.retire().epoch()), " retired to be a spare");
        options_.runner->Retire();
        break;
      case v1::CoordinatorMessage::kLinkId:
        options_.runner->OnLinkId(PlanEpoch(message.link_id().epoch()),
                                  message.link_id().id());
        break;
      case v1::CoordinatorMessage::kReachLinks: {
        const std::vector<LinkSurvey::Peer> peers =
            PeersOf(message.reach_links());
        options_.survey->Reach(
            peers, [session, peers, epoch = message.reach_links().epoch()](
                       const std::vector<absl::Status>& reached) {
              session->LinksReached(epoch, peers, reached);
            });
        break;
      }
      case v1::CoordinatorMessage::kMeasureLinks:
        options_.survey->Start(
            PeersOf(message.measure_links()),
            [session](std::vector<LinkSurvey::Measured> measured) {
              session->LinksMeasured(measured);
            });
        break;
      case v1::CoordinatorMessage::kDrain:
        drained_ = message.drain().drained();
        LogInfo(drained_ ? "drained: plans do without this worker"
                         : "no longer drained");
        break;
      case v1::CoordinatorMessage::kRegistered:
      case v1::CoordinatorMessage::KIND_NOT_SET:
        LogWarning("the coordinator sent a message of no known kind");
        break;
    }
  }

  void Assign(const v1::AssignStage& proto,
              const std::shared_ptr<Session>& session) {
    auto reporter =
        std::make_shared<StageReporter>([session](v1::WorkerMessage message) {
          session->Send(std::move(message));
        });
    absl::StatusOr<AssignedStage> assignment =
        ParseAssignedStage(proto, options_.num_layers, reporter,
                           options_.identity.fetches_model());
    if (assignment.ok()) {
      options_.runner->Assign(*std::move(assignment));
    } else {
      LogError(assignment.status().ToString());
      reporter->Failed(PlanEpoch(proto.epoch()), assignment.status());
    }
  }

  static void Fill(const ContentCheck::State& state, v1::ModelContent* out) {
    for (const ModelContent::File& file : state.content.files) {
      auto* to = out->add_files();
      to->set_name(EscapeInvalidUtf8(file.name));
      to->set_bytes(file.bytes);
      to->set_hash(file.hash);
    }
    out->set_copies(state.content.copies);
    out->set_error(EscapeInvalidUtf8(state.error.message()));
  }

  // Sets `content_told` to whether all of the model's content is included.
  v1::WorkerMessage Registration(bool* content_told) {
    v1::WorkerMessage message;
    v1::Register* out = message.mutable_register_();
    *out = options_.identity;
    out->set_drained(drained_);
    {
      MutexLock lock(&mu_);
      out->set_measuring(measuring_);
      out->set_profile_json(profile_json_);
    }
    if (options_.content != nullptr) {
      options_.content->Refresh();
      const ContentCheck::State content =
          options_.content->WaitKnown(kContentTime);
      out->set_model_fingerprint(content.fingerprint);
      Fill(content, out->mutable_model_content());
      *content_told = content.known();
    }
    return message;
  }

  v1::WorkerMessage HeartbeatNow() {
    StageRunner& runner = *options_.runner;
    v1::WorkerMessage message;
    auto* heartbeat = message.mutable_heartbeat();
    const UsageTotals usage = runner.usage();
    heartbeat->set_busy_seconds(usage.busy_seconds);
    heartbeat->set_waiting_seconds(usage.waiting_seconds);
    heartbeat->set_idle_seconds(usage.idle_seconds);
    heartbeat->set_link_bytes_sent(runner.link_bytes_sent());
    heartbeat->set_kv_pages_used(static_cast<uint64_t>(runner.kv_pages_used()));
    if (options_.content != nullptr) {
      const ContentCheck::State content = options_.content->state();
      if (!content.known()) {
        heartbeat->set_hashed_bytes(content.hashed_bytes);
        heartbeat->set_bytes_to_hash(content.bytes_to_hash);
      }
    }
    heartbeat->set_measured_share(measured_share_);
    heartbeat->set_awaits_measurement(awaits_measurement_);
    *heartbeat->mutable_activity() = runner.activity();
    runner.spans().Take(heartbeat);
    const SweepStats did = runner.report().stats;
    auto* runtime = heartbeat->mutable_runtime();
    runtime->set_compute_seconds(did.compute_seconds());
    runtime->set_host_attention_seconds(did.host_attention_seconds);
    runtime->set_stall_seconds(did.stall_seconds());
    runtime->set_disk_read_seconds(did.disk_read_seconds);
    runtime->set_disk_write_seconds(did.disk_write_seconds);
    runtime->set_h2d_seconds(did.h2d_seconds);
    runtime->set_d2h_seconds(did.d2h_seconds);
    runtime->set_disk_read_bytes(did.disk_read_bytes);
    runtime->set_disk_write_bytes(did.disk_write_bytes);
    runtime->set_h2d_bytes(did.h2d_bytes);
    runtime->set_d2h_bytes(did.d2h_bytes);
    return message;
  }

  const Options options_;
  std::atomic<bool> attached_{false};  // set with mu_
  std::atomic<double> measured_share_{0};
  std::atomic<bool> awaits_measurement_{false};
  Mutex mu_;
  CondVar changed_;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mu_);
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> left_{false};
  bool drained_ = false;  // used on thread_
  bool measuring_ ABSL_GUARDED_BY(mu_);
  std::string profile_json_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace

std::unique_ptr<CoordinatorClient> CoordinatorClient::Start(Options options) {
  return std::make_unique<CoordinatorClientImpl>(std::move(options));
}

}  // namespace sluice
