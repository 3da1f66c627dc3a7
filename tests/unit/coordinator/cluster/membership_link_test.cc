#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>

#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Phase = Membership::Phase;

constexpr auto kOverGrpc = v1::LINK_TRANSPORT_GRPC;
constexpr auto kOverNccl = v1::LINK_TRANSPORT_NCCL;
constexpr auto kOverTcp = v1::LINK_TRANSPORT_TCP;

class MembershipLinkTest : public MembershipTest {
 protected:
  std::shared_ptr<RecordingStream> Attach(
      int64_t id, const std::string& name,
      std::initializer_list<v1::LinkTransport> transports) {
    v1::WorkerMessage message = Register(name);
    v1::Register* info = message.mutable_register_();
    for (const v1::LinkTransport transport : transports) {
      info->add_link_transports(transport);
    }
    info->set_gpu_uuid("GPU-" + name);
    return MembershipTest::Attach(id, std::move(message));
  }

  void TellId(int64_t from, const std::string& link, int64_t epoch = 0) {
    v1::WorkerMessage message;
    message.mutable_link_id()->set_epoch(
        epoch > 0 ? epoch : members().plan().epoch().value());
    message.mutable_link_id()->set_id(link);
    members().OnMessage(WorkerId(from), std::move(message));
  }

  std::string NextLink(int64_t id) {
    v1::ClusterState state;
    members().Describe(&state);
    for (const v1::WorkerInfo& info : state.workers()) {
      if (info.id() == id) return info.next_link();
    }
    return "?";
  }
};

TEST_F(MembershipLinkTest, HandsIdsOnToTheNextStage) {
  options_.min_workers = 3;
  auto a = Attach(1, "a", {kOverGrpc, kOverNccl});
  auto b = Attach(2, "b", {kOverGrpc, kOverNccl});
  auto c = Attach(3, "c", {kOverGrpc});
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(a->sent.back().assign_stage().next_link(), kOverNccl);
  EXPECT_EQ(b->sent.back().assign_stage().previous_link(), kOverNccl);
  EXPECT_EQ(b->sent.back().assign_stage().next_link(), kOverGrpc);
  EXPECT_EQ(c->sent.back().assign_stage().previous_link(), kOverGrpc);
  EXPECT_EQ(NextLink(1), "nccl");
  EXPECT_EQ(NextLink(2), "grpc");
  EXPECT_EQ(NextLink(3), "");

  TellId(1, "secret");
  ASSERT_TRUE(b->sent.back().has_link_id());
  EXPECT_EQ(b->sent.back().link_id().id(), "secret");
  EXPECT_EQ(b->sent.back().link_id().epoch(), members().plan().epoch().value());
  // Ids of gRPC links, of no link and of another epoch are dropped.
  TellId(2, "no");
  TellId(3, "no");
  TellId(1, "no", 77);
  EXPECT_FALSE(c->sent.back().has_link_id());
  EXPECT_EQ(b->sent.back().link_id().id(), "secret");
  EXPECT_FALSE(a->sent.back().has_link_id());
}

TEST_F(MembershipLinkTest, IdsOfImpossibleSizeEndTheWorker) {
  auto a = Attach(1, "a", {kOverNccl});
  auto b = Attach(2, "b", {kOverNccl});
  Settle();
  TellId(1, std::string(2000, 'x'));
  EXPECT_EQ(a->broken.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(b->sent.back().has_link_id());
}

// NCCL does not work between two machines, and no worker insists on it.
TEST_F(MembershipLinkTest, FallsBackToGrpc) {
  auto a = Attach(1, "a", {kOverGrpc, kOverNccl});
  auto b = Attach(2, "b", {kOverGrpc, kOverNccl});
  Settle();
  EXPECT_EQ(a->sent.back().assign_stage().next_link(), kOverNccl);
  // The end that only saw its link break was faster.
  Failed(1, absl::StatusCode::kUnavailable, "the receiver ended it");
  Failed(2, absl::StatusCode::kUnimplemented, "NCCL can't connect");
  EXPECT_EQ(State(2), "WORKER_STATE_SPARE");  // not to blame
  clock_.Advance(options_.timeouts.first_back_off);
  members().Advance();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(members().plan().epoch().value(), 2);
  EXPECT_EQ(a->sent.back().assign_stage().next_link(), kOverGrpc);
  EXPECT_EQ(b->sent.back().assign_stage().previous_link(), kOverGrpc);
  // Another unimplemented function has nothing to do with links.
  Failed(2, absl::StatusCode::kUnimplemented, "no such kernel");
  EXPECT_EQ(State(2), "WORKER_STATE_FAILED");
  // NCCL is tried again with another worker.
  Attach(3, "c", {kOverGrpc, kOverNccl});
  Settle();
  EXPECT_EQ(a->sent.back().assign_stage().epoch(), 3);
  EXPECT_EQ(a->sent.back().assign_stage().next_link(), kOverNccl);
}

// Something between two machines lets only gRPC through.
TEST_F(MembershipLinkTest, FallsBackFromTcpToGrpc) {
  auto a = Attach(1, "a", {kOverGrpc, kOverTcp});
  auto b = Attach(2, "b", {kOverGrpc, kOverTcp});
  Settle();
  EXPECT_EQ(a->sent.back().assign_stage().next_link(), kOverTcp);
  EXPECT_EQ(b->sent.back().assign_stage().previous_link(), kOverTcp);
  EXPECT_EQ(NextLink(1), "tcp");
  // Ids of TCP do not come this way.
  TellId(1, "no");
  EXPECT_FALSE(b->sent.back().has_link_id());
  Failed(1, absl::StatusCode::kUnimplemented, "no TCP connection");
  EXPECT_EQ(State(1), "WORKER_STATE_SPARE");  // not to blame
  clock_.Advance(options_.timeouts.first_back_off);
  members().Advance();
  ASSERT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(a->sent.back().assign_stage().next_link(), kOverGrpc);
  EXPECT_EQ(NextLink(1), "grpc");
}

TEST_F(MembershipLinkTest, WhoInsistsInVainKeepsThePlanFromStarting) {
  Attach(1, "a", {kOverNccl});
  auto b = Attach(2, "b", {kOverGrpc});
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_THAT(members().detail(),
              HasSubstr("worker 'a' was started with --link nccl, but can't be "
                        "linked to worker 'b'"));
  EXPECT_EQ(State(1), "WORKER_STATE_FAILED");
  EXPECT_FALSE(b->sent.back().has_assign_stage());
  // A third worker that does not insist takes its place.
  auto c = Attach(3, "c", {kOverGrpc});
  Settle();
  members().Advance();
  clock_.Advance(absl::Minutes(1));
  members().Advance();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_TRUE(c->sent.back().has_assign_stage());
}

TEST_F(MembershipLinkTest, AWorkerThatIsStoppedIsNotKeptForWhoInsistsInVain) {
  auto a = Attach(1, "a", {kOverGrpc});
  Attach(2, "b", {kOverGrpc});
  Settle();
  Ready(1);
  Ready(2);
  Attach(3, "c", {kOverNccl});
  Settle();
  ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  v1::WorkerMessage message;
  message.mutable_leave();
  members().OnMessage(WorkerId(1), std::move(message));
  Settle();
  EXPECT_TRUE(absl::IsCancelled(a->broken));
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_THAT(members().detail(), HasSubstr("was started with --link nccl"));
}

TEST_F(MembershipLinkTest, WhoInsistsInVainDoesNotEndAPlan) {
  Attach(1, "a", {kOverGrpc});
  Attach(2, "b", {kOverGrpc});
  Settle();
  Ready(1);
  Ready(2);
  ASSERT_EQ(members().plan().phase(), Phase::kRunning);
  auto c = Attach(3, "c", {kOverNccl});
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kRunning);
  EXPECT_EQ(members().plan().epoch().value(), 1);
  EXPECT_EQ(State(3), "WORKER_STATE_FAILED");
  EXPECT_FALSE(c->sent.back().has_assign_stage());
}

}  // namespace
}  // namespace sluice
