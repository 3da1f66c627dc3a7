#include "proto/grpc_endpoint.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "proto/grpc_status.h"
#include "proto/wire_limits.h"
#include "sluice/v1/cluster.grpc.pb.h"
#include "sluice/v1/jobs.grpc.pb.h"
#include "sluice/v1/pipeline.grpc.pb.h"

namespace sluice {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Answers with a text of the given size, or with a status.
class Cluster : public v1::ClusterService::Service {
 public:
  grpc::Status GetClusterState(grpc::ServerContext*,
                               const v1::GetClusterStateRequest*,
                               v1::ClusterState* response) override {
    MutexLock lock(&mu_);
    response->set_plan(std::string(answer_bytes_, 'x'));
    return ToGrpcStatus(status_);
  }
  void Say(size_t answer_bytes, absl::Status status = absl::OkStatus()) {
    MutexLock lock(&mu_);
    answer_bytes_ = answer_bytes;
    status_ = std::move(status);
  }

 private:
  Mutex mu_;
  size_t answer_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// Answers with the size of the request.
class Jobs : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* response) override {
    response->set_prompt_tokens(static_cast<int64_t>(request->ByteSizeLong()));
    return grpc::Status::OK;
  }
};

// Sends an instruction of the size that the worker's heartbeat asks for.
class Workers : public v1::WorkerService::Service {
 public:
  grpc::Status Attach(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>*
          stream) override {
    v1::WorkerMessage ask;
    while (stream->Read(&ask)) {
      v1::CoordinatorMessage answer;
      answer.mutable_link_id()->set_id(
          std::string(ask.heartbeat().link_bytes_sent(), 'x'));
      stream->Write(answer);
    }
    return grpc::Status::OK;
  }
};

class EndpointTest : public ::testing::TestWithParam<bool> {
 protected:
  EndpointTest() {
    auto server =
        StartServer(ServerKind::kCoordinator, GetParam() ? "127.0.0.1:0" : "",
                    {&cluster_, &jobs_, &workers_}, &port_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~EndpointTest() override { server_->Shutdown(); }

  std::shared_ptr<grpc::Channel> Channel(ChannelKind kind) {
    return GetParam() ? OpenChannel(kind, absl::StrCat("127.0.0.1:", port_))
                      : LocalChannel(kind, server_.get());
  }

  // Asks for the size of an answer, or the error.
  absl::StatusOr<size_t> Ask() {
    grpc::ClientContext context;
    v1::ClusterState state;
    const absl::Status status = FromGrpcStatus(
        v1::ClusterService::NewStub(Channel(ChannelKind::kClient))
            ->GetClusterState(&context, {}, &state));
    if (!status.ok()) return status;
    return state.plan().size();
  }

  Cluster cluster_;
  Jobs jobs_;
  Workers workers_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_P(EndpointTest, AnswersFarBeyondGrpcsOwnLimit) {
  constexpr size_t kBytes = kMaxAnswerBytes - 64;
  cluster_.Say(kBytes);
  const auto got = Ask();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, kBytes);
}

TEST_P(EndpointTest, InstructionsFarBeyondGrpcsOwnLimit) {
  const auto stub = v1::WorkerService::NewStub(Channel(ChannelKind::kWorker));
  grpc::ClientContext context;
  const auto stream = stub->Attach(&context);
  v1::WorkerMessage ask;
  ask.mutable_heartbeat()->set_link_bytes_sent(uint64_t{72} << 20);
  ASSERT_TRUE(stream->Write(ask));
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.link_id().id().size(), uint64_t{72} << 20);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(EndpointTest, RequestsUpToTheLimitAndNotBeyond) {
  const auto stub = v1::JobService::NewStub(Channel(ChannelKind::kClient));
  const auto ask = [&](int64_t bytes) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_id(std::string(bytes - 5, 'x'));  // a tag, and a length of 4
    EXPECT_EQ(static_cast<int64_t>(request.ByteSizeLong()), bytes);
    v1::Job job;
    return FromGrpcStatus(stub->GetJob(&context, request, &job));
  };
  EXPECT_TRUE(ask(kMaxRequestBytes).ok());
  const absl::Status status = ask(kMaxRequestBytes + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("larger than max"));
}

TEST_P(EndpointTest, LongStatusesArrive) {
  for (const auto* character : {"x", "\xc3\xa9"}) {  // the other takes 6 bytes
    std::string text = "what was wrong: ";
    while (text.size() < 3 * kMaxStatusBytes) text += character;
    cluster_.Say(0, absl::DataLossError(text));
    const absl::Status status = Ask().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    const std::string got(status.message());
    EXPECT_THAT(got, StartsWith("what was wrong: "));
    EXPECT_THAT(got, EndsWith(absl::StrCat(character, " ...")));
    EXPECT_GE(static_cast<int64_t>(got.size()), kMaxStatusBytes - 2);
    EXPECT_LE(static_cast<int64_t>(got.size()), kMaxStatusBytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, EndpointTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Tcp" : "InProcess";
                         });

TEST(StartServerTest, PortThatIsTaken) {
  Cluster cluster;
  int port = 0;
  const auto first =
      StartServer(ServerKind::kCoordinator, "127.0.0.1:0", {&cluster}, &port);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_GT(port, 0);
  Jobs jobs;
  const auto second = StartServer(ServerKind::kWorker,
                                  absl::StrCat("127.0.0.1:", port), {&jobs});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("127.0.0.1:", port)));
  (*first)->Shutdown();
}

// On each connection, each end may receive what the other may send.
TEST(LimitsTest, AgreeOnBothEnds) {
  const EndpointLimits& coordinator = LimitsOf(ServerKind::kCoordinator);
  const EndpointLimits& worker = LimitsOf(ServerKind::kWorker);
  const EndpointLimits& by_client = LimitsOf(ChannelKind::kClient);
  const EndpointLimits& by_worker = LimitsOf(ChannelKind::kWorker);
  EXPECT_GE(by_client.max_receive_bytes, kMaxAnswerBytes);
  EXPECT_GE(by_worker.max_receive_bytes, kMaxInstructionBytes);
  EXPECT_GE(by_worker.max_send_bytes, kMaxFrameBytes);
  EXPECT_GE(coordinator.max_send_bytes, kMaxAnswerBytes);
  EXPECT_GE(coordinator.max_send_bytes, kMaxInstructionBytes);
  EXPECT_GE(coordinator.max_receive_bytes, by_client.max_send_bytes);
  EXPECT_GE(worker.max_receive_bytes, by_worker.max_send_bytes);
  // Pings that a server does not expect end its connection.
  for (const EndpointLimits* server : {&coordinator, &worker}) {
    EXPECT_LT(server->min_ping_interval_ms, by_worker.keepalive_ms);
  }
}

}  // namespace
}  // namespace sluice
