// Tests of Pace, StageHeldAt, LinkBlame, LeftOut, Losses and RateDifferences.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/absent_workers.h"
#include "coordinator/cluster/links/link_facts.h"
#include "coordinator/cluster/stall.h"
#include "coordinator/cluster/worker_facts.h"
#include "tests/support/sample_profile.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr absl::Duration kSecond = absl::Seconds(1);

TEST(PaceTest, StallsAfterTheLeast) {
  Pace pace;
  pace.Passed(30 * kSecond);
  EXPECT_FALSE(pace.stalled(30 * kSecond));
  pace.Passed(kSecond);
  EXPECT_TRUE(pace.stalled(30 * kSecond));
  pace.Moved();
  EXPECT_FALSE(pace.stalled(30 * kSecond));
}

TEST(PaceTest, WhatTookLongBeforeMayTakeLonger) {
  Pace pace;
  for (int i = 0; i < 20; ++i) {
    pace.Passed(kSecond);
    pace.Stood(kSecond);
  }
  pace.Moved();  // after 19 seconds that reports show
  pace.Passed(190 * kSecond);
  EXPECT_FALSE(pace.stalled(30 * kSecond));
  pace.Passed(kSecond);
  EXPECT_TRUE(pace.stalled(30 * kSecond));
  pace.Start();
  pace.Passed(31 * kSecond);
  EXPECT_TRUE(pace.stalled(30 * kSecond));
}

TEST(PaceTest, RareReportsAreNoStandstill) {
  Pace pace;
  for (int i = 0; i < 5; ++i) {
    pace.Passed(9 * kSecond);
    pace.Moved();
  }
  pace.Passed(31 * kSecond);
  EXPECT_TRUE(pace.stalled(30 * kSecond));
}

v1::Activity At(v1::Activity::Kind kind, int64_t last_step_out,
                int64_t epoch = 3) {
  v1::Activity activity;
  activity.set_kind(kind);
  activity.set_epoch(epoch);
  activity.set_last_step_out(last_step_out);
  return activity;
}

TEST(StageHeldAtTest, IsTheFirstThatHasNotHandedTheStepOn) {
  constexpr auto kComputing = v1::Activity::KIND_COMPUTING;
  constexpr auto kWaiting = v1::Activity::KIND_WAITING;
  constexpr auto kBlocked = v1::Activity::KIND_BLOCKED;
  struct Case {
    std::vector<v1::Activity> stages;
    size_t culprit;
  };
  const Case cases[] = {
      // Step 7 waits at the stage with this index.
      {{At(kComputing, 6), At(kWaiting, 6), At(kWaiting, 6)}, 0},
      {{At(kWaiting, 9), At(kComputing, 6), At(kWaiting, 6)}, 1},
      {{At(kWaiting, 9), At(kWaiting, 9), At(kComputing, 6)}, 2},
      // The stages before can't hand on their results.
      {{At(kBlocked, 5), At(kBlocked, 5), At(kComputing, 5)}, 2},
      {{At(kBlocked, 6), At(kComputing, 6), At(kWaiting, 6)}, 1},
      // The second stage claims to wait, but has got the step.
      {{At(kWaiting, 7), At(kWaiting, 6), At(kWaiting, 6)}, 1},
      // The second stage never takes anything, nor reports its activity.
      {{At(kBlocked, 0), {}, At(kWaiting, 0)}, 1},
      {{{}, At(kWaiting, 0), At(kWaiting, 0)}, 0},
      // The second stage's activity is of another plan.
      {{At(kWaiting, 9), At(kWaiting, 9, 2), At(kWaiting, 6)}, 1},
      // All report that they have done their part.
      {{At(kWaiting, 7), At(kWaiting, 7), At(kWaiting, 7)}, 2},
      {{At(kWaiting, 7)}, 0},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(StageHeldAt(cases[i].stages, PlanEpoch(3), 7), cases[i].culprit)
        << "case " << i;
  }
}

TEST(LinkBlameTest, TheFarEndIsToBlame) {
  LinkBlame blame;
  EXPECT_EQ(blame.OnUnreached("a", "b").culprit, "b");
  EXPECT_EQ(blame.OnUnreached("a", "b").culprit, "b");
  EXPECT_EQ(blame.OnUnreached("c", "b").culprit, "b");
}

TEST(LinkBlameTest, WhoReachesNobodyIsCutOff) {
  LinkBlame blame;
  EXPECT_EQ(blame.OnUnreached("a", "b").culprit, "b");
  const LinkBlame::Verdict verdict = blame.OnUnreached("a", "c");
  EXPECT_EQ(verdict.culprit, "a");
  EXPECT_THAT(verdict.innocent, ElementsAre("b", "c"));
}

TEST(LinkBlameTest, WhomOthersCannotReachEitherIsNotExcused) {
  LinkBlame blame;
  blame.OnUnreached("a", "b");
  blame.OnUnreached("x", "c");
  const LinkBlame::Verdict verdict = blame.OnUnreached("a", "c");
  EXPECT_EQ(verdict.culprit, "c");
  EXPECT_THAT(verdict.innocent, IsEmpty());
}

TEST(LinkBlameTest, ForgetsWhatNoLongerHolds) {
  LinkBlame blame;
  blame.OnUnreached("a", "b");
  blame.OnReached("a", "b");
  EXPECT_EQ(blame.OnUnreached("a", "c").culprit, "c");
  blame.Forget("c");  // it came back
  EXPECT_EQ(blame.OnUnreached("a", "d").culprit, "d");
  blame.Forget("a");
  EXPECT_EQ(blame.OnUnreached("a", "e").culprit, "e");
}

TEST(LeftOutTest, EachTimeTwiceAsLong) {
  LeftOut out(10 * kSecond, 60 * kSecond);
  absl::Duration now = 1000 * kSecond;
  EXPECT_EQ(out.Find("w", now), nullptr);
  for (const int seconds : {10, 20, 40, 60, 60}) {
    out.Add("w", absl::StrCat("why ", seconds), now);
    const LeftOut::Entry* entry = out.Find("w", now);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->why, absl::StrCat("why ", seconds));
    now += seconds * kSecond;
    EXPECT_EQ(entry->until, now);
    EXPECT_EQ(out.Find("w", now), nullptr);
  }
  out.Add("w", "", now);
  out.Pardon("w");
  EXPECT_EQ(out.Find("w", now), nullptr);
  out.Add("w", "", now);
  EXPECT_EQ(out.Find("w", now)->until, now + 10 * kSecond);
  // The failures are long ago.
  now += 200 * kSecond;
  out.Add("w", "", now);
  EXPECT_EQ(out.Find("w", now)->until, now + 10 * kSecond);
}

TEST(LossesTest, OnlyWhenTheyComeInARowNewcomersWait) {
  Losses losses(10 * kSecond, 60 * kSecond);
  absl::Duration now = 1000 * kSecond;
  EXPECT_FALSE(losses.hold(false, now));
  losses.Add(3);
  EXPECT_FALSE(losses.hold(false, now));
  losses.Begin(now);
  EXPECT_FALSE(losses.hold(true, now));
  losses.Progress(3, now);
  losses.Add(3);
  EXPECT_FALSE(losses.hold(false, now));
  for (const int seconds : {10, 20, 40, 60, 60}) {
    losses.Add(3);
    now += 1000 * kSecond;  // however long it takes to load
    EXPECT_TRUE(losses.hold(false, now));
    losses.Begin(now);
    EXPECT_TRUE(losses.hold(true, now));
    now += seconds * kSecond;
    EXPECT_FALSE(losses.hold(true, now));
  }
}

TEST(LossesTest, WhatFewerGetDoneSaysNothingOfTheOthersButInTheLongRun) {
  Losses losses(10 * kSecond, 60 * kSecond);
  const absl::Duration now = 1000 * kSecond;
  losses.Add(3);
  losses.Add(2);
  losses.Begin(now);
  losses.Progress(2, now);
  EXPECT_EQ(losses.in_a_row(), 2);
  losses.Progress(3, now);
  EXPECT_EQ(losses.in_a_row(), 0);
  losses.Add(3);
  losses.Add(3);
  losses.Begin(now);
  losses.Progress(2, now + 70 * kSecond);
  EXPECT_EQ(losses.in_a_row(), 2);
  losses.Progress(2, now + 71 * kSecond);
  EXPECT_EQ(losses.in_a_row(), 0);
}

TEST(LeftOutTest, IsBounded) {
  LeftOut out(10 * kSecond, 60 * kSecond);
  for (int i = 0; i < 5000; ++i) {
    out.Add(absl::StrCat("w", i), "", i * absl::Milliseconds(1));
  }
  const absl::Duration now = 5 * kSecond;
  EXPECT_EQ(out.Find("w0", now), nullptr);
  EXPECT_NE(out.Find("w4999", now), nullptr);
}

TEST(AbsentWorkersTest, NewestFirstBoundedAndForgotten) {
  AbsentWorkers absent;
  EXPECT_EQ(absent.newest(), "");
  EXPECT_TRUE(absent.Refused("r", "another model", kSecond));
  EXPECT_FALSE(absent.Refused("r", "another model", 2 * kSecond));
  EXPECT_TRUE(absent.Refused("r", "same name", 2 * kSecond));
  absent.Lost("l", "no heartbeat", 4 * kSecond);
  EXPECT_EQ(absent.newest(), "worker 'l' was lost: no heartbeat");
  v1::ClusterState state;
  absent.Describe(10 * kSecond, &state);
  ASSERT_EQ(state.absent_size(), 2);
  EXPECT_EQ(state.absent(0).name(), "l");
  EXPECT_EQ(state.absent(0).kind(), v1::AbsentWorker::KIND_LOST);
  EXPECT_EQ(state.absent(0).seconds_ago(), 6);
  EXPECT_EQ(state.absent(1).reason(), "same name");
  absent.Left("s", "the worker was stopped", 9 * kSecond);
  EXPECT_EQ(absent.newest(), "worker 's' was stopped");
  absent.Present("s");
  absent.Present("l");
  EXPECT_EQ(absent.newest(), "worker 'r' was refused: same name");
  for (int i = 0; i < 1000; ++i) {
    absent.Lost(absl::StrCat("w", i), "", 5 * kSecond);
  }
  state.Clear();
  absent.Describe(10 * kSecond, &state);
  EXPECT_EQ(state.absent_size(), 128);
  state.Clear();
  absent.Describe(absl::Hours(2), &state);
  EXPECT_EQ(state.absent_size(), 0);
}

TEST(RateDifferencesTest, NamesWhatDiffersOnly) {
  MachineProfile before = SampleProfile();
  before.disk = {};
  MachineProfile now = before;
  ScaleResource(Resource::kDeviceCompute, 0.5, &now);
  EXPECT_EQ(RateDifferences(before, now).find("disk"), std::string::npos);
  EXPECT_EQ(RateDifferences(before, now).find("products at best "), 0u)
      << RateDifferences(before, now);
  before.disk.read_bytes_per_second = 3e9;
  now = before;
  ScaleResource(Resource::kDiskRead, 2.0 / 3, &now);
  EXPECT_EQ(RateDifferences(before, now), "disk reads 2 GB/s, not 3");
  // A difference that does not show is none.
  before.disk.write_bytes_per_second = 1e9;
  now.disk.write_bytes_per_second = 1e9 + 1;
  EXPECT_EQ(RateDifferences(before, now), "disk reads 2 GB/s, not 3");
}

TEST(ClipTextTest, DoesNotCutWithinACharacter) {
  EXPECT_EQ(ClipText("abc", 4), "abc");
  EXPECT_EQ(ClipText("abcd", 4), "abcd");
  EXPECT_EQ(ClipText("abc\u00e9", 4), "abc");
  EXPECT_EQ(ClipText("abc\u00e9", 5), "abc\u00e9");
  EXPECT_EQ(ClipText("a\U0001f600", 4), "a");
  EXPECT_EQ(ClipText("", 4), "");
}

}  // namespace
}  // namespace sluice
