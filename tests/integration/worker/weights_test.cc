// WeightsServer and its client, over TCP.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/content_hash.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "proto/weights_service.h"
#include "sluice/v1/weights.grpc.pb.h"
#include "tests/support/test_metrics.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"
#include "worker/weights/weights_client.h"

namespace sluice {
namespace {

// A file in memory, of which some pieces may be absent.
class MemoryFile : public PieceReader {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {
    std::vector<PieceHash> hashes;
    for (size_t at = 0; at < bytes_.size(); at += kPieceBytes) {
      hashes.push_back(HashPiece(bytes_.substr(at, kPieceBytes)));
    }
    list_ = std::make_unique<PieceList>(bytes_.size(), std::move(hashes));
  }
  const PieceList& list() const override { return *list_; }
  const std::string& path() const override { return path_; }
  absl::Status Read(uint64_t piece, char* to) override {
    ++reads;
    if (on_read) on_read();
    if (absent.contains(piece)) return absl::NotFoundError("not here");
    bytes_.copy(to, kPieceBytes, piece * kPieceBytes);
    return absl::OkStatus();
  }
  absl::string_view piece(uint64_t i) const {
    return absl::string_view(bytes_).substr(i * kPieceBytes, kPieceBytes);
  }

  std::set<uint64_t> absent;
  std::function<void()> on_read;
  std::atomic<int> reads{0};

 private:
  const std::string path_ = "memory";
  const std::string bytes_;
  std::unique_ptr<PieceList> list_;
};

class Shelf : public PieceShelf {
 public:
  absl::StatusOr<std::shared_ptr<PieceReader>> Find(
      const PiecedFile& file) override {
    if (file.hash != this->file->list().FileHash()) {
      return absl::NotFoundError("another file");
    }
    return std::shared_ptr<PieceReader>(this->file);
  }
  std::shared_ptr<MemoryFile> file;
};

class Sink : public FrameSink {
 public:
  absl::Status OnFrame(ActivationFrame, std::function<void()>) override {
    return absl::UnimplementedError("");
  }
  void OnLinkBroken(PlanEpoch, const absl::Status&) override {}
};

class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest() {
    std::string bytes(5 * kPieceBytes + 321, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>((i * 2654435761u) >> 13);
    }
    shelf_.file = std::make_shared<MemoryFile>(std::move(bytes));
    id_ = {"model.safetensors", shelf_.file->list().file_bytes(),
           shelf_.file->list().FileHash()};
    server_ = *LinkServer::Start("127.0.0.1", 0, link_->service(),
                                 weights_->service());
    client_ = MakeWeightsClient(TcpChannels(), address(), "the other");
  }

  std::string address() const {
    return "127.0.0.1:" + std::to_string(server_->port());
  }
  // Reads pieces and notes them.
  absl::Status Read(uint64_t first, uint64_t count) {
    return client_->Read(
        id_, first, count,
        [this](uint64_t piece, std::span<const absl::string_view> parts) {
          std::string bytes;
          for (const absl::string_view part : parts) {
            bytes.append(part.data(), part.size());
          }
          got_[piece] = std::move(bytes);
          return absl::OkStatus();
        });
  }

  Shelf shelf_;
  PiecedFile id_;
  TestMetrics metrics_;
  Sink sink_;
  std::unique_ptr<LinkService> link_ = LinkService::Create(&sink_, {}, nullptr);
  std::unique_ptr<WeightsServer> weights_ =
      WeightsServer::Create(&shelf_, WeightBytesServed(&metrics_, "w"));
  std::unique_ptr<LinkServer> server_;
  std::shared_ptr<PieceSource> client_;
  std::map<uint64_t, std::string> got_;
};

TEST_F(WeightsTest, PiecesArriveAsTheyAre) {
  const auto list = client_->List(id_);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ((*list)->FileHash(), id_.hash);
  ASSERT_TRUE(Read(2, 4).ok());
  ASSERT_EQ(got_.size(), 4u);
  for (const auto& [piece, bytes] : got_) {
    EXPECT_EQ(bytes, shelf_.file->piece(piece)) << piece;
  }
  EXPECT_EQ(metrics_.Value("sluice_weights_served_bytes_total{worker=w}"),
            static_cast<double>(3 * kPieceBytes + 321));
  EXPECT_TRUE(Read(6, 0).ok());
}

TEST_F(WeightsTest, WhatIsNotThereIsSaid) {
  shelf_.file->absent = {3};
  EXPECT_EQ(Read(1, 4).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(got_.size(), 2u);
  id_.hash = "p0123456789abcdef0123456789abcdef";
  EXPECT_EQ(Read(0, 1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->List(id_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(WeightsTest, ImpossibleRangesAreRefused) {
  EXPECT_EQ(Read(0, 7).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(7, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(UINT64_MAX, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(1, UINT64_MAX).code(), absl::StatusCode::kInvalidArgument);
  id_.bytes = UINT64_MAX;
  EXPECT_EQ(Read(0, 1).code(), absl::StatusCode::kInvalidArgument);
  id_.name = std::string(1000, 'x');
  EXPECT_EQ(Read(0, 1).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WeightsTest, TakesErrorEndsTheCall) {
  int taken = 0;
  const absl::Status status = client_->Read(
      id_, 0, 6, [&](uint64_t, std::span<const absl::string_view>) {
        ++taken;
        return absl::ResourceExhaustedError("full");
      });
  EXPECT_EQ(status, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(taken, 1);
  EXPECT_TRUE(Read(0, 6).ok());
}

TEST_F(WeightsTest, AServerThatDoesNotAnswerIsGivenUp) {
  // The server's threads may still be in it when the test is over.
  struct Gate {
    Mutex mu;
    CondVar changed;
    bool reached ABSL_GUARDED_BY(mu) = false;
    bool open ABSL_GUARDED_BY(mu) = false;
    void Pass() {
      MutexLock lock(&mu);
      reached = true;
      changed.NotifyAll();
      while (!open) changed.Wait(&mu);
    }
    void WaitReached() {
      MutexLock lock(&mu);
      while (!reached) changed.Wait(&mu);
      reached = false;
    }
    void Open() {
      MutexLock lock(&mu);
      open = true;
      changed.NotifyAll();
    }
  };
  const auto gate = std::make_shared<Gate>();
  shelf_.file->on_read = [gate] { gate->Pass(); };
  absl::Status stalled, cancelled;
  {
    Thread reader("reader", [&] { stalled = Read(0, 1); });
    gate->WaitReached();
    client_->CancelStalled(absl::Hours(1));
    client_->CancelStalled(absl::Nanoseconds(1));
  }
  EXPECT_EQ(stalled, absl::UnavailableError("nothing came for too long"));
  {
    Thread reader("reader", [&] { cancelled = Read(0, 1); });
    gate->WaitReached();
    client_->CancelStalled(absl::ZeroDuration());
  }
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kCancelled);
  gate->Open();
}

TEST_F(WeightsTest, WithoutAServerTheErrorIsUnavailable) {
  const std::string gone = address();
  server_.reset();
  auto client = MakeWeightsClient(TcpChannels(), gone, "gone");
  EXPECT_EQ(client->List(id_).status().code(), absl::StatusCode::kUnavailable);
  auto none = MakeWeightsClient([](const std::string&) { return nullptr; },
                                "nowhere", "none");
  EXPECT_EQ(none->List(id_).status().code(), absl::StatusCode::kUnavailable);
}

// A server that lies.
class Liar : public v1::WeightsService::Service {
 public:
  grpc::Status ListPieces(
      grpc::ServerContext*, const v1::WeightFile* file,
      grpc::ServerWriter<v1::PieceHashes>* writer) override {
    v1::PieceHashes hashes;
    hashes.set_hashes(std::string(1 << 20, 'x'));
    for (uint64_t i = 0; i < file->bytes(); ++i) {
      if (!writer->Write(hashes)) break;
    }
    return grpc::Status::OK;
  }
  grpc::Status ReadPieces(grpc::ServerContext*, const v1::PieceRange* range,
                          grpc::ServerWriter<v1::Piece>* writer) override {
    v1::Piece piece;
    piece.set_index(range->first());
    piece.set_data(std::string(kPieceBytes + 1, 'x'));
    writer->Write(piece);
    return grpc::Status::OK;
  }
};

TEST_F(WeightsTest, TooMuchIsRefused) {
  Liar liar;
  const auto server = *LinkServer::Start("127.0.0.1", 0, &liar);
  client_ = MakeWeightsClient(
      TcpChannels(), "127.0.0.1:" + std::to_string(server->port()), "liar");
  EXPECT_FALSE(client_->List(id_).ok());
  EXPECT_EQ(Read(0, 1), absl::InvalidArgumentError("a malformed piece"));
  EXPECT_TRUE(got_.empty());
}

}  // namespace
}  // namespace sluice
