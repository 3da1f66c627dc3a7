#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "common/threads/bounded_queue.h"
#include "coordinator/cluster/worker_service.h"
#include "proto/convert.h"
#include "proto/grpc_endpoint.h"
#include "proto/grpc_status.h"
#include "proto/wire_limits.h"
#include "sluice/v1/pipeline.grpc.pb.h"

namespace sluice {
namespace {

class QueueSink : public WorkerEventSink {
 public:
  bool Push(WorkerEvent event) override {
    return events_.Push(std::move(event));
  }
  WorkerEvent Next() { return *events_.Pop(); }
  void Close() { events_.Close(); }

 private:
  BoundedQueue<WorkerEvent> events_{100};
};

class WorkerServiceTest : public testing::Test {
 protected:
  WorkerServiceTest()
      : service_(WorkerAttachService::Create(
            &sink_, {.max_workers = 2, .outgoing_messages = 3})) {
    server_ = *StartServer(ServerKind::kCoordinator, "", {service_->service()});
    stub_ = v1::WorkerService::NewStub(
        LocalChannel(ChannelKind::kWorker, server_.get()));
  }
  ~WorkerServiceTest() override {
    service_->Shutdown();
    server_->Shutdown();
  }

  std::shared_ptr<WorkerStream> NextStream() {
    return std::get<WorkerOpened>(sink_.Next().what).stream;
  }
  // Returns the stream of a worker which has registered and is accepted.
  std::shared_ptr<WorkerStream> Accepted(
      grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>*
          call) {
    EXPECT_TRUE(call->Write(Hello()));
    std::shared_ptr<WorkerStream> stream = NextStream();
    sink_.Next();
    stream->Accept();
    return stream;
  }
  absl::Status NextClosed() {
    return std::get<WorkerClosed>(sink_.Next().what).reason;
  }

  static v1::WorkerMessage Hello() {
    v1::WorkerMessage message;
    message.mutable_register_()->set_name("a");
    return message;
  }

  QueueSink sink_;
  std::unique_ptr<WorkerAttachService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
};

TEST_F(WorkerServiceTest, CarriesMessagesBothWaysInOrder) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  ASSERT_TRUE(call->Write(Hello()));
  auto stream = NextStream();
  const WorkerEvent event = sink_.Next();
  EXPECT_EQ(std::get<v1::WorkerMessage>(event.what).register_().name(), "a");
  stream->Accept();
  v1::CoordinatorMessage message;
  for (int i = 0; i < 3; ++i) {
    message.mutable_step_plan()->set_step(i);
    EXPECT_TRUE(stream->Send(message));
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(call->Read(&message));
    EXPECT_EQ(message.step_plan().step(), i);
  }
  v1::WorkerMessage answer;
  for (int i = 0; i < 3; ++i) {
    answer.mutable_step_result()->set_step(i);
    ASSERT_TRUE(call->Write(answer));
  }
  for (int i = 0; i < 3; ++i) {
    const WorkerEvent next = sink_.Next();
    EXPECT_EQ(next.worker, event.worker);
    EXPECT_EQ(std::get<v1::WorkerMessage>(next.what).step_result().step(), i);
  }
  call->WritesDone();
  EXPECT_EQ(NextClosed().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(stream->Send(message));
  while (call->Read(&message)) {
  }
  EXPECT_FALSE(call->Finish().ok());
}

// The largest messages of both ends: a plan of 10,000 sequences with all the
// logit_bias that it may hold; the 20 alternatives of as many tokens.
TEST_F(WorkerServiceTest, CarriesTheLargestPlansAndResults) {
  constexpr int kSequences = 10'000;
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  auto stream = Accepted(call.get());
  StepPlan plan;
  StepResult result;
  plan.micro_batches.emplace_back();
  int64_t biases = kMaxPlanLogitBiases;
  for (int i = 0; i < kSequences; ++i) {
    const SequenceId id(i);
    SequenceAdmission& admission = plan.admit.emplace_back();
    admission.sequence = id;
    admission.prompt_tokens = 1;
    admission.max_positions = 9;
    const auto mine =
        std::min<int64_t>(biases, static_cast<int64_t>(kMaxLogitBiases));
    biases -= mine;
    admission.sampling.logit_bias.assign(static_cast<size_t>(mine),
                                         {INT32_MAX, -1.5f});
    plan.micro_batches[0].segments.push_back({id, 0, 1, true});
    plan.micro_batches[0].tokens.push_back(INT32_MAX);
    SampledToken& token = result.tokens.emplace_back();
    token.sequence = id;
    token.token = INT32_MAX;
    token.top.assign(kMaxTopLogprobs, {INT32_MAX, -0.5f});
    TokenScores& scores = result.scores.emplace_back();
    scores.sequence = id;
    scores.num_top = kMaxTopLogprobs;
    scores.logprobs = {-1.0f};
    scores.top.assign(kMaxTopLogprobs, {INT32_MAX, -0.5f});
  }
  ASSERT_EQ(biases, 0);
  {
    v1::CoordinatorMessage message;
    ToProto(plan, message.mutable_step_plan());
    EXPECT_GT(message.ByteSizeLong(), size_t{50} << 20);
    ASSERT_TRUE(stream->Send(std::move(message)));
  }
  v1::CoordinatorMessage got;
  ASSERT_TRUE(call->Read(&got));
  EXPECT_EQ(got.step_plan().admit_size(), kSequences);
  EXPECT_EQ(got.step_plan().admit(0).sampling().logit_bias_token_size(),
            static_cast<int>(kMaxLogitBiases));
  int64_t tokens = 0, scores = 0;
  for (v1::StepResult& part : ToProtoParts(result)) {
    v1::WorkerMessage message;
    *message.mutable_step_result() = std::move(part);
    ASSERT_TRUE(call->Write(message));
    const WorkerEvent event = sink_.Next();
    const auto* arrived = std::get_if<v1::WorkerMessage>(&event.what);
    ASSERT_NE(arrived, nullptr);
    tokens += arrived->step_result().tokens_size();
    scores += arrived->step_result().scores_size();
  }
  EXPECT_EQ(tokens, kSequences);
  EXPECT_EQ(scores, kSequences);
  call->WritesDone();
  EXPECT_EQ(NextClosed().code(), absl::StatusCode::kCancelled);
  call->Finish();
}

// A larger message ends the stream with the reason, at both ends.
TEST_F(WorkerServiceTest, AMessageBeyondTheLimitIsNamed) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  v1::WorkerMessage message = Hello();
  message.mutable_register_()->set_profile_json(
      std::string(static_cast<size_t>(kMaxRequestBytes), 'x'));
  call->Write(message);
  const absl::Status status = FromGrpcStatus(call->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  NextStream();
  EXPECT_FALSE(NextClosed().ok());
}

TEST_F(WorkerServiceTest, ARefusedWorkerGetsTheReason) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  ASSERT_TRUE(call->Write(Hello()));
  auto stream = NextStream();
  sink_.Next();
  stream->Break(absl::AlreadyExistsError("taken"));
  stream->Break(absl::InternalError("the first reason sticks"));
  v1::CoordinatorMessage message;
  EXPECT_FALSE(call->Read(&message));
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(status.error_message(), "taken");
  EXPECT_EQ(NextClosed(), absl::AlreadyExistsError("taken"));
}

TEST_F(WorkerServiceTest, TheFirstMessageMustRegister) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  v1::WorkerMessage message;
  message.mutable_heartbeat();
  ASSERT_TRUE(call->Write(message));
  EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  NextStream();
  EXPECT_EQ(NextClosed().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WorkerServiceTest, AStreamThatEndsBeforeRegisterIsClosed) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  call->WritesDone();
  NextStream();
  EXPECT_EQ(NextClosed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(WorkerServiceTest, BreakEndsAStreamThatSaysNothing) {
  grpc::ClientContext silent;
  auto call = stub_->Attach(&silent);
  NextStream()->Break(absl::DeadlineExceededError("silent"));
  EXPECT_EQ(NextClosed().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(call->Finish().ok());
}

TEST_F(WorkerServiceTest, BreakEndsAnAcceptedStream) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  auto stream = Accepted(call.get());
  stream->Break(absl::InternalError("nonsense"));
  EXPECT_EQ(NextClosed(), absl::InternalError("nonsense"));
  EXPECT_FALSE(call->Finish().ok());
  stream->Break(absl::InternalError("after the end"));
}

TEST_F(WorkerServiceTest, ADyingWorkerIsNoticedAtOnce) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  auto stream = Accepted(call.get());
  context.TryCancel();
  EXPECT_EQ(NextClosed().code(), absl::StatusCode::kUnavailable);
  call->Finish();
}

TEST_F(WorkerServiceTest, AWorkerThatLeavesWhileItIsWrittenToHasLeft) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  auto stream = Accepted(call.get());
  // More messages than fit are sent to a worker that does not read.
  v1::CoordinatorMessage message;
  message.mutable_link_id()->set_id(std::string(16 << 20, 'x'));
  EXPECT_TRUE(stream->Send(message));
  call->WritesDone();
  EXPECT_EQ(NextClosed().code(), absl::StatusCode::kCancelled);
  call->Finish();
}

TEST_F(WorkerServiceTest, TheOutgoingQueueIsBounded) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  ASSERT_TRUE(call->Write(Hello()));
  auto stream = NextStream();
  sink_.Next();
  // Nothing goes out before Accept.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(stream->Send({}));
  EXPECT_FALSE(stream->Send({}));
}

TEST_F(WorkerServiceTest, TheNumberOfWorkersIsBounded) {
  grpc::ClientContext contexts[3];
  auto first = stub_->Attach(&contexts[0]);
  NextStream();
  auto second = stub_->Attach(&contexts[1]);
  NextStream();
  auto third = stub_->Attach(&contexts[2]);
  EXPECT_EQ(third->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  service_->Shutdown();
  first->Finish();
  second->Finish();
}

TEST_F(WorkerServiceTest, ShutdownEndsStreamsAndRefusesNewOnes) {
  grpc::ClientContext context;
  auto call = stub_->Attach(&context);
  ASSERT_TRUE(call->Write(Hello()));
  NextStream();
  sink_.Next();  // no verdict comes any more
  service_->Shutdown();
  EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  grpc::ClientContext late;
  EXPECT_EQ(stub_->Attach(&late)->Finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(WorkerServiceTest, AClosedSinkEndsStreams) {
  sink_.Close();
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Attach(&context)->Finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace sluice
