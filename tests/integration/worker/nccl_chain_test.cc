#include <functional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "tests/integration/worker/worker_chain_testing.h"
#include "tests/nccl/nccl_testing.h"

// Tests of workers with NCCL links over the fake library; a test coordinator
// hands out their ids.

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NcclChainTest : public WorkerChainTest {
 protected:
  // The workers end before the guard checks for leftovers.
  ~NcclChainTest() override { workers_.clear(); }

  void Start(int n,
             const std::function<void(Worker::Options*)>& change = nullptr) {
    for (int i = 0; i < n; ++i) {
      workers_.push_back(std::make_unique<TestWorker>(absl::StrCat("w", i),
                                                      coordinator_.address(),
                                                      FakeTransport(), change));
      coordinator_.AwaitAttached(workers_[i]->name());
    }
  }

  v1::CoordinatorMessage NcclAssignment(int64_t epoch, int stage) {
    v1::CoordinatorMessage message = Assignment(epoch, stage);
    auto* assign = message.mutable_assign_stage();
    if (stage > 0) assign->set_previous_link(v1::LINK_TRANSPORT_NCCL);
    if (stage + 1 < assign->num_stages()) {
      assign->set_next_link(v1::LINK_TRANSPORT_NCCL);
    }
    return message;
  }

  v1::LinkId AwaitId(int stage, int64_t epoch) {
    return coordinator_
        .Await(workers_[stage]->name(),
               [&](const v1::WorkerMessage& m) {
                 return m.has_link_id() && m.link_id().epoch() == epoch;
               })
        .link_id();
  }

  void HandOn(int stage, int64_t epoch) {
    v1::CoordinatorMessage message;
    *message.mutable_link_id() = AwaitId(stage, epoch);
    EXPECT_EQ(message.link_id().id().size(), 128u);
    coordinator_.Send(workers_[stage + 1]->name(), message);
  }

  void AssignNccl(int64_t epoch) {
    const int n = static_cast<int>(workers_.size());
    for (int stage = n - 1; stage >= 0; --stage) {
      coordinator_.Send(workers_[stage]->name(), NcclAssignment(epoch, stage));
    }
    for (int stage = 0; stage + 1 < n; ++stage) HandOn(stage, epoch);
    for (const auto& worker : workers_) {
      coordinator_.AwaitReady(worker->name(), epoch);
    }
  }

  const FakeGpuGuard guard_;
};

TEST_F(NcclChainTest, RegistersWhatItsLinksMayGoBy) {
  Start(1);
  v1::Register registration = coordinator_.AwaitAttached("w0");
  EXPECT_THAT(registration.link_transports(),
              ElementsAre(v1::LINK_TRANSPORT_GRPC, v1::LINK_TRANSPORT_NCCL,
                          v1::LINK_TRANSPORT_TCP));
  EXPECT_THAT(registration.gpu_uuid(), HasSubstr("GPU-"));
  workers_.push_back(std::make_unique<TestWorker>(
      "insists", coordinator_.address(), FakeTransport(),
      [](Worker::Options* o) { o->links.choice = LinkChoice::kNccl; }));
  registration = coordinator_.AwaitAttached("insists");
  EXPECT_THAT(registration.link_transports(),
              ElementsAre(v1::LINK_TRANSPORT_NCCL));
  workers_.push_back(
      std::make_unique<TestWorker>("without", coordinator_.address()));
  registration = coordinator_.AwaitAttached("without");
  EXPECT_THAT(registration.link_transports(),
              ElementsAre(v1::LINK_TRANSPORT_GRPC, v1::LINK_TRANSPORT_TCP));
  EXPECT_EQ(registration.gpu_uuid(), "");
}

TEST_F(NcclChainTest, ThreeStagesKeepOrderWithBlocksInFlight) {
  Start(3);
  const long before = fake_gpu_counts().bytes_sent;
  AssignNccl(1);
  constexpr int kSteps = 20;
  ExpectStepsInOrder(kSteps, /*blocks=*/3);
  EXPECT_EQ(LinkBytes(0, "sent"), LinkBytes(1, "received"));
  EXPECT_EQ(LinkBytes(1, "sent"), LinkBytes(2, "received"));
  // Each block has two sequences of 3 rows and then of one, over two links.
  EXPECT_EQ(fake_gpu_counts().bytes_sent - before,
            2 * 3 * 2 * (3 + kSteps - 1) * 4 * FakeModel::kHidden);
}

TEST_F(NcclChainTest, NewEpochsReplaceOldOnes) {
  Start(3);
  for (int64_t epoch = 1; epoch <= 6; ++epoch) {
    AssignNccl(epoch);
    // Other steps of the old epoch in flight are forgotten.
    for (int step = 0; step < 5; ++step) {
      coordinator_.Send("w0", Step(epoch, 0, step));
    }
    ExpectResult(coordinator_.AwaitResult("w2"), epoch, 0, 0);
  }
  for (const auto& worker : workers_) EXPECT_EQ(worker->model().loads(), 1);
}

TEST_F(NcclChainTest, NextStageThatDiesMidStream) {
  Start(3);
  AssignNccl(1);
  ExpectStepWorks(1);
  fake_gpu_mute_errors(1);
  fake_gpu_stall_after(1);
  for (int step = 1; step < 20; ++step) {
    coordinator_.Send("w0", Step(1, 0, step));
  }
  AwaitStalled();
  workers_[1]->KillServer();
  EXPECT_EQ(coordinator_.AwaitFailed("w0", 1).code(),
            static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(coordinator_.AwaitFailed("w1", 1).code(),
            static_cast<int>(absl::StatusCode::kUnavailable));
}

TEST_F(NcclChainTest, StagesThatNcclCannotConnect) {
  Start(2);
  fake_gpu_fail_init(2);
  for (const int stage : {1, 0}) {
    coordinator_.Send(workers_[stage]->name(), NcclAssignment(1, stage));
  }
  HandOn(0, 1);
  coordinator_.Send("w0", Step(1, 0, 0));
  // Either end may have noticed first.
  const v1::StageFailed failed = coordinator_.AwaitFailed("w0", 1);
  EXPECT_EQ(failed.code(), static_cast<int>(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(failed.message(), HasSubstr("NCCL can't connect"));
  // Activations then go by gRPC.
  fake_gpu_fail_init(0);
  AssignAll(2);
  ExpectStepWorks(2);
}

TEST_F(NcclChainTest, IdsOfOtherEpochsAreDropped) {
  Start(2);
  AssignNccl(3);
  v1::CoordinatorMessage message;
  message.mutable_link_id()->set_epoch(2);
  message.mutable_link_id()->set_id(std::string(128, 'x'));
  coordinator_.Send("w1", message);
  ExpectStepWorks(3);
}

TEST_F(NcclChainTest, WorkerWithoutNcclRefusesSuchAStage) {
  workers_.push_back(
      std::make_unique<TestWorker>("w0", coordinator_.address()));
  coordinator_.AwaitAttached("w0");
  workers_.push_back(std::make_unique<TestWorker>("w1", coordinator_.address(),
                                                  FakeTransport()));
  coordinator_.AwaitAttached("w1");
  coordinator_.Send("w0", NcclAssignment(1, 0));
  const v1::StageFailed failed = coordinator_.AwaitFailed("w0", 1);
  EXPECT_EQ(failed.code(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(failed.message(), HasSubstr("which this worker has not"));
}

TEST_F(NcclChainTest, StagingMemoryIsTheDevices) {
  Start(2, [](Worker::Options* o) {
    o->machine.device.backend = BackendKind::kCpuDiscrete;
    o->machine.device_memory_bytes = 2 * 2 * 32 * FakeModel::kHidden * 4;
  });
  AssignNccl(1);  // one side each, of two payloads of 32 rows: half of it
  ExpectStepWorks(1);
  v1::CoordinatorMessage assignment = NcclAssignment(2, 1);
  assignment.mutable_assign_stage()->mutable_policy()->set_max_step_tokens(65);
  coordinator_.Send("w1", assignment);
  const v1::StageFailed failed = coordinator_.AwaitFailed("w1", 2);
  EXPECT_EQ(failed.code(),
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(failed.message(), HasSubstr("link staging"));
}

TEST_F(NcclChainTest, ShutdownInTheMiddleOfEverything) {
  Start(3);
  AssignNccl(1);
  fake_gpu_stall_after(1);
  for (int step = 0; step < 50; ++step) {
    coordinator_.Send("w0", Step(1, 0, step));
  }
  AwaitStalled();
  workers_.erase(workers_.begin() + 1);
  coordinator_.AwaitDetached("w1");
  workers_.clear();
  coordinator_.AwaitDetached("w0");
  coordinator_.AwaitDetached("w2");
}

}  // namespace
}  // namespace sluice
