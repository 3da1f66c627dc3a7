#include "coordinator/cluster/links/link_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kGrpc = v1::LINK_TRANSPORT_GRPC;
constexpr auto kNccl = v1::LINK_TRANSPORT_NCCL;
constexpr auto kTcp = v1::LINK_TRANSPORT_TCP;

LinkAbility Only(const std::string& name) { return {.worker = name}; }
LinkAbility Either(const std::string& name) {
  return {.worker = name, .nccl = true, .gpu = "GPU-" + name};
}
LinkAbility Insists(const std::string& name) {
  LinkAbility ability = Either(name);
  ability.grpc = false;
  return ability;
}

LinkAbility WithTcp(LinkAbility ability) {
  ability.tcp = true;
  return ability;
}

TEST(LinkAbilityTest, IsWhatTheWorkerRegistered) {
  v1::Register info;
  info.set_name("w");
  LinkAbility ability = LinkAbility::Of(info);  // of an older worker
  EXPECT_TRUE(ability.grpc);
  EXPECT_FALSE(ability.nccl);
  info.add_link_transports(kNccl);
  info.set_gpu_uuid("GPU-1");
  ability = LinkAbility::Of(info);
  EXPECT_FALSE(ability.grpc);
  EXPECT_TRUE(ability.nccl);
  EXPECT_EQ(ability.gpu, "GPU-1");
  info.add_link_transports(kGrpc);
  EXPECT_TRUE(LinkAbility::Of(info).grpc);
  EXPECT_FALSE(LinkAbility::Of(info).tcp);
  info.add_link_transports(kTcp);
  EXPECT_TRUE(LinkAbility::Of(info).tcp);
}

TEST(LinkAbilityTest, FailedLinksAreNotedFromTheBestOn) {
  v1::Register info;
  std::set<v1::LinkTransport> failed;
  EXPECT_FALSE(NoteFailedLink(info, &failed));
  for (const auto transport : {kGrpc, kTcp, kNccl}) {
    info.add_link_transports(transport);
  }
  EXPECT_TRUE(NoteFailedLink(info, &failed));
  EXPECT_THAT(failed, ElementsAre(kNccl));
  EXPECT_TRUE(NoteFailedLink(info, &failed));
  EXPECT_THAT(failed, ElementsAre(kNccl, kTcp));
  EXPECT_FALSE(NoteFailedLink(info, &failed));
}

TEST(PlanLinksTest, NcclWhereBothEndsHaveIt) {
  EXPECT_THAT(PlanLinks({Only("a")}).links, ElementsAre());
  EXPECT_THAT(PlanLinks({Either("a"), Either("b"), Only("c"), Either("d"),
                         Insists("e"), Insists("f")})
                  .links,
              ElementsAre(kNccl, kGrpc, kGrpc, kNccl, kNccl));
}

TEST(PlanLinksTest, NotOnOneGpu) {
  LinkAbility twin = Either("b");
  twin.gpu = "GPU-a";
  EXPECT_THAT(PlanLinks({Either("a"), twin}).links, ElementsAre(kGrpc));
  const LinkPlan plan = PlanLinks({Insists("a"), twin});
  EXPECT_EQ(plan.misfit, 0);
  EXPECT_THAT(plan.why, HasSubstr("both are on GPU-a"));
}

TEST(PlanLinksTest, NotWhereItFailed) {
  LinkAbility failed = Either("b");
  failed.failed = {kNccl};
  EXPECT_THAT(PlanLinks({Either("a"), failed, Either("c")}).links,
              ElementsAre(kGrpc, kGrpc));
  // A worker that insists on NCCL gets it even after a failure.
  EXPECT_THAT(PlanLinks({Insists("a"), failed}).links, ElementsAre(kNccl));
}

TEST(PlanLinksTest, TcpWhereBothEndsHaveNothingBetter) {
  EXPECT_THAT(PlanLinks({WithTcp(Only("a")), WithTcp(Only("b")), Only("c"),
                         WithTcp(Either("d")), WithTcp(Either("e")),
                         Either("f"), WithTcp(Only("g"))})
                  .links,
              ElementsAre(kTcp, kGrpc, kGrpc, kNccl, kNccl, kGrpc));
  LinkAbility failed = WithTcp(Either("b"));
  failed.failed = {kNccl};
  EXPECT_THAT(PlanLinks({WithTcp(Either("a")), failed}).links,
              ElementsAre(kTcp));
  failed.failed = {kNccl, kTcp};
  EXPECT_THAT(PlanLinks({WithTcp(Either("a")), failed}).links,
              ElementsAre(kGrpc));
  // There is nothing else for a worker that insists.
  LinkAbility insists = WithTcp(Only("a"));
  insists.grpc = false;
  EXPECT_THAT(PlanLinks({insists, failed}).links, ElementsAre(kTcp));
  const LinkPlan plan = PlanLinks({Only("b"), insists});
  EXPECT_EQ(plan.misfit, 1);
  EXPECT_THAT(plan.why,
              AllOf(HasSubstr("worker 'a' was started with --link tcp"),
                    HasSubstr("worker 'b' has no TCP links")));
}

TEST(PlanLinksTest, WhoInsistsInVainIsNamed) {
  LinkPlan plan = PlanLinks({Only("a"), Only("b"), Insists("c")});
  EXPECT_EQ(plan.misfit, 2);
  EXPECT_THAT(plan.why,
              AllOf(HasSubstr("worker 'c' was started with --link nccl"),
                    HasSubstr("worker 'b' has no NCCL links")));
  plan = PlanLinks({Insists("a"), Only("b")});
  EXPECT_EQ(plan.misfit, 0);
  EXPECT_THAT(plan.why, HasSubstr("can't be linked to worker 'b'"));
}

}  // namespace
}  // namespace sluice
