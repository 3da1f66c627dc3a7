#include "worker/link/link_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "proto/call_guard.h"
#include "proto/callback_queue.h"
#include "proto/grpc_status.h"
#include "proto/tsan_handoff.h"
#include "proto/wire_limits.h"
#include "sluice/v1/pipeline.grpc.pb.h"
#include "worker/link/frame.h"
#include "worker/link/link_protocol.h"
#include "worker/link/tcp/tcp_connection.h"
#include "worker/link/tcp/tcp_links.h"

namespace sluice {
namespace {

// The limit of streams whose epochs have not begun here; a plan has one sender
// per stage, so more than a few do not come from senders.
constexpr size_t kMaxWaitingStreams = 16;
// The limit of probes, each of which has at most a few frames of kProbeRows.
constexpr size_t kMaxProbes = 16;
// A header of this size is read at once; the memory of a larger one grows with
// what has come of it.
constexpr size_t kHeaderPart = size_t{1} << 20;
constexpr LinkTerms kProbeTerms = {.max_rows = kProbeRows,
                                   .cols = kProbeCols,
                                   .max_micro_batches = 2,
                                   .credits = 1};

class LinkServiceImpl;

// One sender's stream. Keeps itself alive until gRPC is done with it.
class Stream
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(LinkServiceImpl* service, grpc::CallbackServerContext* context,
         PlanEpoch epoch, LinkTransport transport)
      : service_(service),
        context_(context),
        epoch_(epoch),
        transport_(transport),
        out_(EncodeCredit({})) {
    HandOff(this);
  }

  PlanEpoch epoch() const { return epoch_; }
  bool is_probe() const { return epoch_ == kProbeEpoch; }

  // Takes the stream: acknowledges it and begins to read. One of Begin and
  // Refuse is called, once.
  void Begin(const std::shared_ptr<Stream>& self) {
    {
      MutexLock lock(&mu_);
      self_ = self;
    }
    StartRead(&in_);
    StartWrite(&out_);
  }

  void Refuse(const std::shared_ptr<Stream>& self, const absl::Status& reason) {
    {
      MutexLock lock(&mu_);
      self_ = self;
      writing_ = false;
    }
    End(reason);
  }

  void Open(const LinkTerms& terms) {
    if (terms.transport != transport_) {
      End(InvalidArgument(
          "the sender's activations come by ", LinkTransportName(transport_),
          ", but this stage was told ", LinkTransportName(terms.transport)));
      return;
    }
    {
      MutexLock lock(&mu_);
      if (open_) return;
      open_ = true;
      limits_ = {terms.max_rows, terms.cols, terms.max_micro_batches,
                 transport_ != LinkTransport::kGrpc, terms.dtype};
    }
    Grant(terms.credits);
  }

  LinkTransport transport() const { return transport_; }

  // Expects the TCP connection `id`, by which frames come. An error breaks the
  // stream.
  void Expect(const std::shared_ptr<Stream>& self, TcpLinks* tcp,
              const std::string& id);

  // Opens this end of the channel of detached payloads.
  void Join(const std::shared_ptr<Stream>& self, PayloadTransport* transport,
            const std::string& id, size_t max_bytes);

  void Grant(int64_t frames) {
    {
      MutexLock lock(&mu_);
      if (end_status_.has_value()) return;
      owed_ += frames;
      if (writing_ || !HasNewsLocked()) return;
      PrepareCreditLocked();
    }
    StartWrite(&out_);
  }

  // Ends the stream with `status`, once. What arrives later is dropped.
  void End(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (end_status_.has_value()) return;
      end_status_ = status;
      StopTransfersLocked();
      if (writing_) return;  // OnWriteDone finishes
    }
    Finish(ToGrpcStatus(status));
  }

  // Ends the stream and tells the sink.
  void Break(const absl::Status& status);

  bool unused() const {
    MutexLock lock(&mu_);
    return !got_frames_;
  }

  void OnReadDone(bool ok) override;
  void OnDone() override;

  void OnWriteDone(bool ok) override {
    const Reaction reaction(this);
    std::optional<absl::Status> end;
    {
      MutexLock lock(&mu_);
      writing_ = false;
      end = end_status_;
      if (!end.has_value()) {
        if (!HasNewsLocked() || !ok) return;
        PrepareCreditLocked();
      }
    }
    if (end.has_value()) {
      Finish(ToGrpcStatus(*end));
    } else {
      StartWrite(&out_);
    }
  }

 private:
  // Whether to send credits. Frames by other transports need a place to come by
  // first. By TCP, where they would be all that gRPC has to carry, credits wait
  // until the sender has as few left: it is never blocked meanwhile.
  bool HasNewsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (transport_ != LinkTransport::kGrpc && channel_ == nullptr &&
        tcp_ == nullptr) {
      return false;
    }
    const bool waits = transport_ == LinkTransport::kTcp && owed_ < granted_;
    return (owed_ > 0 && !waits) || joined_.has_value();
  }
  void PrepareCreditLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    out_ = EncodeCredit(
        {static_cast<uint32_t>(owed_), std::exchange(joined_, std::nullopt)});
    granted_ += owed_;
    owed_ = 0;
  }
  void StopTransfersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (channel_ != nullptr) channel_->Stop();
    if (tcp_ != nullptr) tcp_->Stop();
  }
  // Spends a credit on a frame that comes; returns the epoch's limits.
  absl::StatusOr<FrameLimits> SpendCredit();
  // Takes a frame that comes by TCP.
  absl::Status TakeFrom(TcpConnection& connection,
                        const std::shared_ptr<Stream>& self);
  // Takes what OnReadDone has read; an error breaks the stream.
  absl::Status Take(const grpc::ByteBuffer& bytes, const FrameLimits& limits,
                    const std::shared_ptr<Stream>& self);
  // Delivers a frame with its payload; on the channel's thread if detached.
  absl::Status Deliver(ActivationFrame frame,
                       const std::shared_ptr<Stream>& self);
  // Drops a probe's frame.
  void Drop(ActivationFrame frame);

  LinkServiceImpl* const service_;
  grpc::CallbackServerContext* const context_;
  const PlanEpoch epoch_;
  const LinkTransport transport_;

  mutable Mutex mu_;
  grpc::ByteBuffer in_;   // owned by gRPC between StartRead and OnReadDone
  grpc::ByteBuffer out_;  // owned by gRPC while writing_
  std::shared_ptr<Stream> self_ ABSL_GUARDED_BY(mu_);
  FrameLimits limits_ ABSL_GUARDED_BY(mu_);
  int64_t owed_ ABSL_GUARDED_BY(mu_) = 0;     // credits to be sent
  int64_t granted_ ABSL_GUARDED_BY(mu_) = 0;  // sent, less the frames received
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  // Set from the start, as Grant and End may be called before Begin, whose
  // acknowledgement is the first write.
  bool writing_ ABSL_GUARDED_BY(mu_) = true;
  bool got_frames_ ABSL_GUARDED_BY(mu_) = false;
  bool got_rows_ ABSL_GUARDED_BY(mu_) = false;  // a probe's frame with many
  std::optional<absl::Status> end_status_ ABSL_GUARDED_BY(mu_);
  // The channel of detached payloads, set by Join.
  std::shared_ptr<PayloadChannel> channel_ ABSL_GUARDED_BY(mu_);
  std::optional<uint64_t> joined_ ABSL_GUARDED_BY(mu_);  // to be said
  // The TCP connection, set by Expect.
  std::shared_ptr<TcpLinks::End> tcp_ ABSL_GUARDED_BY(mu_);
};

using RawLinkService =
    v1::LinkService::WithRawCallbackMethod_Send<v1::LinkService::Service>;

class LinkServiceImpl : public LinkService, private RawLinkService {
 public:
  LinkServiceImpl(FrameSink* sink, LinkTransports transports,
                  Counter* bytes_received, CallGuard* guard)
      : sink_(sink),
        transports_(transports),
        bytes_received_(bytes_received),
        guard_(guard) {
    HandOff(this);
  }
  ~LinkServiceImpl() override { TakeOver(this); }

  grpc::Service* service() override { return this; }

  void ReceiveInto(std::shared_ptr<ActivationPool> buffers) override {
    MutexLock lock(&mu_);
    if (buffers == nullptr) buffers = own_buffers_;
    buffers_ = std::move(buffers);
  }

  void Advance(PlanEpoch epoch) override {
    EndBelow(epoch, StaleEpoch(epoch), std::nullopt);
  }

  void Accept(PlanEpoch epoch, const LinkTerms& terms) override {
    EndBelow(epoch, StaleEpoch(epoch), terms);
    if (std::shared_ptr<Stream> stream = Find(epoch)) stream->Open(terms);
  }

  void Join(PlanEpoch epoch, const std::string& id, size_t max_bytes) override {
    std::shared_ptr<Stream> stream = Find(epoch);
    if (stream == nullptr) return;
    if (stream->transport() != LinkTransport::kNccl) {
      stream->Break(FailedPrecondition(
          "an NCCL id came for a link whose activations come by ",
          LinkTransportName(stream->transport())));
      return;
    }
    stream->Join(stream, transports_.nccl, id, max_bytes);
  }

  void End(PlanEpoch epoch, const absl::Status& reason) override {
    EndBelow(PlanEpoch(epoch.value() + 1), reason, std::nullopt);
  }

  void Forget(const absl::Status& reason) override {
    std::map<PlanEpoch, std::shared_ptr<Stream>> old;
    {
      MutexLock lock(&mu_);
      old.swap(streams_);
      floor_.reset();
      terms_.reset();
    }
    for (auto& [epoch, stream] : old) stream->End(reason);
  }

  // Called by streams.
  FrameSink* sink() { return sink_; }
  std::shared_ptr<ActivationPool> buffers() {
    MutexLock lock(&mu_);
    return buffers_;
  }
  void CountBytes(size_t bytes) {
    if (bytes_received_ != nullptr) {
      bytes_received_->Add(static_cast<double>(bytes));
    }
  }
  // Returns whether the stream was still registered for a plan.
  bool Remove(const Stream* stream) {
    std::shared_ptr<Stream> removed;
    MutexLock lock(&mu_);
    probes_.erase(stream);
    auto it = streams_.find(stream->epoch());
    if (it == streams_.end() || it->second.get() != stream) return false;
    removed = std::move(it->second);
    streams_.erase(it);
    return true;
  }

 private:
  static absl::Status StaleEpoch(PlanEpoch now) {
    return FailedPrecondition("stale epoch: the receiver is at ", now.value(),
                              " or waits for it");
  }

  // Sets what Send checks, and ends the streams of epochs < `floor`.
  void EndBelow(PlanEpoch floor, const absl::Status& reason,
                std::optional<LinkTerms> terms) {
    std::vector<std::shared_ptr<Stream>> old;
    {
      MutexLock lock(&mu_);
      if (floor_.has_value() && *floor_ > floor) return;
      floor_ = floor;
      terms_ = terms;
      while (!streams_.empty() && streams_.begin()->first < floor) {
        old.push_back(std::move(streams_.begin()->second));
        streams_.erase(streams_.begin());
      }
    }
    for (auto& stream : old) stream->End(reason);
  }

  std::shared_ptr<Stream> Find(PlanEpoch epoch) {
    MutexLock lock(&mu_);
    auto it = streams_.find(epoch);
    return it == streams_.end() ? nullptr : it->second;
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Send(
      grpc::CallbackServerContext* context) override {
    TakeOver(this);
    const absl::StatusOr<PlanEpoch> epoch = ReadEpoch(*context);
    const absl::StatusOr<LinkTransport> transport = ReadTransport(*context);
    const absl::StatusOr<std::string> tcp_id = ReadTcpId(*context);
    auto stream =
        std::make_shared<Stream>(this, context, epoch.value_or(PlanEpoch()),
                                 transport.value_or(LinkTransport::kGrpc));
    Stream* const reactor = stream.get();
    std::shared_ptr<Stream> replaced;
    std::optional<LinkTerms> terms;
    absl::Status status =
        CheckCall(guard_, *context, "sluice.v1.LinkService/Send").status();
    status.Update(epoch.status());
    status.Update(transport.status());
    status.Update(tcp_id.status());
    if (status.ok()) {
      status = stream->is_probe() ? RegisterProbe(stream.get(), &terms)
                                  : Register(stream, &replaced, &terms);
    }
    if (!status.ok()) {
      stream->Refuse(stream, status);
      return reactor;
    }
    if (replaced != nullptr) {
      replaced->End(absl::AbortedError("replaced by a newer stream"));
    }
    stream->Begin(stream);
    if (*transport == LinkTransport::kTcp) {
      stream->Expect(stream, transports_.tcp, *tcp_id);
    }
    if (terms.has_value()) stream->Open(*terms);
    return reactor;
  }

  static absl::StatusOr<PlanEpoch> ReadEpoch(
      const grpc::CallbackServerContext& context) {
    const auto& metadata = context.client_metadata();
    const auto it = metadata.find(kEpochMetadata);
    int64_t epoch = 0;
    if (it == metadata.end() ||
        !absl::SimpleAtoi(
            absl::string_view(it->second.data(), it->second.size()), &epoch) ||
        epoch < 0) {
      return InvalidArgument("metadata ", kEpochMetadata,
                             " is missing or no epoch");
    }
    return PlanEpoch(epoch);
  }

  absl::StatusOr<LinkTransport> ReadTransport(
      const grpc::CallbackServerContext& context) const {
    const auto& metadata = context.client_metadata();
    const auto it = metadata.find(kTransportMetadata);
    if (it == metadata.end()) return LinkTransport::kGrpc;
    const absl::string_view name(it->second.data(), it->second.size());
    for (const auto transport : {LinkTransport::kNccl, LinkTransport::kTcp}) {
      if (name != LinkTransportName(transport)) continue;
      if (transports_.Has(transport)) return transport;
      return FailedPrecondition("the sender's activations come by ", name,
                                ", which this worker has not");
    }
    return InvalidArgument("metadata ", kTransportMetadata, " is ", name,
                           ", not nccl or tcp");
  }

  static absl::StatusOr<std::string> ReadTcpId(
      const grpc::CallbackServerContext& context) {
    const auto& metadata = context.client_metadata();
    const auto it = metadata.find(kTcpIdMetadata);
    if (it == metadata.end()) return "";
    const absl::string_view digits(it->second.data(), it->second.size());
    if (digits.size() % 2 != 0 ||
        !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit)) {
      return InvalidArgument("metadata ", kTcpIdMetadata,
                             " is not in hexadecimal digits");
    }
    return absl::HexStringToBytes(digits);
  }

  absl::Status RegisterProbe(const Stream* stream,
                             std::optional<LinkTerms>* terms) {
    MutexLock lock(&mu_);
    if (probes_.size() >= kMaxProbes) {
      return absl::ResourceExhaustedError("too many links are measured");
    }
    probes_.insert(stream);
    *terms = kProbeTerms;
    // NCCL's ids come with plans, but the others can be measured.
    if (stream->transport() == LinkTransport::kTcp) {
      (*terms)->transport = LinkTransport::kTcp;
    }
    return absl::OkStatus();
  }

  // A second stream of an epoch takes the place of one that was not used yet:
  // its sender gave up waiting for an answer and tries again.
  absl::Status Register(const std::shared_ptr<Stream>& stream,
                        std::shared_ptr<Stream>* replaced,
                        std::optional<LinkTerms>* terms) {
    const PlanEpoch epoch = stream->epoch();
    MutexLock lock(&mu_);
    if (floor_.has_value() && epoch < *floor_) return StaleEpoch(*floor_);
    auto it = streams_.find(epoch);
    if (it != streams_.end()) {
      if (!it->second->unused()) {
        return absl::AlreadyExistsError(
            absl::StrCat("epoch ", epoch.value(), " has a sender already"));
      }
      *replaced = std::move(it->second);
      it->second = stream;
    } else if (streams_.size() >= kMaxWaitingStreams) {
      return absl::ResourceExhaustedError("too many streams wait");
    } else {
      streams_.emplace(epoch, stream);
    }
    if (floor_ == epoch) *terms = terms_;
    return absl::OkStatus();
  }

  FrameSink* const sink_;
  const LinkTransports transports_;
  Counter* const bytes_received_;
  CallGuard* const guard_;
  const std::shared_ptr<ActivationPool> own_buffers_ =
      std::make_shared<ActivationPool>();

  Mutex mu_;
  std::shared_ptr<ActivationPool> buffers_ ABSL_GUARDED_BY(mu_) = own_buffers_;
  std::map<PlanEpoch, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
  std::set<const Stream*> probes_ ABSL_GUARDED_BY(mu_);
  // Epochs below this one are over.
  std::optional<PlanEpoch> floor_ ABSL_GUARDED_BY(mu_);
  // The terms of epoch *floor_; empty while it has not been accepted.
  std::optional<LinkTerms> terms_ ABSL_GUARDED_BY(mu_);
};

void Stream::OnReadDone(bool ok) {
  const Reaction reaction(this);
  if (!ok) {
    // This is a half-close or a lost link: OnDone tells them apart.
    End(absl::OkStatus());
    return;
  }
  grpc::ByteBuffer bytes;
  std::shared_ptr<Stream> self;
  {
    MutexLock lock(&mu_);
    bytes.Swap(&in_);
    self = self_;
    if (end_status_.has_value()) bytes.Clear();
  }
  if (bytes.Valid()) {
    if (!is_probe()) service_->CountBytes(bytes.Length());
    const absl::StatusOr<FrameLimits> limits = SpendCredit();
    absl::Status status = limits.status();
    if (status.ok() && transport_ == LinkTransport::kTcp) {
      status = InvalidArgument("a frame in the stream of a link by TCP");
    }
    if (status.ok()) status = Take(bytes, *limits, self);
    bytes.Clear();
    if (!status.ok()) Break(status);
  }
  StartRead(&in_);
}

absl::StatusOr<FrameLimits> Stream::SpendCredit() {
  FrameLimits limits;
  bool writes = false;
  {
    MutexLock lock(&mu_);
    got_frames_ = true;
    if (granted_ <= 0) {
      return absl::ResourceExhaustedError("a frame came without a credit");
    }
    --granted_;
    limits = limits_;
    writes = !writing_ && !end_status_.has_value() && HasNewsLocked();
    if (writes) PrepareCreditLocked();
  }
  if (writes) StartWrite(&out_);
  return limits;
}

absl::Status Stream::TakeFrom(TcpConnection& connection,
                              const std::shared_ptr<Stream>& self) {
  uint32_t size = 0;
  static_assert(sizeof(size) == kTcpSizeBytes);
  SLUICE_RETURN_IF_ERROR(connection.Receive(&size, sizeof(size)));
  SLUICE_ASSIGN_OR_RETURN(const FrameLimits limits, SpendCredit());
  if (size > kMaxStepPlanBytes + kFrameFieldBytes) {
    return InvalidArgument("a frame's header of ", size, " bytes");
  }
  std::string header;
  while (header.size() < size) {
    const size_t had = header.size();
    header.resize(std::min<size_t>(size, had + kHeaderPart));
    SLUICE_RETURN_IF_ERROR(
        connection.Receive(header.data() + had, header.size() - had));
  }
  const grpc::Slice slice(header.data(), header.size(),
                          grpc::Slice::STATIC_SLICE);
  SLUICE_ASSIGN_OR_RETURN(ActivationFrame frame,
                          DecodeFrame(grpc::ByteBuffer(&slice, 1), limits,
                                      service_->buffers().get()));
  if (frame.epoch != epoch_) {
    return absl::InvalidArgumentError("a frame of another epoch");
  }
  uint64_t bytes = sizeof(size) + header.size();
  if (frame.hidden != nullptr) {
    const std::span<std::byte> at = PayloadOf(*frame.hidden, limits.dtype);
    SLUICE_RETURN_IF_ERROR(connection.Receive(at.data(), at.size()));
    WidenPayload(limits.dtype, frame.hidden.get());
    bytes += at.size();
  }
  if (!is_probe()) service_->CountBytes(bytes);
  return Deliver(std::move(frame), self);
}

void Stream::Expect(const std::shared_ptr<Stream>& self, TcpLinks* tcp,
                    const std::string& id) {
  absl::StatusOr<std::shared_ptr<TcpLinks::End>> end = tcp->Expect(
      {.id = id,
       .take =
           [self](TcpConnection& connection) {
             return self->TakeFrom(connection, self);
           },
       .on_broken =
           [self](const absl::Status& status) { self->Break(status); }});
  if (!end.ok()) {
    Break(end.status());
    return;
  }
  {
    MutexLock lock(&mu_);
    if (end_status_.has_value()) return;
    tcp_ = *std::move(end);
    joined_ = LinkIdChecksum(id);
  }
  Grant(0);
}

absl::Status Stream::Take(const grpc::ByteBuffer& bytes,
                          const FrameLimits& limits,
                          const std::shared_ptr<Stream>& self) {
  SLUICE_ASSIGN_OR_RETURN(
      ActivationFrame frame,
      DecodeFrame(bytes, limits, service_->buffers().get()));
  if (frame.epoch != epoch_) {
    return absl::InvalidArgumentError("a frame of another epoch");
  }
  if (!limits.detached) return Deliver(std::move(frame), self);
  std::shared_ptr<PayloadChannel> channel;
  {
    MutexLock lock(&mu_);
    channel = channel_;
  }
  // Frames without a payload wait in the channel for those before them.
  PayloadView payload;
  if (frame.hidden != nullptr) {
    const std::span<std::byte> at = PayloadOf(*frame.hidden, limits.dtype);
    payload = {at.data(), at.size()};
  }
  channel->Push(payload, [self, frame = std::move(frame), payload,
                          dtype = limits.dtype]() mutable {
    if (frame.hidden != nullptr) {
      self->service_->CountBytes(payload.bytes);
      WidenPayload(dtype, frame.hidden.get());
    }
    const absl::Status status = self->Deliver(std::move(frame), self);
    if (!status.ok()) self->Break(status);
  });
  return absl::OkStatus();
}

absl::Status Stream::Deliver(ActivationFrame frame,
                             const std::shared_ptr<Stream>& self) {
  {
    MutexLock lock(&mu_);
    if (end_status_.has_value()) return absl::OkStatus();
  }
  if (is_probe()) {
    Drop(std::move(frame));
    return absl::OkStatus();
  }
  return service_->sink()->OnFrame(std::move(frame),
                                   [self] { self->Grant(1); });
}

void Stream::Drop(ActivationFrame frame) {
  int32_t credits = 1;
  if (frame.hidden != nullptr && frame.hidden->rows() > 1) {
    MutexLock lock(&mu_);
    if (!std::exchange(got_rows_, true)) credits = kProbeFrames;
  }
  frame.hidden.reset();
  Grant(credits);
}

void Stream::Join(const std::shared_ptr<Stream>& self,
                  PayloadTransport* transport, const std::string& id,
                  size_t max_bytes) {
  absl::StatusOr<std::shared_ptr<PayloadChannel>> channel =
      transport->Open({.end = PayloadTransport::End::kReceiver,
                       .id = id,
                       .max_bytes = max_bytes,
                       .on_broken = [self](const absl::Status& status) {
                         self->Break(status);
                       }});
  if (!channel.ok()) {
    Break(channel.status());
    return;
  }
  {
    MutexLock lock(&mu_);
    if (end_status_.has_value()) return;
    if (channel_ != nullptr) return;  // handed out twice
    channel_ = *std::move(channel);
    channel_->Start();
    joined_ = LinkIdChecksum(id);
  }
  Grant(0);
}

void Stream::Break(const absl::Status& status) {
  // The stream is removed before it ends: else its OnDone, on another thread,
  // would take it for one that ended well, and the sink would not be told.
  const bool wanted = service_->Remove(this);
  End(status);
  if (wanted) service_->sink()->OnLinkBroken(epoch_, status);
}

void Stream::OnDone() {
  TakeOver(this);
  // A sender that gives up waiting for an answer and tries again has not lost
  // anything; a worker that is really gone is noticed elsewhere.
  const bool broken = context_->IsCancelled() && !unused();
  if (service_->Remove(this) && broken) {
    service_->sink()->OnLinkBroken(
        epoch_, absl::UnavailableError("the sender's connection broke"));
  }
  HandOff(service_);  // to its destruction after the server's shutdown
  std::shared_ptr<Stream> last;
  MutexLock lock(&mu_);
  if (!end_status_.has_value()) end_status_ = absl::OkStatus();
  StopTransfersLocked();
  last = std::move(self_);
}

}  // namespace

std::unique_ptr<LinkService> LinkService::Create(FrameSink* sink,
                                                 LinkTransports transports,
                                                 Counter* bytes_received,
                                                 CallGuard* guard) {
  KeepCallbackQueue();
  return std::make_unique<LinkServiceImpl>(sink, transports, bytes_received,
                                           guard);
}

}  // namespace sluice
