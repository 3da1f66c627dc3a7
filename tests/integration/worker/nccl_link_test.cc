#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "common/host/host_port.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "proto/grpc_status.h"
#include "sluice/v1/pipeline.grpc.pb.h"
#include "tests/integration/worker/link_testing.h"
#include "tests/nccl/nccl_testing.h"
#include "tests/support/test_metrics.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_protocol.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"

// A link whose headers go by gRPC and whose payloads by (fake) NCCL; the test
// plays the coordinator, which takes ids from one end to the other.

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr PlanEpoch kEpoch(5);
constexpr LinkTerms kTerms = {.max_rows = 4096,
                              .cols = 16,
                              .max_micro_batches = 2,
                              .credits = 3,
                              .transport = LinkTransport::kNccl};
constexpr size_t kMaxBytes = 4096 * 16 * sizeof(float);
constexpr absl::Duration kLong = absl::Seconds(60);  // never reached

class NcclLinkTest : public ::testing::Test {
 protected:
  explicit NcclLinkTest(bool receiver_has_nccl = true)
      : service_(LinkService::Create(
            &sink_, {.nccl = receiver_has_nccl ? receiving_.get() : nullptr},
            metrics_.GetCounter("received", "", {}))),
        server_(*LinkServer::Start("127.0.0.1", 0, service_->service())),
        factory_({.channels = TcpChannels(),
                  .connect_timeout = kLong,
                  .bytes_sent = metrics_.GetCounter("sent", "", {})}) {}

  // Ends in a worker's order: streams, threads of channels, the rest.
  ~NcclLinkTest() override {
    server_->Shutdown();
    sending_.reset();
    receiving_.reset();
  }

  absl::StatusOr<std::unique_ptr<LinkSender>> TryConnect(
      PlanEpoch epoch, std::function<void(const std::string&)> hand_out) {
    return factory_.Connect(JoinHostPort("127.0.0.1", server_->port()), epoch,
                            {.payloads = {.transport = sending_.get(),
                                          .max_bytes = kMaxBytes,
                                          .hand_out = std::move(hand_out)},
                             .on_broken = [this](const absl::Status& status) {
                               sender_broken_.Tell(status);
                             }});
  }

  std::unique_ptr<LinkSender> Connect(PlanEpoch epoch = kEpoch) {
    auto link = TryConnect(epoch, [this, epoch](const std::string& id) {
      service_->Join(epoch, id, kMaxBytes);
    });
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }

  ActivationFrame Frame(int64_t step, int rows = 2, PlanEpoch epoch = kEpoch) {
    return TestFrame(pool_, epoch, step, rows, kTerms.cols);
  }

  static ActivationFrame PlanAlone(int64_t step) {
    auto plan = std::make_shared<StepPlan>();
    plan->epoch = kEpoch;
    plan->step = step;
    return {kEpoch, BlockId(), step, 0, plan, nullptr};
  }

  static void ExpectFrame(const ActivationFrame& frame, int64_t step,
                          int rows = 2) {
    ExpectTestFrame(frame, step, rows, kTerms.cols);
  }

  // Sends until that fails, and returns the error.
  absl::Status SendOn(LinkSender& link, int rows = 2) {
    absl::Status status;
    for (int i = 0; status.ok(); ++i) status = link.Send(Frame(i, rows));
    return status;
  }

  const FakeGpuGuard guard_;
  TestMetrics metrics_;
  TestSink sink_;
  News sender_broken_;
  std::unique_ptr<PayloadTransport> sending_ = FakeTransport();
  std::unique_ptr<PayloadTransport> receiving_ = FakeTransport();
  std::unique_ptr<LinkService> service_;
  std::unique_ptr<LinkServer> server_;
  GrpcLinkFactory factory_;
  ActivationPool pool_;
};

TEST_F(NcclLinkTest, FramesArriveInOrderAndUnharmed) {
  service_->Accept(kEpoch, kTerms);
  const long before = fake_gpu_counts().bytes_sent;
  auto link = Connect();
  constexpr int kFrames = 200;
  Thread sender("sender", [&] {
    for (int i = 0; i < kFrames; ++i) {
      // Frames without rows or without a micro-batch keep their places.
      EXPECT_TRUE(link->Send(i % 5 == 4 ? PlanAlone(i) : Frame(i, i % 7)).ok());
    }
  });
  long bytes = 0;
  for (int i = 0; i < kFrames; ++i) {
    TestSink::Got got = sink_.Take();
    if (i % 5 == 4) {
      EXPECT_EQ(got.frame.step, i);
      EXPECT_EQ(got.frame.hidden, nullptr);
    } else {
      ExpectFrame(got.frame, i, i % 7);
      bytes += static_cast<long>(got.frame.hidden->bytes());
    }
    got.on_consumed();
  }
  sender.Join();
  // The whole payload went by NCCL, and is counted.
  EXPECT_EQ(fake_gpu_counts().bytes_sent - before, bytes);
  EXPECT_GT(link->bytes_sent(), static_cast<uint64_t>(bytes));
  EXPECT_EQ(metrics_.Value("sent"), static_cast<double>(link->bytes_sent()));
  EXPECT_EQ(metrics_.Value("sent"), metrics_.Value("received"));
}

TEST_F(NcclLinkTest, LargeFrames) {
  service_->Accept(kEpoch, kTerms);
  auto link = Connect();
  Thread sender("sender", [&] {
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(link->Send(Frame(i, 4096)).ok());
  });
  for (int i = 0; i < 6; ++i) {
    TestSink::Got got = sink_.Take();
    ExpectFrame(got.frame, i, 4096);
    got.on_consumed();
  }
  sender.Join();
}

TEST_F(NcclLinkTest, CreditsStopTheSender) {
  service_->Accept(kEpoch, kTerms);
  auto link = Connect();
  std::atomic<int> sent = 0;
  Thread sender("sender", [&] {
    for (int i = 0; i < 6 && link->Send(Frame(i)).ok(); ++i) ++sent;
  });
  sink_.AwaitCount(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_LE(sent, 3 + i);
    EXPECT_EQ(sink_.count(), 3u);
    TestSink::Got got = sink_.Take();
    ExpectFrame(got.frame, i);
    got.on_consumed();
    sink_.AwaitCount(3);
  }
  sender.Join();
}

// The receiver's stage may be loaded long after both ends have joined, or long
// before.
TEST_F(NcclLinkTest, AcceptAfterJoin) {
  auto link = Connect();
  Thread sender("sender", [&] { EXPECT_TRUE(link->Send(Frame(0)).ok()); });
  service_->Accept(kEpoch, kTerms);
  ExpectFrame(sink_.Take().frame, 0);
  sender.Join();
}

TEST_F(NcclLinkTest, JoinAfterAccept) {
  service_->Accept(kEpoch, kTerms);
  std::string handed_out;
  auto link =
      TryConnect(kEpoch, [&](const std::string& id) { handed_out = id; });
  ASSERT_TRUE(link.ok()) << link.status();
  Thread sender("sender", [&] { EXPECT_TRUE((*link)->Send(Frame(0)).ok()); });
  EXPECT_EQ(sink_.count(), 0u);
  service_->Join(kEpoch, handed_out, kMaxBytes);
  service_->Join(kEpoch, handed_out, kMaxBytes);        // once is enough
  service_->Join(PlanEpoch(4), handed_out, kMaxBytes);  // no such stream
  ExpectFrame(sink_.Take().frame, 0);
  sender.Join();
}

TEST_F(NcclLinkTest, EndsThatWereToldDifferentIds) {
  service_->Accept(kEpoch, kTerms);
  const std::string other = *receiving_->NewId();
  auto link = TryConnect(kEpoch, [&](const std::string&) {
    service_->Join(kEpoch, other, kMaxBytes);
  });
  ASSERT_TRUE(link.ok()) << link.status();
  const absl::Status status = SendOn(**link);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("another NCCL id"));
}

TEST_F(NcclLinkTest, ReceiverThatWasToldGrpc) {
  LinkTerms terms = kTerms;
  terms.transport = LinkTransport::kGrpc;
  auto link = Connect();
  service_->Accept(kEpoch, terms);
  const absl::Status status = SendOn(*link);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("come by nccl"));
}

TEST_F(NcclLinkTest, SenderThatWasToldGrpc) {
  auto link =
      factory_.Connect(JoinHostPort("127.0.0.1", server_->port()), kEpoch, {});
  ASSERT_TRUE(link.ok());
  service_->Accept(kEpoch, kTerms);
  EXPECT_THAT(SendOn(**link).ToString(), HasSubstr("come by grpc"));
}

TEST_F(NcclLinkTest, PayloadsByWhoKnowsWhat) {
  const auto stub = v1::LinkService::NewStub(
      TcpChannels()(JoinHostPort("127.0.0.1", server_->port())));
  grpc::ClientContext context;
  context.AddMetadata(kEpochMetadata, "5");
  context.AddMetadata(kTransportMetadata, "pigeons");
  const auto stream = stub->Send(&context);
  v1::Credit credit;
  EXPECT_FALSE(stream->Read(&credit));
  const absl::Status status = FromGrpcStatus(stream->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("is pigeons, not nccl or tcp"));
}

TEST_F(NcclLinkTest, IdForAGrpcLink) {
  LinkTerms terms = kTerms;
  terms.transport = LinkTransport::kGrpc;
  service_->Accept(kEpoch, terms);
  auto link =
      factory_.Connect(JoinHostPort("127.0.0.1", server_->port()), kEpoch, {});
  ASSERT_TRUE(link.ok());
  service_->Join(kEpoch, std::string(128, 'x'), kMaxBytes);
  EXPECT_EQ(sink_.AwaitBroken(kEpoch).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(NcclLinkTest, IdThatIsNone) {
  service_->Accept(kEpoch, kTerms);
  auto link = TryConnect(kEpoch, [&](const std::string&) {
    service_->Join(kEpoch, "short", kMaxBytes);
  });
  ASSERT_TRUE(link.ok());
  EXPECT_THAT(SendOn(**link).ToString(), HasSubstr("an NCCL id of 5 bytes"));
  EXPECT_EQ(sink_.AwaitBroken(kEpoch).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NcclLinkTest, CloseInTheMiddleOfAPayload) {
  service_->Accept(kEpoch, kTerms);
  auto link = Connect();
  fake_gpu_stall_after(100'000);
  absl::Status status;
  Thread sender("sender", [&] { status = SendOn(*link, 4096); });
  AwaitStalled();
  link->Close();
  sender.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  link.reset();
  fake_gpu_stall_after(0);
  // The next epoch has a link of its own.
  service_->Accept(PlanEpoch(6), kTerms);
  auto next = Connect(PlanEpoch(6));
  ASSERT_TRUE(next->Send(Frame(7, 4096, PlanEpoch(6))).ok());
  ExpectFrame(sink_.Take().frame, 7, 4096);
}

TEST_F(NcclLinkTest, NewEpochInTheMiddleOfAPayload) {
  service_->Accept(kEpoch, kTerms);
  auto link = Connect();
  fake_gpu_stall_after(100'000);
  absl::Status status;
  Thread sender("sender", [&] { status = SendOn(*link, 4096); });
  AwaitStalled();
  service_->Advance(PlanEpoch(6));
  sender.Join();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(link->Send(Frame(9)), status);  // the first error sticks
  link.reset();
  fake_gpu_stall_after(0);
  service_->Accept(PlanEpoch(6), kTerms);
  auto next = Connect(PlanEpoch(6));
  ASSERT_TRUE(next->Send(Frame(7, 2, PlanEpoch(6))).ok());
  ExpectFrame(sink_.Take().frame, 7);
  EXPECT_FALSE(sink_.broken());
}

// Only gRPC reports the death, not NCCL.
TEST_F(NcclLinkTest, ReceiverThatDiesInTheMiddleOfAPayload) {
  service_->Accept(kEpoch, kTerms);
  auto link = Connect();
  fake_gpu_mute_errors(1);
  fake_gpu_stall_after(100'000);
  absl::Status status;
  Thread sender("sender", [&] { status = SendOn(*link, 4096); });
  AwaitStalled();
  server_->Shutdown();
  sender.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

// Only NCCL reports the break, not gRPC.
TEST_F(NcclLinkTest, ChannelThatBreaksAlone) {
  service_->Accept(kEpoch, kTerms);
  auto link = TryConnect(kEpoch, [&](const std::string& id) {
    service_->Join(kEpoch, id, 64);  // too little for what comes
  });
  ASSERT_TRUE(link.ok());
  const absl::Status status = SendOn(**link, 4096);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(sink_.AwaitBroken(kEpoch).ToString(),
              HasSubstr("was made for 64"));
  EXPECT_EQ(sink_.count(), 0u);
}

TEST_F(NcclLinkTest, EndsThatNcclCannotConnect) {
  fake_gpu_fail_init(2);
  service_->Accept(kEpoch, kTerms);
  auto link = Connect();
  // The break is noticed without a frame being sent.
  const absl::Status status = sender_broken_.AwaitStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("NCCL can't connect"));
  EXPECT_EQ(SendOn(*link), status);
}

TEST_F(NcclLinkTest, EndOfAnEpochTellsTheSenderWhy) {
  service_->Accept(kEpoch, kTerms);
  auto link = Connect();
  ASSERT_TRUE(link->Send(Frame(0)).ok());
  sink_.AwaitCount(1);
  fake_gpu_mute_errors(1);  // so that this is not what the sender sees first
  service_->End(kEpoch, absl::ResourceExhaustedError("no page left"));
  const absl::Status status = SendOn(*link);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("no page left"));
}

TEST_F(NcclLinkTest, ManyEpochsLeaveNothingBehind) {
  const long made = fake_gpu_counts().comms_made;
  for (int i = 0; i < 20; ++i) {
    const PlanEpoch epoch(10 + i);
    service_->Accept(epoch, kTerms);
    auto link = Connect(epoch);
    ASSERT_TRUE(link->Send(Frame(i, 2, epoch)).ok());
    TestSink::Got got = sink_.Take();
    ExpectFrame(got.frame, i);
    got.on_consumed();
    link->Close();
  }
  EXPECT_EQ(fake_gpu_counts().comms_made - made, 40);
}

class NoNcclLinkTest : public NcclLinkTest {
 protected:
  NoNcclLinkTest() : NcclLinkTest(/*receiver_has_nccl=*/false) {}
};

TEST_F(NoNcclLinkTest, ReceiverWithoutNcclRefuses) {
  const auto link = TryConnect(
      kEpoch, [](const std::string&) { ADD_FAILURE() << "no id is needed"; });
  EXPECT_EQ(link.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(link.status().ToString(),
              HasSubstr("by nccl, which this worker has not"));
}

}  // namespace
}  // namespace sluice
