#include "coordinator/cluster/groups/worker_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using What = GroupDecision::Action;
using Groups = std::vector<std::vector<WorkerId>>;

// Settled workers of these names, ids from 1 on, in no pipeline.
GroupView GroupsOf(const std::vector<std::string>& names, int32_t replicas) {
  GroupView view;
  for (size_t i = 0; i < names.size(); ++i) {
    view.workers.push_back({WorkerId(static_cast<int64_t>(i) + 1), names[i]});
  }
  view.pipelines = {{}};
  view.registered = static_cast<int32_t>(names.size());
  view.replicas = replicas;
  view.since_change = absl::Seconds(1);
  view.settle_time = absl::Milliseconds(200);
  return view;
}

TEST(DecideGroupsTest, OnePipelineHasEverybodyAtOnce) {
  GroupView view = GroupsOf({"a", "b"}, 1);
  view.since_change = absl::ZeroDuration();
  view.min_workers = 3;
  const GroupDecision decision = DecideGroups(view);
  ASSERT_EQ(decision.action, What::kJoin);
  ASSERT_EQ(decision.joins.size(), 2u);
  EXPECT_EQ(decision.joins[1].pipeline, 0u);
  EXPECT_EQ(DecideGroups(GroupsOf({}, 1)).action, What::kKeep);
}

TEST(DecideGroupsTest, WaitsForMinWorkersAndOneForEachPipeline) {
  GroupView view = GroupsOf({"a", "b"}, 3);
  GroupDecision decision = DecideGroups(view);
  EXPECT_EQ(decision.action, What::kWait);
  EXPECT_EQ(decision.detail, "waiting for workers: 2 of 3 registered");
  view = GroupsOf({"a", "b", "c"}, 2);
  view.min_workers = 4;
  EXPECT_EQ(DecideGroups(view).detail,
            "waiting for workers: 3 of 4 registered");
  view.min_workers = 3;
  view.since_change = absl::Milliseconds(199);
  EXPECT_EQ(DecideGroups(view).action, What::kWait);
  view.since_change = view.settle_time;
  EXPECT_EQ(DecideGroups(view).action, What::kGroup);
}

TEST(DecideGroupsTest, DealsWorkersOutByName) {
  EXPECT_EQ(DecideGroups(GroupsOf({"d", "a", "c", "b"}, 2)).groups,
            (Groups{{WorkerId(2), WorkerId(4)}, {WorkerId(3), WorkerId(1)}}));
  const Groups groups =
      DecideGroups(GroupsOf({"a", "b", "c", "d", "e"}, 3)).groups;
  ASSERT_EQ(groups.size(), 3u);
  for (const auto& group : groups) {
    EXPECT_GE(group.size(), 1u);
    EXPECT_LE(group.size(), 2u);
  }
}

TEST(DecideGroupsTest, FixedPlansGetTheWorkersThatTheyName) {
  GroupView view = GroupsOf({"a", "b", "c", "d", "e"}, 2);
  view.fixed = {{"d", "nobody"}, {"", "a"}};
  EXPECT_EQ(DecideGroups(view).groups,
            (Groups{{WorkerId(4), WorkerId(2), WorkerId(5)},
                    {WorkerId(1), WorkerId(3)}}));
}

TEST(DecideGroupsTest, NewcomersJoinTheirFormerOrTheSmallestPipeline) {
  GroupView view = GroupsOf({"a", "b", "c", "d", "e"}, 2);
  view.workers[0].pipeline = 0;
  view.workers[1].pipeline = 1;
  view.workers[2].former = 0;
  view.pipelines = {{}, {}};
  const GroupDecision decision = DecideGroups(view);
  ASSERT_EQ(decision.action, What::kJoin);
  ASSERT_EQ(decision.joins.size(), 3u);
  EXPECT_EQ(decision.joins[0].worker, WorkerId(3));
  EXPECT_EQ(decision.joins[0].pipeline, 0u);
  EXPECT_EQ(decision.joins[1].pipeline, 1u);
  EXPECT_EQ(decision.joins[2].pipeline, 0u);
}

TEST(DecideGroupsTest, AsksThePlanner) {
  GroupView view = GroupsOf({"a", "b", "c"}, 1);
  view.searched = true;
  view.min_workers = 3;
  EXPECT_EQ(DecideGroups(view).action, What::kSearch);
  view.min_workers = 4;
  EXPECT_EQ(DecideGroups(view).action, What::kWait);
  // A newcomer waits for the planner, but not who comes back.
  view.min_workers = 2;
  view.workers[0].pipeline = view.workers[1].pipeline = 0;
  EXPECT_EQ(DecideGroups(view).action, What::kSearch);
  view.workers[2].former = 0;
  EXPECT_EQ(DecideGroups(view).action, What::kJoin);
  view.workers[2].pipeline = 0;
  view.since_change = absl::ZeroDuration();
  EXPECT_EQ(DecideGroups(view).action, What::kKeep);
}

TEST(DecideGroupsTest, GroupsAnewWhenNoPipelineHasItsLeast) {
  GroupView view = GroupsOf({"a", "b", "c"}, 1);
  view.searched = true;
  view.min_workers = 3;
  view.workers[0].pipeline = view.workers[1].pipeline = 0;
  view.pipelines = {{.least = 3}};
  EXPECT_EQ(DecideGroups(view).action, What::kSearch);
  // By rules, too.
  view = GroupsOf({"a", "b", "c", "d"}, 2);
  view.min_workers = 4;
  view.workers[0].pipeline = 0;
  view.workers[1].pipeline = 1;
  view.workers[2].pipeline = 2;
  view.workers[3].pipeline = 2;
  view.pipelines = {{.least = 2}, {.least = 2}, {.least = 3}};
  EXPECT_EQ(DecideGroups(view).action, What::kGroup);
  view.since_change = absl::ZeroDuration();
  EXPECT_EQ(DecideGroups(view).action, What::kWait);
  view.pipelines[2].least = 2;
  EXPECT_EQ(DecideGroups(view).action, What::kKeep);
}

TEST(DecideGroupsTest, ThePlannerIsNotAskedForFewerThanTheLeast) {
  GroupView view = GroupsOf({"a", "b", "c"}, 1);
  view.searched = true;
  view.min_workers = 4;
  view.workers[0].pipeline = view.workers[1].pipeline = 0;
  view.pipelines = {{.least = 2}};
  EXPECT_EQ(DecideGroups(view).action, What::kKeep);
}

TEST(DecideGroupsTest, NobodyJoinsAPipelineOfAnEarlierLayout) {
  GroupView view = GroupsOf({"a", "b", "c"}, 2);
  view.workers[0].pipeline = 0;
  view.workers[1].pipeline = 2;
  view.pipelines = {{}, {.laid_out = false}, {}};
  const GroupDecision decision = DecideGroups(view);
  ASSERT_EQ(decision.joins.size(), 1u);
  EXPECT_EQ(decision.joins[0].pipeline, 0u);
}

TEST(MinWorkersOfTest, IsThePipelinesPart) {
  EXPECT_EQ(MinWorkersOf(3, 1, 2), 3);  // one pipeline waits for all of them
  EXPECT_EQ(MinWorkersOf(4, 2, 2), 2);
  EXPECT_EQ(MinWorkersOf(5, 2, 3), 2);
  EXPECT_EQ(MinWorkersOf(4, 2, 1), 1);
  EXPECT_EQ(MinWorkersOf(1, 2, 4), 1);
}

}  // namespace
}  // namespace sluice
