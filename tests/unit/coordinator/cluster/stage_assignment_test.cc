#include "coordinator/cluster/stage_assignment.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using Action = PlanDecision::Action;
using Stages = std::vector<StageAssignment>;

// A settled cluster of `names`, ids from 1 on, four layers.
ClusterView View(const std::vector<std::string>& names) {
  ClusterView view;
  for (size_t i = 0; i < names.size(); ++i) {
    view.workers.push_back({WorkerId(i + 1), names[i], {}, ""});
  }
  view.num_layers = 4;
  view.since_change = absl::Seconds(1);
  view.settle_time = absl::Milliseconds(200);
  return view;
}

StageAssignment Stage(int worker, int begin, int end) {
  return {WorkerId(worker), {begin, end}};
}

TEST(DecidePlanTest, WaitsForTheLeastNumberOfWorkers) {
  ClusterView view = View({"a"});
  view.min_workers = 2;
  const PlanDecision decision = DecidePlan(view);
  EXPECT_EQ(decision.action, Action::kWait);
  EXPECT_EQ(decision.detail, "waiting for workers: 1 of 2 registered");
  view = View({});
  EXPECT_EQ(DecidePlan(view).detail, "waiting for workers: 0 of 1 registered");
}

TEST(DecidePlanTest, EndsAPlanWhenTooFewAreLeft) {
  ClusterView view = View({"a"});
  view.min_workers = 2;
  view.plan_stages = 1;
  EXPECT_EQ(DecidePlan(view).action, Action::kWait);
}

TEST(DecidePlanTest, SplitsTheLayersByName) {
  const PlanDecision decision = DecidePlan(View({"c", "a", "b"}));
  ASSERT_EQ(decision.action, Action::kPlan);
  EXPECT_EQ(decision.stages,
            (Stages{Stage(2, 0, 2), Stage(3, 2, 3), Stage(1, 3, 4)}));
}

TEST(DecidePlanTest, HasNoMoreStagesThanLayers) {
  ClusterView view = View({"a", "b", "c"});
  view.num_layers = 2;
  PlanDecision decision = DecidePlan(view);
  ASSERT_EQ(decision.action, Action::kPlan);
  EXPECT_EQ(decision.stages, (Stages{Stage(1, 0, 1), Stage(2, 1, 2)}));
  view.plan_stages = 2;  // the third is a spare
  EXPECT_EQ(DecidePlan(view).action, Action::kKeep);
}

TEST(DecidePlanTest, WaitsUntilMembershipIsStable) {
  ClusterView view = View({"a", "b"});
  view.since_change = absl::Milliseconds(199);
  EXPECT_EQ(DecidePlan(view).action, Action::kWait);
  EXPECT_EQ(DecidePlan(view).detail, "planning");
  view.plan_stages = 1;
  EXPECT_EQ(DecidePlan(view).action, Action::kKeep);
  view.since_change = absl::Milliseconds(200);
  EXPECT_EQ(DecidePlan(view).action, Action::kPlan);
}

TEST(DecidePlanTest, KeepsAPlanThatUsesEverybody) {
  ClusterView view = View({"a", "b"});
  view.plan_stages = 2;
  EXPECT_EQ(DecidePlan(view).action, Action::kKeep);
}

TEST(DecidePlanTest, APlanEndsForOneWithoutAWorkerThatIsToGo) {
  ClusterView view = View({"a", "b"});  // without the third, which is to go
  view.plan_stages = 3;
  view.min_workers = 2;
  EXPECT_EQ(DecidePlan(view).action, Action::kKeep);
  view.plan_withdrawn = true;
  EXPECT_EQ(DecidePlan(view).action, Action::kPlan);
  EXPECT_EQ(DecidePlan(view).stages, (Stages{Stage(1, 0, 2), Stage(2, 2, 4)}));
  view.since_change = absl::ZeroDuration();  // others may be to go, too
  EXPECT_EQ(DecidePlan(view).action, Action::kKeep);
  view.since_change = view.settle_time;
  // It ends, too, if the others can't be linked.
  view.broken = [](WorkerId, WorkerId) { return true; };
  EXPECT_EQ(DecidePlan(view).action, Action::kWait);
  EXPECT_TRUE(DecidePlan(view).unlinked);
  view.broken = nullptr;
  view.min_workers = 3;
  EXPECT_EQ(DecidePlan(view).action, Action::kWait);
}

TEST(DecidePlanTest, GivesWorkersTheLayersThatTheyHold) {
  ClusterView view = View({"a", "b", "c"});
  view.num_layers = 6;
  view.workers[0].loaded = {4, 6};
  view.workers[2].loaded = {0, 2};
  EXPECT_EQ(DecidePlan(view).stages,
            (Stages{Stage(3, 0, 2), Stage(2, 2, 4), Stage(1, 4, 6)}));
  // Two of three are left: the larger overlap wins, the other moves.
  view = View({"a", "b"});
  view.num_layers = 6;
  view.workers[0].loaded = {2, 4};
  view.workers[1].loaded = {0, 2};
  EXPECT_EQ(DecidePlan(view).stages, (Stages{Stage(2, 0, 3), Stage(1, 3, 6)}));
}

TEST(DecidePlanTest, LeavesOutWorkersThatFailed) {
  ClusterView view = View({"a", "b", "c"});
  view.workers[1].failure = "no memory";
  EXPECT_EQ(DecidePlan(view).stages, (Stages{Stage(1, 0, 2), Stage(3, 2, 4)}));
  // It does not come back into a plan that works without it.
  view.plan_stages = 2;
  EXPECT_EQ(DecidePlan(view).action, Action::kKeep);
}

TEST(DecidePlanTest, OrdersStagesSoThatLinksWork) {
  ClusterView view = View({"a", "b", "c"});
  // Nobody reaches c, which may be the first.
  view.broken = [](WorkerId, WorkerId to) { return to == WorkerId(3); };
  EXPECT_EQ(DecidePlan(view).stages,
            (Stages{Stage(3, 0, 2), Stage(1, 2, 3), Stage(2, 3, 4)}));
  // Nor b: one of them sits out.
  view.broken = [](WorkerId, WorkerId to) { return to > WorkerId(1); };
  EXPECT_EQ(DecidePlan(view).stages.size(), 2u);
  EXPECT_EQ(DecidePlan(view).stages[1].worker, WorkerId(1));
  // A plan of as many stages goes on.
  view.plan_stages = 2;
  EXPECT_EQ(DecidePlan(view).action, Action::kKeep);
}

TEST(DecidePlanTest, WaitsWhereTooFewCanBeLinked) {
  ClusterView view = View({"a", "b", "c"});
  view.min_workers = 2;
  view.workers[1].out_for = absl::Seconds(3);
  view.workers[2].out_for = absl::Seconds(9);
  // Those left out are taken until there are two that can be linked.
  view.broken = [](WorkerId from, WorkerId to) {
    return from == WorkerId(2) || to == WorkerId(2);
  };
  EXPECT_EQ(DecidePlan(view).stages, (Stages{Stage(1, 0, 2), Stage(3, 2, 4)}));
  view.broken = [](WorkerId, WorkerId) { return true; };
  const PlanDecision decision = DecidePlan(view);
  EXPECT_EQ(decision.action, Action::kWait);
  EXPECT_TRUE(decision.unlinked);
  EXPECT_EQ(decision.detail,
            "waiting for workers: of 3 no 2 can be linked to each other");
}

TEST(DecidePlanTest, TheFirstPlanWaitsForTestsOfLinks) {
  ClusterView view = View({"a", "b"});
  view.testing_links = true;
  EXPECT_EQ(DecidePlan(view).action, Action::kWait);
  EXPECT_EQ(DecidePlan(view).detail, "testing links between workers");
  view.plan_stages = 1;
  EXPECT_EQ(DecidePlan(view).action, Action::kPlan);
}

TEST(DecidePlanTest, DoesNotWaitWhereTheCulpritSitsOut) {
  ClusterView view = View({"a", "b", "c"});
  view.min_workers = 2;
  view.workers[2].out_for = absl::Seconds(3);
  view.back_off = absl::Seconds(40);
  EXPECT_EQ(DecidePlan(view).action, Action::kWait);
  view.culprit_known = true;
  EXPECT_EQ(DecidePlan(view).action, Action::kPlan);
  view.workers[1].out_for = absl::Seconds(3);
  EXPECT_EQ(DecidePlan(view).action, Action::kWait);
}

TEST(DecidePlanTest, TriesFailedWorkersAgainWhenTheyAreNeeded) {
  ClusterView view = View({"a", "b"});
  view.min_workers = 2;
  view.workers[1].failure = "no memory";
  view.last_failure = "worker 'b' failed: no memory";
  view.back_off = absl::Seconds(1);
  const PlanDecision decision = DecidePlan(view);
  EXPECT_EQ(decision.action, Action::kWait);
  EXPECT_EQ(decision.detail, "worker 'b' failed: no memory");
  view.back_off = absl::ZeroDuration();
  EXPECT_EQ(DecidePlan(view).stages, (Stages{Stage(1, 0, 2), Stage(2, 2, 4)}));
}

}  // namespace
}  // namespace sluice
