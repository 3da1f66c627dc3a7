#include <arpa/inet.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/host/host_port.h"
#include "common/host/listen_probe.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "proto/grpc_status.h"
#include "sluice/v1/pipeline.grpc.pb.h"
#include "tests/integration/worker/link_testing.h"
#include "worker/link/frame.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_protocol.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"
#include "worker/link/tcp/shared_port.h"
#include "worker/link/tcp/tcp_links.h"

// Links whose frames go by TCP, and what else may come to a worker's port.
// link_test.cc has what all links do.

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr PlanEpoch kEpoch(5);
constexpr LinkTerms kTerms = {.max_rows = 4096,
                              .cols = 16,
                              .max_micro_batches = 2,
                              .credits = 3,
                              .transport = LinkTransport::kTcp};
constexpr absl::Duration kLong = absl::Seconds(60);  // never reached

std::string Peer(int port) { return absl::StrCat("ipv4:127.0.0.1:", port); }

// A plain connection, from which reads wait for kLong at most.
class RawConnection {
 public:
  explicit RawConnection(int port)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    const timeval limit = {.tv_sec = absl::ToInt64Seconds(kLong), .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  void Say(absl::string_view text) {
    EXPECT_EQ(send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Reads until the other end closes the connection.
  std::string Rest() {
    std::string rest;
    char part[4096];
    ssize_t got = 0;
    while ((got = recv(fd_.get(), part, sizeof(part), 0)) > 0) {
      rest.append(part, static_cast<size_t>(got));
    }
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "it was not closed";
    return rest;
  }
  char ReadByte() {
    char byte = 0;
    EXPECT_EQ(recv(fd_.get(), &byte, 1, 0), 1);
    return byte;
  }

 private:
  FileDescriptor fd_;
};

std::string Preamble(const std::string& id) {
  return absl::StrCat(absl::string_view(kTcpMagic, kTcpMagicBytes), id);
}

class TcpLinkTest : public ::testing::Test {
 protected:
  TcpLinkTest()
      : service_(LinkService::Create(&sink_, {.tcp = &tcp_links_}, nullptr)),
        server_(*LinkServer::Start("127.0.0.1", 0, service_->service(), nullptr,
                                   &tcp_links_)),
        factory_({.channels = TcpChannels(), .connect_timeout = kLong}) {}
  ~TcpLinkTest() override {
    server_->Shutdown();
    tcp_links_.Stop();
  }

  std::string address() const {
    return JoinHostPort("127.0.0.1", server_->port());
  }
  std::unique_ptr<LinkSender> Connect(PlanEpoch epoch = kEpoch,
                                      DType dtype = DType::kFloat32) {
    auto link =
        factory_.Connect(address(), epoch, {.tcp = true, .dtype = dtype});
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }
  ActivationFrame Frame(int64_t step, int rows = 2, PlanEpoch epoch = kEpoch) {
    return TestFrame(pool_, epoch, step, rows, kTerms.cols);
  }
  static void ExpectFrame(const ActivationFrame& frame, int64_t step,
                          int rows = 2) {
    ExpectTestFrame(frame, step, rows, kTerms.cols);
  }
  void ExpectLinksWork(PlanEpoch epoch = kEpoch) {
    service_->Accept(epoch, kTerms);
    auto link = Connect(epoch);
    ASSERT_TRUE(link->Send(Frame(1, 2, epoch)).ok());
    ExpectFrame(sink_.Take().frame, 1);
  }

  TestSink sink_;
  TcpLinks tcp_links_;
  std::unique_ptr<LinkService> service_;
  std::unique_ptr<LinkServer> server_;
  GrpcLinkFactory factory_;
  ActivationPool pool_;
};

TEST_F(TcpLinkTest, EpochsFollowEachOther) {
  for (int epoch = 5; epoch < 9; ++epoch) ExpectLinksWork(PlanEpoch(epoch));
  EXPECT_FALSE(sink_.broken());
}

TEST_F(TcpLinkTest, NarrowFrames) {
  LinkTerms terms = kTerms;
  terms.dtype = DType::kBFloat16;
  service_->Accept(kEpoch, terms);
  auto link = Connect(kEpoch, DType::kBFloat16);
  constexpr int kRows = 1000;
  ASSERT_TRUE(link->Send(Frame(0, kRows)).ok());
  const TestSink::Got got = sink_.Take();
  ASSERT_EQ(got.frame.hidden->rows(), kRows);
  for (int i = 0; i < kRows * kTerms.cols; ++i) {
    const float sent = static_cast<float>(i);
    ASSERT_NEAR(got.frame.hidden->data()[i], sent, sent / 256);
  }
  EXPECT_LT(link->bytes_sent(), kRows * kTerms.cols * sizeof(uint16_t) + 8192);
}

TEST_F(TcpLinkTest, ReceiverWithoutTcp) {
  auto service = LinkService::Create(&sink_, {}, nullptr);
  auto server = *LinkServer::Start("127.0.0.1", 0, service->service());
  const auto link = factory_.Connect(JoinHostPort("127.0.0.1", server->port()),
                                     kEpoch, {.tcp = true});
  EXPECT_EQ(link.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(link.status().ToString(),
              HasSubstr("by tcp, which this worker has not"));
}

// As if something between the workers knew gRPC only.
TEST_F(TcpLinkTest, PortThatCarriesGrpcOnly) {
  auto service = LinkService::Create(&sink_, {.tcp = &tcp_links_}, nullptr);
  auto server = *LinkServer::Start("127.0.0.1", 0, service->service());
  const auto link = factory_.Connect(JoinHostPort("127.0.0.1", server->port()),
                                     kEpoch, {.tcp = true});
  EXPECT_EQ(link.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(link.status().ToString(), HasSubstr("--link grpc"));
  server->Shutdown();
  tcp_links_.Stop();
}

TEST_F(TcpLinkTest, StreamWithoutAnId) {
  const auto stub = v1::LinkService::NewStub(TcpChannels()(address()));
  for (const std::string id : {"", "xyz", "abc", "abcd"}) {
    grpc::ClientContext context;
    context.AddMetadata(kEpochMetadata, "5");
    context.AddMetadata(kTransportMetadata, "tcp");
    if (!id.empty()) context.AddMetadata(kTcpIdMetadata, id);
    const auto stream = stub->Send(&context);
    v1::Credit credit;
    while (stream->Read(&credit)) {
    }
    EXPECT_EQ(FromGrpcStatus(stream->Finish()).code(),
              absl::StatusCode::kInvalidArgument)
        << id;
  }
}

TEST_F(TcpLinkTest, IdThatNobodyExpects) {
  auto link = Connect();
  RawConnection raw(server_->port());
  raw.Say(Preamble(*TcpLinks::NewId()));
  EXPECT_EQ(raw.Rest(), "-");
  EXPECT_EQ(
      TcpConnection::Connect(Peer(server_->port()), *TcpLinks::NewId(), kLong)
          .status()
          .code(),
      absl::StatusCode::kUnavailable);
  ExpectLinksWork(PlanEpoch(6));
}

TEST_F(TcpLinkTest, WhatElseComesToThePort) {
  RawConnection garbage(server_->port());
  garbage.Say("\xff and then something else");
  EXPECT_EQ(garbage.Rest(), "");
  RawConnection http(server_->port());
  http.Say("GET / HTTP/1.0\r\n\r\n");
  http.Rest();  // gRPC answers as it does
  { const RawConnection silent(server_->port()); }
  ExpectLinksWork();
}

// A sender that need not follow the protocol, with a stream of epoch 5.
class RawSender {
 public:
  explicit RawSender(int port)
      : stub_(v1::LinkService::NewStub(
            TcpChannels()(JoinHostPort("127.0.0.1", port)))),
        id_(*TcpLinks::NewId()) {
    context_.AddMetadata(kEpochMetadata, "5");
    context_.AddMetadata(kTransportMetadata, "tcp");
    context_.AddMetadata(kTcpIdMetadata, absl::BytesToHexString(id_));
    stream_ = stub_->Send(&context_);
    while (!credit_.has_joined() && stream_->Read(&credit_)) {
    }
    connection_ = *TcpConnection::Connect(Peer(port), id_, kLong);
  }
  void AwaitCredit() {
    while (credit_.frames() == 0 && stream_->Read(&credit_)) {
    }
  }
  void Write(const v1::Frame& frame) {
    const std::string header = frame.SerializeAsString();
    Write(static_cast<uint32_t>(header.size()), header);
  }
  void Write(uint32_t size, std::string rest) {
    iovec parts[] = {{&size, sizeof(size)}, {rest.data(), rest.size()}};
    EXPECT_TRUE(connection_->Send(parts).ok());
  }
  void CloseConnection() { connection_.reset(); }
  void Cancel() { context_.TryCancel(); }
  const std::string& id() const { return id_; }
  absl::Status Finish() {
    v1::Credit credit;
    while (stream_->Read(&credit)) {
    }
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::LinkService::Stub> stub_;
  const std::string id_;
  v1::Credit credit_;  // the last one
  std::unique_ptr<grpc::ClientReaderWriter<v1::Frame, v1::Credit>> stream_;
  std::unique_ptr<TcpConnection> connection_;
};

v1::Frame RawFrame(int rows) {
  v1::Frame frame;
  frame.set_epoch(5);
  frame.set_micro_batch(1);
  frame.set_rows(static_cast<uint32_t>(rows));
  frame.set_cols(kTerms.cols);
  frame.set_detached_bytes(rows * kTerms.cols * sizeof(float));
  return frame;
}

// A killed sender: the connection ends within a payload, then the stream.
TEST_F(TcpLinkTest, SenderThatDiesInAPayload) {
  service_->Accept(kEpoch, kTerms);
  RawSender raw(server_->port());
  raw.AwaitCredit();
  raw.Write(RawFrame(0));
  EXPECT_EQ(sink_.Take().frame.hidden->rows(), 0);
  raw.Write(RawFrame(4096));
  raw.CloseConnection();
  raw.Cancel();
  EXPECT_EQ(sink_.AwaitBroken(kEpoch).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sink_.count(), 0u);
}

TEST_F(TcpLinkTest, FramesThatBreakTheLink) {
  const auto broken = [&](const std::function<void(RawSender&)>& write) {
    service_->Forget(absl::UnavailableError("another case"));
    service_->Accept(kEpoch, kTerms);
    RawSender raw(server_->port());
    raw.AwaitCredit();
    write(raw);
    return raw.Finish().ToString();
  };
  EXPECT_THAT(broken([](RawSender& raw) { raw.Write(4'000'000'000u, "x"); }),
              HasSubstr("a frame's header of 4000000000 bytes"));
  EXPECT_THAT(broken([](RawSender& raw) { raw.Write(RawFrame(5000)); }),
              HasSubstr("5000 rows"));
  EXPECT_THAT(broken([](RawSender& raw) {
                v1::Frame frame = RawFrame(0);
                frame.set_epoch(4);
                raw.Write(frame);
              }),
              HasSubstr("another epoch"));
  EXPECT_THAT(broken([](RawSender& raw) {
                for (int i = 0; i < 4; ++i) raw.Write(RawFrame(0));
              }),
              HasSubstr("without a credit"));
}

TEST_F(TcpLinkTest, OneConnectionForAnId) {
  RawSender raw(server_->port());
  RawConnection second(server_->port());
  second.Say(Preamble(raw.id()));
  EXPECT_EQ(second.Rest(), "-");
  EXPECT_EQ(tcp_links_.Expect({.id = raw.id()}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tcp_links_.Expect({.id = "short"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Whatever the sender is at, Close ends it, and is no break to the receiver.
TEST_F(TcpLinkTest, CloseInTheMiddleOfFrames) {
  LinkTerms terms = kTerms;
  terms.credits = 1000;
  service_->Accept(kEpoch, terms);
  auto link = Connect();
  absl::Status status;
  Thread sender("sender", [&] {
    for (int i = 0; i < 1000 && status.ok(); ++i) {
      status = link->Send(Frame(i, 4096));
    }
  });
  sink_.AwaitCount(3);
  link->Close();
  sender.Join();
  link.reset();
  EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
  server_->Shutdown();
  EXPECT_FALSE(sink_.broken());
}

// The peer has a connection and takes nothing from it.
TEST(TcpConnectionTest, StopEndsASend) {
  const auto listeners = ListenOnAll("127.0.0.1:0");
  ASSERT_TRUE(listeners.ok());
  const int listener = listeners->front().get();
  FileDescriptor peer;
  Thread accepting("accept", [&] {
    pollfd ready = {.fd = listener, .events = POLLIN, .revents = 0};
    poll(&ready, 1, -1);
    peer = FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(send(peer.get(), &kTcpExpected, 1, MSG_NOSIGNAL), 1);
  });
  auto connection =
      TcpConnection::Connect(Peer(PortOf(listener)), *TcpLinks::NewId(), kLong);
  accepting.Join();
  ASSERT_TRUE(connection.ok()) << connection.status();
  std::string large(size_t{64} << 20, 'x');
  absl::Status status;
  Thread sender("sender", [&] {
    iovec part = {large.data(), large.size()};
    status = (*connection)->Send({&part, 1});
  });
  (*connection)->Stop();
  sender.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(TcpConnectionTest, NobodyThere) {
  for (const char* peer : {"ipv4:127.0.0.1:9", "ipv6:%5B::1%5D:9", "inproc",
                           "unix:/tmp/socket", "ipv4:nonsense:7"}) {
    EXPECT_EQ(
        TcpConnection::Connect(peer, *TcpLinks::NewId(), kLong).status().code(),
        absl::StatusCode::kUnimplemented)
        << peer;
  }
}

// A port whose other connections are closed at once.
class SharedPortTest : public ::testing::Test {
 protected:
  std::unique_ptr<SharedPort> Listen(absl::Duration patience) {
    auto port = SharedPort::Listen(
        "127.0.0.1:0", &links_, [this](FileDescriptor) { others_.Add(); },
        patience);
    EXPECT_TRUE(port.ok()) << port.status();
    return *std::move(port);
  }
  class Count {
   public:
    void Add() {
      MutexLock lock(&mu_);
      ++count_;
      changed_.NotifyAll();
    }
    void Await(int n) {
      MutexLock lock(&mu_);
      while (count_ < n) {
        if (!changed_.WaitFor(&mu_, kLong)) FAIL() << "too few came";
      }
    }

   private:
    Mutex mu_;
    CondVar changed_;
    int count_ ABSL_GUARDED_BY(mu_) = 0;
  };
  TcpLinks links_;
  Count others_;
};

TEST_F(SharedPortTest, WhoSaysNothingIsClosed) {
  const auto port = Listen(absl::Milliseconds(20));
  RawConnection silent(port->port());
  RawConnection slow(port->port());
  slow.Say(absl::string_view(kTcpMagic, 3));
  EXPECT_EQ(silent.Rest(), "");
  EXPECT_EQ(slow.Rest(), "");
}

TEST_F(SharedPortTest, TheOldestGivesWay) {
  const auto port = Listen(kLong);
  RawConnection first(port->port());
  std::vector<std::unique_ptr<RawConnection>> others;
  for (size_t i = 0; i < SharedPort::kMaxUndecided; ++i) {
    others.push_back(std::make_unique<RawConnection>(port->port()));
  }
  EXPECT_EQ(first.Rest(), "");
  // The others are still there, and so is the port.
  others.back()->Say("P");
  others_.Await(1);
}

TEST_F(SharedPortTest, PreamblesMayComeInPieces) {
  const auto port = Listen(kLong);
  const std::string id = *TcpLinks::NewId();
  const auto end =
      links_.Expect({.id = id, .take = [](TcpConnection& connection) {
                       char byte;
                       return connection.Receive(&byte, 1);
                     }});
  ASSERT_TRUE(end.ok());
  RawConnection raw(port->port());
  for (const char byte : Preamble(id)) raw.Say({&byte, 1});
  EXPECT_EQ(raw.ReadByte(), kTcpExpected);
  // An end that is stopped closes its connection.
  (*end)->Stop();
  EXPECT_EQ(raw.Rest(), "");
}

TEST_F(SharedPortTest, PortThatIsTaken) {
  const auto port = Listen(kLong);
  const auto second = SharedPort::Listen(
      absl::StrCat("127.0.0.1:", port->port()), &links_, nullptr);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().ToString(), HasSubstr("another --port"));
}

}  // namespace
}  // namespace sluice
