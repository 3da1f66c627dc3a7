#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/host/host_port.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/grpc_endpoint.h"
#include "proto/grpc_status.h"
#include "proto/wire_limits.h"
#include "sluice/v1/pipeline.grpc.pb.h"
#include "tests/integration/worker/link_testing.h"
#include "worker/link/frame.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_protocol.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"
#include "worker/link/tcp/tcp_links.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr PlanEpoch kEpoch(5);
constexpr LinkTerms kTerms = {
    .max_rows = 4096, .cols = 16, .max_micro_batches = 2, .credits = 3};
constexpr absl::Duration kLong = absl::Seconds(60);  // never reached

enum class Transport {
  kTcp,         // gRPC over TCP
  kInProcess,   // gRPC within the process
  kFramesByTcp  // beside gRPC
};

class LinkTest : public ::testing::TestWithParam<Transport> {
 protected:
  LinkTest()
      : service_(LinkService::Create(&sink_, {.tcp = &tcp_links_}, nullptr)) {
    if (GetParam() != Transport::kInProcess) {
      auto server = LinkServer::Start("127.0.0.1", 0, service_->service(),
                                      nullptr, &tcp_links_);
      EXPECT_TRUE(server.ok()) << server.status();
      tcp_server_ = *std::move(server);
      address_ = JoinHostPort("127.0.0.1", tcp_server_->port());
      channels_ = TcpChannels();
    } else {
      server_ = *StartServer(ServerKind::kWorker, "", {service_->service()});
      address_ = "in-process";
      channels_ = [this](const std::string&) {
        return LocalChannel(ChannelKind::kWorker, server_.get());
      };
    }
    factory_ = std::make_unique<GrpcLinkFactory>(GrpcLinkFactory::Options{
        .channels = channels_, .connect_timeout = kLong});
  }

  ~LinkTest() override {
    StopServer();
    tcp_links_.Stop();
  }

  void StopServer() {
    if (tcp_server_ != nullptr) tcp_server_->Shutdown();
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now());
      server_->Wait();
    }
  }

  static LinkOptions Options() {
    return {.tcp = GetParam() == Transport::kFramesByTcp};
  }

  void Accept(PlanEpoch epoch, LinkTerms terms = kTerms) {
    if (Options().tcp) terms.transport = LinkTransport::kTcp;
    service_->Accept(epoch, terms);
  }

  std::unique_ptr<LinkSender> Connect(PlanEpoch epoch = kEpoch) {
    auto link = factory_->Connect(address_, epoch, Options());
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }

  // Makes micro-batch 0 of step `step`, with `rows` rows that contain both.
  ActivationFrame Frame(int64_t step, int rows = 2) {
    return TestFrame(pool_, kEpoch, step, rows, kTerms.cols);
  }

  static void ExpectFrame(const ActivationFrame& frame, int64_t step,
                          int rows = 2) {
    ExpectTestFrame(frame, step, rows, kTerms.cols);
  }

  TestSink sink_;
  TcpLinks tcp_links_;
  std::unique_ptr<LinkService> service_;
  std::unique_ptr<LinkServer> tcp_server_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  ChannelFactory channels_;
  std::unique_ptr<GrpcLinkFactory> factory_;
  ActivationPool pool_;
};

TEST_P(LinkTest, FramesArriveInOrderAndUnharmed) {
  Accept(kEpoch);
  auto link = Connect();
  constexpr int kFrames = 200;
  Thread sender("sender", [&] {
    for (int i = 0; i < kFrames; ++i) {
      EXPECT_TRUE(link->Send(Frame(i)).ok());
    }
  });
  for (int i = 0; i < kFrames; ++i) {
    TestSink::Got got = sink_.Take();
    ExpectFrame(got.frame, i);
    got.on_consumed();
  }
  sender.Join();
  EXPECT_GT(link->bytes_sent(), kFrames * 2 * kTerms.cols * sizeof(float));
}

TEST_P(LinkTest, FramesLargerThanGrpcsDefaultLimit) {
  Accept(kEpoch, {.max_rows = 100'000,
                  .cols = kTerms.cols,
                  .max_micro_batches = 1,
                  .credits = 1});
  auto link = Connect();
  ASSERT_TRUE(link->Send(Frame(1, 100'000)).ok());  // 6.4 MB
  ExpectFrame(sink_.Take().frame, 1, 100'000);
}

// 8,192 rows of 8,192 numbers, 256 MiB, twice under way together.
TEST_P(LinkTest, WideFrames) {
  constexpr int kRows = 8192, kCols = 8192;
  Accept(
      kEpoch,
      {.max_rows = kRows, .cols = kCols, .max_micro_batches = 1, .credits = 2});
  auto link = Connect();
  // Only some numbers are checked, as filling all takes long.
  const auto at = [](int row) { return int64_t{row} * kCols + row % kCols; };
  for (int step = 0; step < 2; ++step) {
    ActivationFrame frame = TestFrame(pool_, kEpoch, step, 1, kCols);
    auto plan = std::make_shared<StepPlan>(*frame.plan);
    plan->micro_batches[0].segments[0].num_tokens = kRows;
    plan->micro_batches[0].tokens.assign(kRows, 1);
    frame.plan = std::move(plan);
    frame.hidden = pool_.Acquire(kRows, kCols);
    for (int row = 0; row < kRows; ++row) {
      frame.hidden->data()[at(row)] = static_cast<float>(step + row);
    }
    ASSERT_TRUE(link->Send(std::move(frame)).ok());
  }
  for (int step = 0; step < 2; ++step) {
    const TestSink::Got got = sink_.Take();
    ASSERT_EQ(got.frame.hidden->rows(), kRows);
    ASSERT_EQ(got.frame.hidden->cols(), kCols);
    EXPECT_EQ(got.frame.plan->micro_batches[0].tokens.size(), size_t{kRows});
    for (int row = 0; row < kRows; ++row) {
      ASSERT_EQ(got.frame.hidden->data()[at(row)],
                static_cast<float>(step + row));
    }
  }
}

// Many sequences with all the logit_bias that a step may bring: a plan larger
// than its activations.
TEST_P(LinkTest, PlansOfTenThousandSequences) {
  constexpr int kSequences = 10'000;
  Accept(kEpoch, {.max_rows = kSequences,
                  .cols = kTerms.cols,
                  .max_micro_batches = 1,
                  .credits = 1});
  auto link = Connect();
  ActivationFrame frame = Frame(1, kSequences);
  auto plan = std::make_shared<StepPlan>(*frame.plan);
  MicroBatch& batch = plan->micro_batches[0];
  batch.segments.clear();
  int64_t biases = kMaxPlanLogitBiases;
  for (int i = 0; i < kSequences; ++i) {
    batch.segments.push_back({SequenceId(i), 0, 1, true});
    SequenceAdmission& admission = plan->admit.emplace_back();
    admission.sequence = SequenceId(i);
    admission.prompt_tokens = 1;
    admission.max_positions = 9;
    const auto mine =
        std::min<int64_t>(biases, static_cast<int64_t>(kMaxLogitBiases));
    admission.sampling.logit_bias.assign(static_cast<size_t>(mine),
                                         {INT32_MAX, 1.5f});
    biases -= mine;
  }
  ASSERT_EQ(biases, 0) << "all that there may be";
  frame.plan = std::move(plan);
  ASSERT_TRUE(link->Send(std::move(frame)).ok());
  const TestSink::Got got = sink_.Take();
  EXPECT_GT(link->bytes_sent(), size_t{50} << 20);
  ASSERT_EQ(got.frame.plan->admit.size(), size_t{kSequences});
  EXPECT_EQ(got.frame.plan->micro_batches[0].segments.size(),
            size_t{kSequences});
  EXPECT_EQ(got.frame.plan->admit[0].sampling.logit_bias.size(),
            kMaxLogitBiases);
}

// Frames beyond the limit are an error at the sender, with the remedy.
TEST_P(LinkTest, FramesBeyondTheLimitAreRefusedBySender) {
  Accept(kEpoch, {.max_rows = 1 << 20,
                  .cols = 1 << 10,
                  .max_micro_batches = 1,
                  .credits = 1});
  auto link = Connect();
  ActivationFrame frame = Frame(1, 1);
  const int64_t cols = 1 << 10;
  const int64_t rows = kMaxActivationBytes / (cols * 4) + 1;
  // Never touched, so that it costs no memory.
  frame.hidden = pool_.Acquire(rows, cols);
  const absl::Status status = link->Send(std::move(frame));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("lower max_step_tokens"));
}

TEST_P(LinkTest, FramesLieWhereTheStageWantsThem) {
  auto buffers = std::make_shared<ActivationPool>();
  const float* const place = buffers->Acquire(2, kTerms.cols)->data();
  service_->ReceiveInto(buffers);
  Accept(kEpoch);
  auto link = Connect();
  ASSERT_TRUE(link->Send(Frame(1)).ok());
  EXPECT_EQ(sink_.Take().frame.hidden->data(), place);
  service_->ReceiveInto(nullptr);
  ASSERT_TRUE(link->Send(Frame(2)).ok());
  EXPECT_NE(sink_.Take().frame.hidden->data(), place);
}

TEST_P(LinkTest, ZeroRowsAndPlansAlone) {
  Accept(kEpoch);
  auto link = Connect();
  ASSERT_TRUE(link->Send(Frame(1, 0)).ok());
  TestSink::Got got = sink_.Take();
  ASSERT_NE(got.frame.hidden, nullptr);
  EXPECT_EQ(got.frame.hidden->rows(), 0);
  auto plan = std::make_shared<StepPlan>();
  plan->epoch = kEpoch;
  plan->step = 2;
  plan->release = {SequenceId(3)};
  ASSERT_TRUE(link->Send({kEpoch, BlockId(), 2, 0, plan, nullptr}).ok());
  got = sink_.Take();
  EXPECT_EQ(got.frame.hidden, nullptr);
  EXPECT_EQ(got.frame.plan->release, plan->release);
}

// A receiver that does not consume stops the sender after as many frames as
// it granted; each that it consumes lets one more through.
TEST_P(LinkTest, CreditsStopTheSender) {
  Accept(kEpoch);
  auto link = Connect();
  Mutex mu;
  int sent = 0;
  Thread sender("sender", [&] {
    for (int i = 0; i < 6; ++i) {
      if (!link->Send(Frame(i)).ok()) return;
      MutexLock lock(&mu);
      ++sent;
    }
  });
  sink_.AwaitCount(3);
  for (int i = 0; i < 3; ++i) {
    {
      MutexLock lock(&mu);
      // The third Send may not have returned yet; a fourth can't have.
      EXPECT_LE(sent, 3 + i);
    }
    EXPECT_EQ(sink_.count(), 3u);
    TestSink::Got got = sink_.Take();
    ExpectFrame(got.frame, i);
    got.on_consumed();
    sink_.AwaitCount(3);
  }
  sender.Join();
}

TEST_P(LinkTest, EarlyStreamWaitsForItsEpoch) {
  auto link = Connect();  // taken at once
  Thread sender("sender", [&] { EXPECT_TRUE(link->Send(Frame(0)).ok()); });
  Accept(PlanEpoch(4));  // not this one
  EXPECT_EQ(sink_.count(), 0u);
  service_->Advance(kEpoch);
  EXPECT_EQ(sink_.count(), 0u);
  Accept(kEpoch);
  ExpectFrame(sink_.Take().frame, 0);
  sender.Join();
}

TEST_P(LinkTest, StaleEpochIsRefused) {
  Accept(PlanEpoch(6));
  const auto link = factory_->Connect(address_, kEpoch, Options());
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(link.status().ToString(), HasSubstr("stale epoch"));
  // Another coordinator counts its own epochs.
  service_->Forget(absl::UnavailableError("detached"));
  EXPECT_TRUE(factory_->Connect(address_, kEpoch, Options()).ok());
}

TEST_P(LinkTest, NewEpochWakesTheSenderOfTheOldOne) {
  Accept(kEpoch);
  auto link = Connect();
  absl::Status status;
  Thread sender("sender", [&] {
    for (int i = 0; status.ok(); ++i) status = link->Send(Frame(i));
  });
  sink_.AwaitCount(3);  // it waits for a credit now, or will soon
  service_->Advance(PlanEpoch(6));
  sender.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  // The first error sticks.
  EXPECT_EQ(link->Send(Frame(9)), status);
  // Late credits are dropped.
  sink_.Take().on_consumed();
  EXPECT_FALSE(sink_.broken());
}

TEST_P(LinkTest, CloseWakesTheSenderAndIsNoBreak) {
  Accept(kEpoch);
  auto link = Connect();
  absl::Status status;
  Thread sender("sender", [&] {
    for (int i = 0; status.ok(); ++i) status = link->Send(Frame(i));
  });
  sink_.AwaitCount(3);
  link->Close();
  sender.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  link.reset();
  StopServer();  // has seen the end of the stream by now
  EXPECT_FALSE(sink_.broken());
}

TEST_P(LinkTest, DeadReceiverWakesTheSender) {
  Accept(kEpoch);
  auto link = Connect();
  absl::Status status;
  Thread sender("sender", [&] {
    for (int i = 0; status.ok(); ++i) status = link->Send(Frame(i));
  });
  sink_.AwaitCount(3);
  StopServer();
  sender.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

// The sender is told even when idle, as its last frames may be lost.
TEST_P(LinkTest, SenderIsToldOfABreak) {
  Mutex mu;
  CondVar changed;
  std::vector<absl::Status> told;
  LinkOptions options = Options();
  options.on_broken = [&](const absl::Status& status) {
    MutexLock lock(&mu);
    told.push_back(status);
    changed.NotifyAll();
  };
  auto link = factory_->Connect(address_, kEpoch, options);
  ASSERT_TRUE(link.ok());
  // An epoch that is over is no break, nor is a link that was closed.
  auto over = factory_->Connect(address_, PlanEpoch(4), options);
  ASSERT_TRUE(over.ok());
  service_->Advance(kEpoch);
  EXPECT_EQ((*over)->Send(Frame(0)).code(),
            absl::StatusCode::kFailedPrecondition);
  auto closed = factory_->Connect(address_, PlanEpoch(6), options);
  ASSERT_TRUE(closed.ok());
  (*closed)->Close();
  (*closed).reset();
  {
    MutexLock lock(&mu);
    EXPECT_TRUE(told.empty());
  }
  service_->End(kEpoch, absl::ResourceExhaustedError("no page left"));
  MutexLock lock(&mu);
  while (told.empty()) {
    if (!changed.WaitFor(&mu, kLong)) FAIL() << "nobody was told";
  }
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(told[0].ToString(), HasSubstr("no page left"));
}

// Streams that carry their frames.
using StreamTest = LinkTest;

// A sender that need not follow the protocol.
class RawSender {
 public:
  RawSender(const std::shared_ptr<grpc::Channel>& channel,
            const std::string& epoch)
      : stub_(v1::LinkService::NewStub(channel)) {
    if (!epoch.empty()) context_.AddMetadata(kEpochMetadata, epoch);
    stream_ = stub_->Send(&context_);
  }
  void AwaitCredit() {
    v1::Credit credit;
    while (credit.frames() == 0 && stream_->Read(&credit)) {
    }
  }
  void Write(const v1::Frame& frame) { stream_->Write(frame); }
  void Cancel() { context_.TryCancel(); }
  absl::Status Finish() {
    v1::Credit credit;
    while (stream_->Read(&credit)) {
    }
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::LinkService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Frame, v1::Credit>> stream_;
};

TEST_P(StreamTest, DeadSenderIsToldToTheSink) {
  service_->Accept(kEpoch, kTerms);
  RawSender raw(channels_(address_), "5");
  raw.AwaitCredit();
  v1::Frame frame;
  frame.set_epoch(5);
  frame.set_micro_batch(1);
  frame.set_cols(16);
  raw.Write(frame);
  sink_.AwaitCount(1);
  raw.Cancel();
  EXPECT_EQ(sink_.AwaitBroken(kEpoch).code(), absl::StatusCode::kUnavailable);
}

// A sender that got no answer in time tries again.
TEST_P(StreamTest, StreamThatIsGivenUpUnusedIsNoBreak) {
  service_->Accept(kEpoch, kTerms);
  {
    RawSender raw(channels_(address_), "5");
    raw.AwaitCredit();
    raw.Cancel();
    EXPECT_EQ(raw.Finish().code(), absl::StatusCode::kCancelled);
  }
  auto link = Connect();
  ASSERT_TRUE(link->Send(Frame(0)).ok());
  ExpectFrame(sink_.Take().frame, 0);
  link.reset();
  StopServer();
  EXPECT_FALSE(sink_.broken());
}

TEST_P(StreamTest, ImpossibleSizesEndTheStream) {
  service_->Accept(kEpoch, kTerms);
  RawSender raw(channels_(address_), "5");
  raw.AwaitCredit();
  v1::Frame frame;
  frame.set_epoch(5);
  frame.set_micro_batch(1);
  frame.set_rows(4'000'000'000u);
  frame.set_cols(16);
  frame.set_activations("tiny");
  raw.Write(frame);
  const absl::Status status = raw.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("4000000000 rows"));
  EXPECT_EQ(sink_.AwaitBroken(kEpoch), status);
}

TEST_P(StreamTest, FrameOfAnotherEpochEndsTheStream) {
  service_->Accept(kEpoch, kTerms);
  RawSender raw(channels_(address_), "5");
  raw.AwaitCredit();
  v1::Frame frame;
  frame.set_epoch(4);
  frame.set_micro_batch(1);
  frame.set_cols(16);
  raw.Write(frame);
  EXPECT_EQ(raw.Finish().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(StreamTest, FramesWithoutCreditEndTheStream) {
  RawSender raw(channels_(address_), "5");  // not accepted: no credits
  v1::Frame frame;
  frame.set_epoch(5);
  frame.set_micro_batch(1);
  frame.set_cols(16);
  raw.Write(frame);
  EXPECT_EQ(raw.Finish().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(LinkTest, SinkThatRefusesEndsTheStream) {
  sink_.Refuse(absl::FailedPreconditionError("stale"));
  Accept(kEpoch);
  auto link = Connect();
  absl::Status status;
  for (int i = 0; status.ok(); ++i) status = link->Send(Frame(i));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

TEST_P(StreamTest, StreamsWithoutAnEpochAreRefused) {
  for (const std::string epoch : {"", "five", "-1"}) {
    RawSender raw(channels_(address_), epoch);
    EXPECT_EQ(raw.Finish().code(), absl::StatusCode::kInvalidArgument) << epoch;
  }
}

TEST_P(LinkTest, SecondSenderOfAnEpoch) {
  auto unused = Connect();
  // The link replaces one that was not used.
  auto link = Connect();
  Accept(kEpoch);
  ASSERT_TRUE(link->Send(Frame(0)).ok());
  sink_.AwaitCount(1);
  EXPECT_FALSE(unused->Send(Frame(0)).ok());
  // A link that was used is not replaced.
  const auto second = factory_->Connect(address_, kEpoch, Options());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(sink_.broken());
}

TEST_P(LinkTest, WaitingStreamsAreBounded) {
  std::vector<std::unique_ptr<LinkSender>> links;
  for (int i = 0; i < 16; ++i) links.push_back(Connect(PlanEpoch(100 + i)));
  const auto link = factory_->Connect(address_, PlanEpoch(999), Options());
  EXPECT_EQ(link.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(LinkTest, EndOfAnEpochTellsTheSenderWhy) {
  Accept(kEpoch);
  auto link = Connect();
  service_->End(kEpoch, absl::ResourceExhaustedError("no page left"));
  absl::Status status;
  for (int i = 0; status.ok(); ++i) status = link->Send(Frame(i));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.ToString(), HasSubstr("no page left"));
}

std::string TransportName(const ::testing::TestParamInfo<Transport>& info) {
  if (info.param == Transport::kFramesByTcp) return "FramesByTcp";
  return info.param == Transport::kTcp ? "Tcp" : "InProcess";
}

INSTANTIATE_TEST_SUITE_P(Transports, LinkTest,
                         ::testing::Values(Transport::kTcp,
                                           Transport::kInProcess,
                                           Transport::kFramesByTcp),
                         TransportName);
INSTANTIATE_TEST_SUITE_P(Transports, StreamTest,
                         ::testing::Values(Transport::kTcp,
                                           Transport::kInProcess),
                         TransportName);

TEST(GrpcLinkFactoryTest, NobodyThere) {
  GrpcLinkFactory tcp({.channels = TcpChannels()});
  // Port 9 of loopback is discard, which is not served.
  EXPECT_EQ(tcp.Connect("127.0.0.1:9", kEpoch, {}).status().code(),
            absl::StatusCode::kUnavailable);
  GrpcLinkFactory none(
      {.channels = [](const std::string&) { return nullptr; }});
  EXPECT_EQ(none.Connect("x", kEpoch, {}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(LinkServerTest, PortThatIsTaken) {
  TestSink sink;
  auto service = LinkService::Create(&sink, {}, nullptr);
  auto first = LinkServer::Start("127.0.0.1", 0, service->service());
  ASSERT_TRUE(first.ok());
  auto other = LinkService::Create(&sink, {}, nullptr);
  const auto second =
      LinkServer::Start("127.0.0.1", (*first)->port(), other->service());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sluice
