#include "proto/weights_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/threads/executor.h"
#include "common/threads/mutex.h"
#include "proto/call_guard.h"
#include "proto/callback_queue.h"
#include "proto/grpc_status.h"
#include "proto/tsan_handoff.h"
#include "proto/wire_limits.h"
#include "sluice/v1/weights.grpc.pb.h"

namespace sluice {
namespace {

constexpr int kThreads = 3;
constexpr int kMaxCalls = 256;
constexpr size_t kMaxFreeBuffers = 16;
constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxHashBytes = 64;
constexpr uint64_t kHashesPerMessage = kPieceBytes / sizeof(PieceHash);

// The bytes before a piece's data, as protobuf writes them: tag and index, tag
// and length.
std::string PieceHead(uint64_t index, uint64_t bytes) {
  std::string head;
  const auto varint = [&head](uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      head.push_back(static_cast<char>(value | 0x80));
    }
    head.push_back(static_cast<char>(value));
  };
  varint(v1::Piece::kIndexFieldNumber << 3);
  varint(index);
  varint(v1::Piece::kDataFieldNumber << 3 | 2);
  varint(bytes);
  return head;
}

// Memory for pieces that are being sent. It is used again and again: new pages
// would cost more time than reading into them. Outlives its server, for gRPC
// gives slices back when it likes. Thread-safe.
class PieceBuffers : public std::enable_shared_from_this<PieceBuffers> {
 public:
  using Buffer = std::unique_ptr<char[]>;

  Buffer Take() {
    {
      MutexLock lock(&mu_);
      if (!free_.empty()) {
        Buffer buffer = std::move(free_.back());
        free_.pop_back();
        return buffer;
      }
    }
    return Buffer(new char[kPieceBytes]);
  }
  // A slice of the buffer's first bytes, which comes back with it.
  grpc::Slice Wrap(Buffer buffer, size_t bytes) {
    auto* const lent = new Lent{shared_from_this(), std::move(buffer)};
    return grpc::Slice(
        lent->buffer.get(), bytes,
        [](void* data) {
          const std::unique_ptr<Lent> back(static_cast<Lent*>(data));
          back->owner->Return(std::move(back->buffer));
        },
        lent);
  }

 private:
  struct Lent {
    std::shared_ptr<PieceBuffers> owner;
    Buffer buffer;
  };
  void Return(Buffer buffer) {
    MutexLock lock(&mu_);
    if (free_.size() < kMaxFreeBuffers) free_.push_back(std::move(buffer));
  }

  Mutex mu_;
  std::vector<Buffer> free_ ABSL_GUARDED_BY(mu_);
};

// Returns a message of a piece.
absl::StatusOr<grpc::ByteBuffer> PieceMessage(PieceReader* reader,
                                              uint64_t piece,
                                              PieceBuffers* buffers) {
  const uint64_t bytes = reader->list().bytes(piece);
  PieceBuffers::Buffer buffer = buffers->Take();
  SLUICE_RETURN_IF_ERROR(reader->Read(piece, buffer.get()));
  HandOff(buffer.get());
  const grpc::Slice slices[2] = {grpc::Slice(PieceHead(piece, bytes)),
                                 buffers->Wrap(std::move(buffer), bytes)};
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<PiecedFile> FileOf(const v1::WeightFile& file) {
  if (file.name().empty() || file.name().size() > kMaxNameBytes ||
      file.hash().size() > kMaxHashBytes ||
      file.bytes() > kMaxPiecedFileBytes) {
    return absl::InvalidArgumentError("no such file can be");
  }
  return PiecedFile{file.name(), file.bytes(), file.hash()};
}

class WeightsServerImpl;

// One call: reads what is next on an executor's thread and writes it. Deletes
// itself when gRPC is done with it.
template <typename Message>
class Call : public grpc::ServerWriteReactor<Message> {
 public:
  // Returns the next message, or nullopt after the last one. May wait.
  using Source = std::function<absl::StatusOr<std::optional<Message>>()>;

  Call(WeightsServerImpl* server, Executor* executor)
      : server_(server), executor_(executor) {
    HandOff(this);
  }
  void Begin(Source source) {
    source_ = std::move(source);
    Continue();
  }
  void End(const absl::Status& status) {
    HandOff(this);
    this->Finish(ToGrpcStatus(status));
  }
  void OnWriteDone(bool ok) override {
    const Reaction reaction(this);
    if (ok && !cancelled_) {
      Continue();
    } else {
      End(absl::CancelledError("the call was cancelled"));
    }
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override;

 private:
  void Continue() {
    executor_->Run([this] { WriteNext(); });
  }
  void WriteNext() {
    TakeOver(this);
    absl::StatusOr<std::optional<Message>> next = source_();
    if (!next.ok()) {
      End(next.status());
    } else if (!next->has_value()) {
      End(absl::OkStatus());
    } else {
      out_ = std::move(**next);
      HandOff(this);
      this->StartWrite(&out_);
    }
  }

  WeightsServerImpl* const server_;
  Executor* const executor_;
  std::atomic<bool> cancelled_{false};
  Source source_;
  Message out_;
};

using RawReads = v1::WeightsService::WithRawCallbackMethod_ReadPieces<
    v1::WeightsService::WithCallbackMethod_ListPieces<
        v1::WeightsService::Service>>;

class WeightsServerImpl : public WeightsServer, private RawReads {
 public:
  WeightsServerImpl(PieceShelf* shelf, Counter* bytes_served, CallGuard* guard)
      : shelf_(shelf),
        bytes_served_(bytes_served),
        guard_(guard),
        executor_("weights", kThreads) {
    HandOff(this);
  }
  ~WeightsServerImpl() override { TakeOver(this); }
  grpc::Service* service() override { return this; }

  void Ended() {
    --calls_;
    HandOff(this);
  }

 private:
  grpc::ServerWriteReactor<v1::PieceHashes>* ListPieces(
      grpc::CallbackServerContext* context,
      const v1::WeightFile* request) override {
    TakeOver(this);
    auto* const call = new Call<v1::PieceHashes>(this, &executor_);
    if (const absl::Status status =
            Enter(*context, "sluice.v1.WeightsService/ListPieces");
        !status.ok()) {
      call->End(status);
      return call;
    }
    const absl::StatusOr<PiecedFile> file = FileOf(*request);
    if (!file.ok()) {
      call->End(file.status());
      return call;
    }
    call->Begin([this, file = *file, reader = std::shared_ptr<PieceReader>(),
                 at = uint64_t{0}]() mutable
                -> absl::StatusOr<std::optional<v1::PieceHashes>> {
      if (reader == nullptr) {
        SLUICE_ASSIGN_OR_RETURN(reader, shelf_->Find(file));
      }
      const absl::string_view all = reader->list().packed();
      const absl::string_view part =
          all.substr(std::min<size_t>(at, all.size()),
                     kHashesPerMessage * sizeof(PieceHash));
      if (part.empty()) return std::nullopt;
      at += part.size();
      v1::PieceHashes message;
      message.set_hashes(part.data(), part.size());
      return message;
    });
    return call;
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadPieces(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override {
    TakeOver(this);
    auto* const call = new Call<grpc::ByteBuffer>(this, &executor_);
    if (const absl::Status status =
            Enter(*context, "sluice.v1.WeightsService/ReadPieces");
        !status.ok()) {
      call->End(status);
      return call;
    }
    v1::PieceRange range;
    grpc::ByteBuffer bytes = *request;
    absl::Status status;
    if (!grpc::SerializationTraits<v1::PieceRange>::Deserialize(&bytes, &range)
             .ok()) {
      status = absl::InvalidArgumentError("no PieceRange");
    }
    const absl::StatusOr<PiecedFile> file = FileOf(range.file());
    status.Update(file.status());
    if (status.ok() &&
        (range.first() > NumPieces(file->bytes) ||
         range.count() > NumPieces(file->bytes) - range.first())) {
      status = absl::InvalidArgumentError("the file has not so many pieces");
    }
    if (!status.ok()) {
      call->End(status);
      return call;
    }
    call->Begin([this, file = *file, reader = std::shared_ptr<PieceReader>(),
                 next = range.first(),
                 end = range.first() + range.count()]() mutable
                -> absl::StatusOr<std::optional<grpc::ByteBuffer>> {
      if (reader == nullptr) {
        SLUICE_ASSIGN_OR_RETURN(reader, shelf_->Find(file));
      }
      if (next == end) return std::nullopt;
      SLUICE_ASSIGN_OR_RETURN(grpc::ByteBuffer message,
                              PieceMessage(reader.get(), next, buffers_.get()));
      if (bytes_served_ != nullptr) {
        bytes_served_->Add(static_cast<double>(reader->list().bytes(next)));
      }
      ++next;
      return message;
    });
    return call;
  }

  // Counts the call, until Ended, and says whether it may go on.
  absl::Status Enter(const grpc::CallbackServerContext& context,
                     absl::string_view method) {
    const bool full = ++calls_ > kMaxCalls;
    SLUICE_RETURN_IF_ERROR(CheckCall(guard_, context, method).status());
    if (!full) return absl::OkStatus();
    return Unavailable("more than ", kMaxCalls, " calls for weights");
  }

  PieceShelf* const shelf_;
  Counter* const bytes_served_;
  CallGuard* const guard_;
  const std::shared_ptr<PieceBuffers> buffers_ =
      std::make_shared<PieceBuffers>();
  std::atomic<int> calls_{0};
  Executor executor_;
};

template <typename Message>
void Call<Message>::OnDone() {
  TakeOver(this);
  server_->Ended();
  delete this;
}

}  // namespace

Counter* WeightBytesServed(MetricsRegistry* registry,
                           const std::string& worker) {
  return registry->GetCounter(
      "sluice_weights_served_bytes_total",
      "Bytes of weight files sent to workers without a copy of the model",
      {{"worker", worker}});
}

std::unique_ptr<WeightsServer> WeightsServer::Create(PieceShelf* shelf,
                                                     Counter* bytes_served,
                                                     CallGuard* guard) {
  KeepCallbackQueue();
  return std::make_unique<WeightsServerImpl>(shelf, bytes_served, guard);
}

}  // namespace sluice
