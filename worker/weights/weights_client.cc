#include "worker/weights/weights_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <list>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "proto/grpc_status.h"
#include "proto/tsan_handoff.h"
#include "sluice/v1/weights.grpc.pb.h"

namespace sluice {
namespace {

constexpr char kReadPieces[] = "/sluice.v1.WeightsService/ReadPieces";
// The bytes before a piece's data are fewer.
constexpr size_t kMaxPieceHead = 32;

void Fill(const PiecedFile& file, v1::WeightFile* out) {
  out->set_name(file.name);
  out->set_bytes(file.bytes);
  out->set_hash(file.hash);
}

// Reads a protobuf varint at `*at` of `bytes`; false if there is none.
bool ReadVarint(absl::string_view bytes, size_t* at, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (*at >= bytes.size()) return false;
    const auto byte = static_cast<unsigned char>(bytes[(*at)++]);
    *value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// A Piece in the buffers that it came in.
struct WirePiece {
  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> data;
  uint64_t index = 0;

  // kInvalidArgument if it is none.
  absl::Status Parse(const grpc::ByteBuffer& message) {
    slices.clear();
    data.clear();
    index = 0;
    const absl::Status malformed = InvalidArgument("a malformed piece");
    if (!message.Valid() || !message.Dump(&slices).ok()) return malformed;
    std::string head;
    for (const grpc::Slice& slice : slices) {
      TakeOver(slice.begin());
      if (head.size() >= kMaxPieceHead) continue;
      head.append(reinterpret_cast<const char*>(slice.begin()),
                  std::min(slice.size(), kMaxPieceHead - head.size()));
    }
    size_t at = 0;
    uint64_t length = 0;
    uint64_t tag;
    while (at < head.size()) {
      if (!ReadVarint(head, &at, &tag)) return malformed;
      if (tag == v1::Piece::kIndexFieldNumber << 3) {
        if (!ReadVarint(head, &at, &index)) return malformed;
      } else if (tag == (v1::Piece::kDataFieldNumber << 3 | 2)) {
        if (!ReadVarint(head, &at, &length)) return malformed;
        break;
      } else {
        return malformed;
      }
    }
    if (length > kPieceBytes || message.Length() - at != length) {
      return malformed;
    }
    for (const grpc::Slice& slice : slices) {
      const size_t skipped = std::min(at, slice.size());
      at -= skipped;
      if (skipped == slice.size()) continue;
      data.emplace_back(reinterpret_cast<const char*>(slice.begin()) + skipped,
                        slice.size() - skipped);
    }
    return absl::OkStatus();
  }
};

class WeightsClient : public PieceSource {
 public:
  WeightsClient(std::shared_ptr<grpc::Channel> channel, std::string name)
      : channel_(std::move(channel)), name_(std::move(name)) {
    if (channel_ != nullptr) stub_ = v1::WeightsService::NewStub(channel_);
  }

  std::string name() const override { return name_; }

  absl::StatusOr<PieceListPtr> List(const PiecedFile& file) override {
    if (stub_ == nullptr) return NoAddress();
    Call call(this);
    v1::WeightFile request;
    Fill(file, &request);
    const auto reader = stub_->ListPieces(&call.context, request);
    const uint64_t expected = NumPieces(file.bytes) * sizeof(PieceHash);
    std::string hashes;
    v1::PieceHashes part;
    while (reader->Read(&part)) {
      call.Heard();
      if (hashes.size() + part.hashes().size() > expected) {
        call.context.TryCancel();
        break;
      }
      hashes += part.hashes();
    }
    SLUICE_RETURN_IF_ERROR(call.End(reader->Finish()));
    SLUICE_ASSIGN_OR_RETURN(PieceList list,
                            PieceList::Create(file.bytes, hashes));
    return std::make_shared<const PieceList>(std::move(list));
  }

  absl::Status Read(const PiecedFile& file, uint64_t first, uint64_t count,
                    Take take) override {
    if (stub_ == nullptr) return NoAddress();
    Call call(this);
    v1::PieceRange request;
    Fill(file, request.mutable_file());
    request.set_first(first);
    request.set_count(count);
    // The generated stub would copy the pieces into messages.
    const grpc::internal::RpcMethod method(
        kReadPieces, grpc::internal::RpcMethod::SERVER_STREAMING, channel_);
    const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
        grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(
            channel_.get(), method, &call.context, request));
    absl::Status status;
    WirePiece piece;
    grpc::ByteBuffer message;
    while (status.ok() && reader->Read(&message)) {
      call.Heard();
      status = piece.Parse(message);
      if (status.ok()) status = take(piece.index, piece.data);
      call.Heard();  // writing took its time
    }
    if (!status.ok()) call.context.TryCancel();
    const absl::Status ended = call.End(reader->Finish());
    return status.ok() ? ended : status;
  }

  void CancelStalled(absl::Duration silence) override {
    const absl::Duration now = Clock::Real()->Monotonic();
    MutexLock lock(&mu_);
    stopped_ = stopped_ || silence == absl::ZeroDuration();
    for (Call* const call : calls_) {
      if (!stopped_ && now - call->heard < silence) continue;
      call->stalled = !stopped_;
      call->context.TryCancel();
    }
  }

 private:
  // A call while it is under way, known to the client.
  struct Call {
    explicit Call(WeightsClient* client) : client(client) {
      MutexLock lock(&client->mu_);
      heard = Clock::Real()->Monotonic();
      client->calls_.push_back(this);
      if (client->stopped_) context.TryCancel();
    }
    ~Call() {
      MutexLock lock(&client->mu_);
      client->calls_.remove(this);
    }
    void Heard() {
      MutexLock lock(&client->mu_);
      heard = Clock::Real()->Monotonic();
    }
    absl::Status End(const grpc::Status& status) {
      MutexLock lock(&client->mu_);
      return stalled ? absl::UnavailableError("nothing came for too long")
                     : FromGrpcStatus(status);
    }

    WeightsClient* const client;
    grpc::ClientContext context;
    // Guarded by the client's lock.
    absl::Duration heard;
    bool stalled = false;
  };

  static absl::Status NoAddress() {
    return absl::UnavailableError("no such address");
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string name_;
  std::unique_ptr<v1::WeightsService::Stub> stub_;
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Call*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::shared_ptr<PieceSource> MakeWeightsClient(const ChannelFactory& channels,
                                               const std::string& address,
                                               const std::string& name) {
  return std::make_shared<WeightsClient>(channels(address), name);
}

}  // namespace sluice
