#include "worker/link/grpc_link_factory.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/status_macros.h"
#include "common/threads/deadline.h"
#include "common/threads/mutex.h"
#include "proto/callback_queue.h"
#include "proto/grpc_status.h"
#include "proto/tsan_handoff.h"
#include "worker/link/frame.h"
#include "worker/link/link_protocol.h"
#include "worker/link/tcp/tcp_connection.h"
#include "worker/link/tcp/tcp_links.h"

namespace sluice {
namespace {

// A peer that grants more frames of credit than this is broken.
constexpr int64_t kMaxCredits = int64_t{1} << 20;
// A peer has this time to acknowledge the end of a stream.
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
// The interval at which connecting looks whether it is cancelled.
constexpr absl::Duration kLookInterval = absl::Milliseconds(100);
// The receiver's reason may arrive this long after its channel broke.
constexpr absl::Duration kReasonTime = absl::Milliseconds(200);
// The same by TCP, which breaks whenever the receiver ends the link.
constexpr absl::Duration kTcpReasonTime = absl::Seconds(2);
// The limit of detached payloads not sent yet: one under way, one waiting.
constexpr int kMaxPayloads = 2;

// The status of a broken stream for the sending stage: refusals keep their
// codes, everything else is a lost link.
absl::Status LinkStatus(const grpc::Status& grpc_status,
                        absl::string_view address) {
  if (grpc_status.ok()) {
    return Unavailable("link to ", address, ": the receiver ended it");
  }
  const absl::Status status = FromGrpcStatus(grpc_status);
  const std::string message =
      absl::StrCat("link to ", address, ": ", status.message());
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kUnimplemented:
      return absl::Status(status.code(), message);
    default:
      return absl::UnavailableError(message);
  }
}

// One stream. Keeps itself alive until gRPC is done with it.
class Stream
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `tcp_id` is of the TCP connection, if frames go by one.
  Stream(std::string address, PlanEpoch epoch, const LinkOptions& options,
         std::string tcp_id, Counter* bytes_sent)
      : address_(std::move(address)),
        tcp_id_(std::move(tcp_id)),
        detached_(options.payloads.transport != nullptr),
        dtype_(options.dtype),
        on_broken_(options.on_broken),
        bytes_counter_(bytes_sent) {
    context_.AddMetadata(kEpochMetadata, absl::StrCat(epoch.value()));
    if (by_tcp()) {
      context_.AddMetadata(kTcpIdMetadata, absl::BytesToHexString(tcp_id_));
    }
    if (by_tcp() || detached_) {
      context_.AddMetadata(
          kTransportMetadata,
          std::string(LinkTransportName(by_tcp() ? LinkTransport::kTcp
                                                 : LinkTransport::kNccl)));
    }
  }

  static void Start(const std::shared_ptr<Stream>& self,
                    std::shared_ptr<grpc::Channel> channel) {
    {
      MutexLock lock(&self->mu_);
      self->self_ = self;
    }
    HandOff(self.get());
    self->stub_ = std::make_unique<grpc::GenericStub>(std::move(channel));
    self->stub_->PrepareBidiStreamingCall(&self->context_, kLinkMethod, {},
                                          self.get());
    // Writes start outside of reactions, so a hold keeps the call open.
    self->AddHold();
    self->StartRead(&self->in_);
    self->StartCall();
  }

  absl::Status WaitConnected(absl::Duration timeout,
                             const std::atomic<bool>* cancelled) {
    const Deadline deadline = Deadline::In(timeout);
    MutexLock lock(&mu_);
    const bool& connected = by_tcp() ? joined_ : connected_;
    while (!connected && !done_) {
      if (deadline.passed()) {
        return Unavailable("link to ", address_, ": no answer within ",
                           absl::FormatDuration(timeout));
      }
      if (cancelled != nullptr && *cancelled) {
        return absl::CancelledError("broken off");
      }
      changed_.WaitFor(&mu_, cancelled == nullptr
                                 ? deadline.left()
                                 : std::min(deadline.left(), kLookInterval));
    }
    return connected ? absl::OkStatus() : status_;
  }

  // Makes the connection that the receiver has joined. Called once, when the
  // stream is connected.
  absl::Status ConnectTcp(absl::Duration timeout) {
    absl::StatusOr<std::unique_ptr<TcpConnection>> connection =
        TcpConnection::Connect(context_.peer(), tcp_id_, timeout);
    MutexLock lock(&mu_);
    if (!connection.ok()) {
      AwaitEndLocked(kReasonTime);
      return done_ ? status_
                   : Annotate(connection.status(),
                              absl::StrCat("link to ", address_));
    }
    tcp_ = *std::move(connection);
    if (broken_ || done_) tcp_->Stop();
    return absl::OkStatus();
  }

  // Opens this end of the channel of detached payloads, which begins to connect
  // when the receiver says that it joins. Called once, when connected.
  static absl::StatusOr<std::string> OpenChannel(
      const std::shared_ptr<Stream>& self, const DetachedPayloads& payloads) {
    SLUICE_ASSIGN_OR_RETURN(std::string id, payloads.transport->NewId());
    SLUICE_ASSIGN_OR_RETURN(
        std::shared_ptr<PayloadChannel> channel,
        payloads.transport->Open(
            {.end = PayloadTransport::End::kSender,
             .id = id,
             .max_bytes = payloads.max_bytes,
             .on_broken = [self](const absl::Status& status) {
               self->FailPayloads(status);
             }}));
    MutexLock lock(&self->mu_);
    self->channel_ = std::move(channel);
    self->channel_checksum_ = LinkIdChecksum(id);
    return id;
  }

  absl::Status Send(const ActivationFrame& frame) {
    if (by_tcp()) return SendByTcp(frame);
    SLUICE_ASSIGN_OR_RETURN(grpc::ByteBuffer bytes,
                            EncodeFrame(frame, dtype_, detached_));
    std::span<const std::byte> payload;
    if (detached_ && frame.hidden != nullptr) {
      payload = NarrowPayload(dtype_, frame.hidden.get());
    }
    {
      MutexLock lock(&mu_);
      while (
          !closed_ && !done_ &&
          (broken_ || writing_ || credits_ == 0 || payloads_ >= kMaxPayloads)) {
        changed_.Wait(&mu_);
      }
      if (closed_) return Closed();
      if (done_) return status_;
      --credits_;
      writing_ = true;
      out_.Swap(&bytes);
      uint64_t sent = out_.Length();
      // Payloads are pushed under the lock, to have their headers' order.
      if (!payload.empty()) {
        sent += payload.size();
        ++payloads_;
        channel_->Push(
            {frame.hidden->data(), payload.size()},
            [self = self_, hidden = frame.hidden] { self->OnPayloadSent(); });
      }
      CountLocked(sent);
    }
    StartWrite(&out_);
    return absl::OkStatus();
  }

  absl::Status SendByTcp(const ActivationFrame& frame) {
    SLUICE_ASSIGN_OR_RETURN(std::string header, EncodeHeader(frame, dtype_));
    std::span<const std::byte> payload;
    if (frame.hidden != nullptr) {
      payload = NarrowPayload(dtype_, frame.hidden.get());
    }
    char size[kTcpSizeBytes];
    const auto header_bytes = static_cast<uint32_t>(header.size());
    std::memcpy(size, &header_bytes, sizeof(size));
    iovec parts[] = {{size, sizeof(size)},
                     {header.data(), header.size()},
                     {const_cast<std::byte*>(payload.data()), payload.size()}};
    {
      MutexLock lock(&mu_);
      while (!closed_ && !done_ && (broken_ || sending_ || credits_ == 0)) {
        changed_.Wait(&mu_);
      }
      if (closed_) return Closed();
      if (done_) return status_;
      --credits_;
      sending_ = true;
      CountLocked(sizeof(size) + header.size() + payload.size());
    }
    // Whatever ends the link stops the connection.
    const absl::Status sent = tcp_->Send(parts);
    {
      MutexLock lock(&mu_);
      sending_ = false;
      changed_.NotifyAll();
    }
    if (sent.ok()) return sent;
    FailPayloads(sent);
    MutexLock lock(&mu_);
    while (!closed_ && !done_) changed_.Wait(&mu_);
    return closed_ ? Closed() : status_;
  }

  // Never waits: the half-close is sent after the write in progress.
  void Close() {
    End end;
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      closed_ = true;
      changed_.NotifyAll();
      if (channel_ != nullptr) channel_->Stop();
      if (tcp_ != nullptr) tcp_->Stop();
      end = PrepareEndLocked();
    }
    Perform(end);
  }

  // Waits until gRPC has released the stream. REQUIRES: Close() was called.
  void Join() {
    MutexLock lock(&mu_);
    // A peer that never answered has nothing to acknowledge.
    const Deadline deadline =
        Deadline::In(connected_ ? kCloseTimeout : absl::ZeroDuration());
    while (!done_ && !deadline.passed()) {
      changed_.WaitFor(&mu_, deadline.left());
    }
    if (done_) return;
    context_.TryCancel();
    while (!done_) changed_.Wait(&mu_);
  }

  uint64_t bytes_sent() const {
    MutexLock lock(&mu_);
    return bytes_sent_;
  }

  bool blocked() const {
    MutexLock lock(&mu_);
    return writing_ || sending_ || credits_ == 0 || payloads_ >= kMaxPayloads;
  }

  void OnReadDone(bool ok) override {
    const Reaction reaction(this);
    End end;
    bool malformed = false;
    {
      MutexLock lock(&mu_);
      if (ok) {
        const absl::StatusOr<Credit> credit = DecodeCredit(in_);
        malformed = !credit.ok();
        if (!malformed) {
          connected_ = true;
          credits_ = std::min<int64_t>(credits_ + credit->frames, kMaxCredits);
          if (credit->joined.has_value()) malformed = !JoinLocked(*credit);
        }
      } else {
        broken_ = true;
        if (tcp_ != nullptr) tcp_->Stop();
        end = PrepareEndLocked();
      }
      changed_.NotifyAll();
    }
    if (malformed) context_.TryCancel();
    if (ok) {
      StartRead(&in_);
    } else {
      Perform(end);
    }
  }

  void OnWriteDone(bool ok) override {
    const Reaction reaction(this);
    End end;
    {
      MutexLock lock(&mu_);
      out_.Clear();
      writing_ = false;
      if (!ok) broken_ = true;
      end = PrepareEndLocked();
      changed_.NotifyAll();
    }
    Perform(end);
  }

  void OnDone(const grpc::Status& status) override {
    TakeOver(this);
    std::shared_ptr<Stream> last;
    absl::Status why = LinkStatus(status, address_);
    bool tell = false;
    {
      MutexLock lock(&mu_);
      // The receiver's status is the cause more often than its channel's.
      const bool by_us = status.error_code() == grpc::StatusCode::CANCELLED;
      if (by_us && !payload_error_.ok()) {
        why = payload_error_;
        tell = true;
      } else {
        tell = !absl::IsFailedPrecondition(why);
      }
      tell = tell && connected_ && !closed_ && on_broken_ != nullptr;
    }
    // done_ is set later, so that the owner outlives this call.
    if (tell) on_broken_(why);
    MutexLock lock(&mu_);
    status_ = std::move(why);
    done_ = true;
    if (channel_ != nullptr) channel_->Stop();
    // `last` is destroyed after `lock`, so that this object outlives it.
    last = std::move(self_);
    // The owner holds a reference until it has seen done_.
    changed_.NotifyAll();
  }

 private:
  struct End {
    bool half_close = false;
    bool remove_hold = false;
  };

  // The steps that are left to end the call, once no write is in progress.
  End PrepareEndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_ || !(closed_ || broken_)) return {};
    ended_ = true;
    return {.half_close = !broken_, .remove_hold = true};
  }

  bool by_tcp() const { return !tcp_id_.empty(); }

  void CountLocked(uint64_t sent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    bytes_sent_ += sent;
    if (bytes_counter_ != nullptr) {
      bytes_counter_->Add(static_cast<double>(sent));
    }
  }

  // Returns false if the receiver joins another channel than this end.
  bool JoinLocked(const Credit& credit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (by_tcp()) {
      joined_ = true;
      return *credit.joined == LinkIdChecksum(tcp_id_);
    }
    if (channel_ == nullptr || *credit.joined != channel_checksum_) {
      payload_error_ = FailedPrecondition(
          "link to ", address_,
          ": the receiver was handed another NCCL id than this "
          "end has made");
      return false;
    }
    channel_->Start();
    return true;
  }

  // Runs on the channel's thread.
  void OnPayloadSent() {
    MutexLock lock(&mu_);
    --payloads_;
    changed_.NotifyAll();
  }
  void FailPayloads(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (!payload_error_.ok() || done_) return;
      payload_error_ = Annotate(status, absl::StrCat("link to ", address_));
      AwaitEndLocked(by_tcp() ? kTcpReasonTime : kReasonTime);
      if (done_ || closed_) return;
    }
    context_.TryCancel();
  }
  // Waits for the receiver's reason, if it ended the link.
  void AwaitEndLocked(absl::Duration time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Deadline deadline = Deadline::In(time);
    while (!done_ && !closed_ && !deadline.passed()) {
      changed_.WaitFor(&mu_, deadline.left());
    }
  }

  void Perform(const End& end) {
    if (end.half_close) StartWritesDone();
    if (end.remove_hold) RemoveHold();
  }

  absl::Status Closed() const {
    return Unavailable("link to ", address_, ": closed");
  }

  const std::string address_;
  const std::string tcp_id_;
  const bool detached_;
  const DType dtype_;
  const std::function<void(const absl::Status&)> on_broken_;
  Counter* const bytes_counter_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericStub> stub_;

  mutable Mutex mu_;
  CondVar changed_;
  grpc::ByteBuffer in_;   // owned by gRPC between StartRead and OnReadDone
  grpc::ByteBuffer out_;  // owned by gRPC while writing_
  std::shared_ptr<Stream> self_ ABSL_GUARDED_BY(mu_);
  int64_t credits_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_sent_ ABSL_GUARDED_BY(mu_) = 0;
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // by us
  bool broken_ ABSL_GUARDED_BY(mu_) = false;  // by the peer or the network
  bool ended_ ABSL_GUARDED_BY(mu_) = false;   // the hold is removed
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // set with done_

  // The channel of detached payloads.
  std::shared_ptr<PayloadChannel> channel_ ABSL_GUARDED_BY(mu_);
  uint64_t channel_checksum_ ABSL_GUARDED_BY(mu_) = 0;
  int payloads_ ABSL_GUARDED_BY(mu_) = 0;  // that have not left yet
  absl::Status payload_error_ ABSL_GUARDED_BY(mu_);

  // The TCP connection, set before the first Send.
  std::unique_ptr<TcpConnection> tcp_;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;   // by the receiver
  bool sending_ ABSL_GUARDED_BY(mu_) = false;  // a Send uses it
};

class GrpcLinkSender : public LinkSender {
 public:
  explicit GrpcLinkSender(std::shared_ptr<Stream> stream)
      : stream_(std::move(stream)) {}
  ~GrpcLinkSender() override {
    stream_->Close();
    stream_->Join();
  }
  absl::Status Send(ActivationFrame frame) override {
    return stream_->Send(frame);
  }
  void Close() override { stream_->Close(); }
  uint64_t bytes_sent() const override { return stream_->bytes_sent(); }
  bool blocked() const override { return stream_->blocked(); }

 private:
  const std::shared_ptr<Stream> stream_;
};

}  // namespace

GrpcLinkFactory::GrpcLinkFactory(Options options)
    : options_(std::move(options)) {
  KeepCallbackQueue();
}

absl::StatusOr<std::unique_ptr<LinkSender>> GrpcLinkFactory::Connect(
    const std::string& address, PlanEpoch epoch, const LinkOptions& options) {
  std::shared_ptr<grpc::Channel> channel = options_.channels(address);
  if (channel == nullptr) {
    return Unavailable("link to ", address, ": no such address");
  }
  std::string tcp_id;
  if (options.tcp) {
    SLUICE_ASSIGN_OR_RETURN(tcp_id, TcpLinks::NewId());
  }
  auto stream = std::make_shared<Stream>(
      address, epoch, options, std::move(tcp_id), options_.bytes_sent);
  Stream::Start(stream, std::move(channel));
  auto sender = std::make_unique<GrpcLinkSender>(stream);
  SLUICE_RETURN_IF_ERROR(
      stream->WaitConnected(options_.connect_timeout, options.cancelled));
  if (options.tcp) {
    SLUICE_RETURN_IF_ERROR(stream->ConnectTcp(options_.connect_timeout));
  }
  if (options.payloads.transport != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const std::string id,
                            Stream::OpenChannel(stream, options.payloads));
    options.payloads.hand_out(id);
  }
  return sender;
}

}  // namespace sluice
