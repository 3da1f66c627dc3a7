#include "scheduler/steps/step_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using Reserve = StepScheduler::Reserve;

// "-release +admit | micro-batch | micro-batch": segments are
// sequence:start+tokens, with a "!" if they sample. "idle" if there is no step.
std::string Show(const std::optional<StepScheduler::StepDecision>& decision) {
  if (!decision) return "idle";
  std::vector<std::string> parts;
  for (SequenceId id : decision->release)
    parts.push_back(absl::StrCat("-", id.value()));
  for (SequenceId id : decision->admit)
    parts.push_back(absl::StrCat("+", id.value()));
  for (const auto& micro_batch : decision->micro_batches) {
    parts.push_back("|");
    for (const Segment& s : micro_batch) {
      parts.push_back(absl::StrCat(s.sequence.value(), ":", s.start, "+",
                                   s.num_tokens, s.sample ? "!" : ""));
    }
  }
  return absl::StrJoin(parts, " ");
}

class StepSchedulerTest : public ::testing::Test {
 protected:
  void Make(StepScheduler::Options options) {
    if (options.kv_pages == 0) options.kv_pages = 1000;
    auto made = StepScheduler::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    s_.emplace(*std::move(made));
  }
  void Enqueue(int64_t id, int32_t known, int32_t max,
               int64_t logit_biases = 0) {
    s_->Enqueue(SequenceId(id), known, max, logit_biases);
  }
  void Finish(int64_t id) { s_->Finish(SequenceId(id)); }
  void Done(int32_t block = 0) { s_->OnStepDone(BlockId(block)); }
  std::string Form(int32_t block = 0) {
    return Show(s_->FormStep(BlockId(block)));
  }
  // Has the block's step come back, and shows its next one.
  std::string Next(int32_t block = 0) {
    Done(block);
    return Form(block);
  }
  std::string Clear() {
    std::vector<int64_t> ids;
    for (SequenceId id : s_->Clear()) ids.push_back(id.value());
    return absl::StrJoin(ids, " ");
  }

  std::optional<StepScheduler> s_;
};

TEST_F(StepSchedulerTest, OptionsAreChecked) {
  const StepScheduler::Options good = {.kv_pages = 1};
  EXPECT_TRUE(good.Validate().ok());
  const auto bad = [&](auto change, const char* named) {
    StepScheduler::Options options = good;
    change(options);
    EXPECT_EQ(options.Validate().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(options.Validate().message()), HasSubstr(named));
    EXPECT_EQ(StepScheduler::Create(options).status(), options.Validate());
  };
  using Options = StepScheduler::Options;
  bad([](Options& o) { o.num_blocks = 0; }, "num_blocks 0");
  bad([](Options& o) { o.gbs = -1; }, "gbs -1");
  bad([](Options& o) { o.num_microbatches = 0; }, "num_microbatches 0");
  bad([](Options& o) { o.max_step_tokens = 0; }, "max_step_tokens 0");
  bad([](Options& o) { o.kv_pages = 0; }, "kv_pages 0");
  bad([](Options& o) { o.page_tokens = 0; }, "page_tokens 0");
  bad([](Options& o) { o.max_logit_biases = 0; }, "max_logit_biases 0");
  bad([](Options& o) { o.max_releases = 0; }, "max_releases 0");
  bad([](Options& o) { o.max_keeps = 0; }, "max_keeps 0");
  bad([](Options& o) { o.kv_window = {2, 3}; }, "2 pages of a window");
  bad([](Options& o) { o.kv_window = {-1, -1}; }, "-1 pages of a window");
  bad([](Options& o) { o.max_step_tokens = 63; }, "less than gbs 64");
  bad([](Options& o) { o.packing = false; }, "without packing");
}

TEST_F(StepSchedulerTest, NothingToDo) {
  Make({.num_blocks = 2});
  EXPECT_EQ(Form(0), "idle");
  EXPECT_EQ(Form(1), "idle");
  EXPECT_EQ(Clear(), "");
  Finish(5);
  Done(0);
  EXPECT_EQ(Form(0), "idle");
}

TEST_F(StepSchedulerTest, OneSequenceFromPromptToRelease) {
  Make({});
  Enqueue(7, 5, 8);
  EXPECT_EQ(s_->waiting(), 1);
  EXPECT_EQ(s_->running(), 0);
  EXPECT_EQ(Form(), "+7 | 7:0+5!");
  EXPECT_EQ(s_->waiting(), 0);
  EXPECT_EQ(s_->running(), 1);
  EXPECT_EQ(s_->pages_reserved(), 1);
  EXPECT_EQ(Form(), "idle") << "in flight";
  EXPECT_EQ(Next(), "| 7:5+1!");
  EXPECT_EQ(Next(), "| 7:6+1!");
  Done();
  Finish(7);
  EXPECT_EQ(s_->running(), 0);
  EXPECT_EQ(s_->pages_reserved(), 0);
  EXPECT_EQ(Form(), "-7");
  EXPECT_EQ(Next(), "idle");
}

TEST_F(StepSchedulerTest, NeverPlansBeyondTheReservedPositions) {
  Make({});
  Enqueue(1, 2, 3);
  EXPECT_EQ(Form(), "+1 | 1:0+2!");
  EXPECT_EQ(Next(), "| 1:2+1!");
  EXPECT_EQ(Next(), "idle");
  Finish(1);
  EXPECT_EQ(Form(), "-1");
}

TEST_F(StepSchedulerTest, PrefillIsCutAndDecodeComesFirst) {
  Make({.gbs = 4, .max_step_tokens = 8});
  Enqueue(1, 3, 100);
  EXPECT_EQ(Form(), "+1 | 1:0+3!");
  Enqueue(2, 10, 100);
  Enqueue(3, 4, 100);
  Enqueue(4, 1, 100);
  EXPECT_EQ(Next(), "+2 | 1:3+1! 2:0+7");
  EXPECT_EQ(Next(), "+3 | 1:4+1! 2:7+3! 3:0+4!");
  EXPECT_EQ(Next(), "+4 | 1:5+1! 2:10+1! 3:4+1! 4:0+1!");
  EXPECT_EQ(Next(), "| 1:6+1! 2:11+1! 3:5+1! 4:1+1!");
}

TEST_F(StepSchedulerTest, APlanHasRoomForSoManyLogitBiases) {
  Make({.gbs = 8, .max_step_tokens = 64, .max_logit_biases = 10});
  Enqueue(1, 1, 9, 6);
  Enqueue(2, 1, 9, 4);
  Enqueue(3, 1, 9, 1);
  Enqueue(4, 1, 9, 20);
  Enqueue(5, 1, 9, 1);
  EXPECT_EQ(Form(), "+1 +2 | 1:0+1! 2:0+1!");
  EXPECT_EQ(Next(), "+3 | 1:1+1! 2:1+1! 3:0+1!") << "4 does not fit with it";
  EXPECT_EQ(Next(), "+4 | 1:2+1! 2:2+1! 3:1+1! 4:0+1!")
      << "beyond the limit, alone";
  EXPECT_EQ(Next(), "+5 | 1:3+1! 2:3+1! 3:2+1! 4:1+1! 5:0+1!");
}

TEST_F(StepSchedulerTest, APlanHasRoomForSoManyReleases) {
  Make({.gbs = 8, .max_step_tokens = 64, .max_releases = 2});
  for (int id = 1; id <= 6; ++id) Enqueue(id, 1, 9);
  EXPECT_EQ(Form(),
            "+1 +2 +3 +4 +5 +6 | 1:0+1! 2:0+1! 3:0+1! 4:0+1! 5:0+1! 6:0+1!");
  Done();
  for (int id = 1; id <= 5; ++id) Finish(id);
  EXPECT_EQ(Form(), "-1 -2");
  EXPECT_EQ(Form(), "idle") << "in flight";
  EXPECT_EQ(Next(), "-3 -4");
  EXPECT_EQ(Next(), "-5 | 6:1+1!") << "what ran goes on where it was";
  EXPECT_EQ(Next(), "| 6:2+1!");
}

TEST_F(StepSchedulerTest, AChunkThatEndsAtTheBudgetSamplesNothing) {
  Make({.gbs = 4, .max_step_tokens = 4});
  Enqueue(1, 8, 100);
  EXPECT_EQ(Form(), "+1 | 1:0+4");
  EXPECT_EQ(Next(), "| 1:4+4!");
  EXPECT_EQ(Next(), "| 1:8+1!");
}

TEST_F(StepSchedulerTest, DecodeIsNeverHeldUpByPrefill) {
  Make({.gbs = 3, .max_step_tokens = 3});
  Enqueue(1, 1, 100);
  Enqueue(2, 1, 100);
  Enqueue(3, 5, 100);
  EXPECT_EQ(Form(), "+1 +2 +3 | 1:0+1! 2:0+1! 3:0+1");
  EXPECT_EQ(Next(), "| 1:1+1! 2:1+1! 3:1+1");
  Done();
  Finish(1);
  EXPECT_EQ(Form(), "-1 | 2:2+1! 3:2+2");
  EXPECT_EQ(Next(), "| 2:3+1! 3:4+1!");
  EXPECT_EQ(Next(), "| 2:4+1! 3:5+1!");
}

// Two chunks of which the longer has 50 tokens are 100 rows.
TEST_F(StepSchedulerTest, WithoutPackingAChunkCountsAsMuchAsTheLongest) {
  Make({.gbs = 4,
        .max_step_tokens = 100,
        .reserve = Reserve::kMaximum,
        .packing = false});
  Enqueue(1, 30, 40);
  Enqueue(2, 60, 80);
  Enqueue(3, 20, 30);
  EXPECT_EQ(Form(), "+1 +2 | 1:0+30! 2:0+50");
  EXPECT_EQ(Next(), "+3 | 1:30+1! 2:50+10! 3:0+20!");
  EXPECT_EQ(Next(), "| 1:31+1! 2:60+1! 3:20+1!");
}

TEST_F(StepSchedulerTest, AFreedSlotIsRefilledInTheSameStep) {
  Make({.gbs = 2, .max_step_tokens = 8});
  Enqueue(1, 2, 100);
  Enqueue(2, 2, 100);
  Enqueue(3, 3, 100);
  EXPECT_EQ(Form(), "+1 +2 | 1:0+2! 2:0+2!");
  EXPECT_EQ(s_->waiting(), 1);
  Done();
  Finish(1);
  EXPECT_EQ(Form(), "-1 +3 | 2:2+1! 3:0+3!");
}

TEST_F(StepSchedulerTest, WithoutRefillABlockRunsEmptyFirst) {
  Make({.gbs = 2, .max_step_tokens = 4, .refill = false});
  Enqueue(1, 4, 100);
  Enqueue(2, 2, 100);
  Enqueue(3, 3, 100);
  // Admits all that it may hold, though this step has no tokens for 2.
  EXPECT_EQ(Form(), "+1 +2 | 1:0+4!");
  EXPECT_EQ(Next(), "| 1:4+1! 2:0+2!");
  Done();
  Finish(1);
  EXPECT_EQ(Form(), "-1 | 2:2+1!");
  Done();
  Finish(2);
  EXPECT_EQ(Form(), "-2 +3 | 3:0+3!");
}

TEST_F(StepSchedulerTest, PagesLimitAdmissionWithoutOvertaking) {
  Make({.kv_pages = 4, .page_tokens = 10, .reserve = Reserve::kMaximum});
  EXPECT_TRUE(s_->Fits(40));
  EXPECT_FALSE(s_->Fits(41));
  Enqueue(1, 1, 11);  // 2 pages
  Enqueue(2, 1, 30);  // 3
  Enqueue(3, 1, 10);  // 1: would fit, but 2 was first
  EXPECT_EQ(Form(), "+1 | 1:0+1!");
  EXPECT_EQ(s_->pages_reserved(), 2);
  EXPECT_EQ(Next(), "| 1:1+1!");
  Done();
  Finish(1);
  EXPECT_EQ(Form(), "-1 +2 +3 | 2:0+1! 3:0+1!");
  EXPECT_EQ(s_->pages_reserved(), 4);
}

TEST_F(StepSchedulerTest, FewSequencesAreSpreadOverBlocksAndMicroBatches) {
  Make({.num_blocks = 2, .gbs = 4, .num_microbatches = 2});
  for (int i = 1; i <= 6; ++i) Enqueue(i, 2, 10);
  EXPECT_EQ(Form(0), "+1 +2 +3 | 1:0+2! 3:0+2! | 2:0+2!");
  EXPECT_EQ(Form(1), "+4 +5 +6 | 4:0+2! 6:0+2! | 5:0+2!");
}

TEST_F(StepSchedulerTest, ASequenceStaysInItsMicroBatch) {
  Make({.gbs = 2, .num_microbatches = 2});
  for (int i = 1; i <= 4; ++i) Enqueue(i, 1, 10);
  EXPECT_EQ(Form(), "+1 +2 +3 +4 | 1:0+1! 3:0+1! | 2:0+1! 4:0+1!");
  Done();
  Finish(1);
  Finish(3);
  EXPECT_EQ(Form(), "-1 -3 | 2:1+1! 4:1+1!") << "the empty one is left out";
  Enqueue(5, 1, 10);
  EXPECT_EQ(Next(), "+5 | 5:0+1! | 2:2+1! 4:2+1!");
}

TEST_F(StepSchedulerTest, AFullMicroBatchLeavesNewSequencesToTheOthers) {
  Make({.gbs = 4, .num_microbatches = 2, .max_step_tokens = 4});
  for (int i = 1; i <= 4; ++i) Enqueue(i, i == 1 ? 9 : 1, 20);
  EXPECT_EQ(Form(), "+1 +2 +3 | 1:0+4 | 2:0+1! 3:0+1!")
      << "4 waits: two is a micro-batch's even share";
  EXPECT_EQ(Next(), "| 1:4+4 | 2:1+1! 3:1+1!");
  EXPECT_EQ(Next(), "+4 | 1:8+1! 4:0+1! | 2:2+1! 3:2+1!");
}

TEST_F(StepSchedulerTest, ScarcePagesAreSharedByTheBlocks) {
  Make({.num_blocks = 2, .kv_pages = 5, .page_tokens = 10});
  for (int i = 1; i <= 10; ++i) Enqueue(i, 1, 10);
  EXPECT_EQ(Form(0), "+1 +2 +3 | 1:0+1! 2:0+1! 3:0+1!");
  EXPECT_EQ(Form(1), "+4 +5 | 4:0+1! 5:0+1!");
}

TEST_F(StepSchedulerTest, ASequenceLargerThanABlocksShareOfPages) {
  Make({.num_blocks = 2,
        .kv_pages = 6,
        .page_tokens = 10,
        .reserve = Reserve::kMaximum});
  Enqueue(1, 1, 10);
  Enqueue(2, 1, 10);
  Enqueue(3, 1, 40);
  Enqueue(4, 1, 10);
  EXPECT_EQ(Form(0), "+1 +2 | 1:0+1! 2:0+1!");
  EXPECT_EQ(Form(1), "+3 | 3:0+1!");
  EXPECT_EQ(s_->waiting(), 1) << "no page is left";
  Done(0);
  Finish(2);
  EXPECT_EQ(Form(0), "-2 +4 | 1:1+1! 4:0+1!");
}

TEST_F(StepSchedulerTest, ABlockWaitsForASequenceAtItsMaximum) {
  Make({.num_blocks = 2, .gbs = 2});
  Enqueue(1, 2, 2);
  Enqueue(2, 2, 2);
  Enqueue(3, 2, 9);
  EXPECT_EQ(Form(0), "+1 +2 | 1:0+2! 2:0+2!");
  EXPECT_EQ(Form(1), "+3 | 3:0+2!");
  Done(0);
  Finish(1);
  EXPECT_EQ(Form(0), "idle") << "2 holds its pages";
  EXPECT_EQ(Next(1), "-1 | 3:2+1!");
  Finish(2);
  EXPECT_EQ(Next(1), "-2 | 3:3+1!");
}

TEST_F(StepSchedulerTest, ReleaseRidesOnAnyBlocksNextStep) {
  Make({.num_blocks = 2});
  Enqueue(1, 1, 10);
  Enqueue(2, 1, 10);
  EXPECT_EQ(Form(0), "+1 | 1:0+1!");
  EXPECT_EQ(Form(1), "+2 | 2:0+1!");
  Done(0);
  Finish(1);
  EXPECT_EQ(Form(0), "idle") << "no step of its own while another is in flight";
  EXPECT_EQ(Next(1), "-1 | 2:1+1!");
  Done(1);
  Finish(2);
  EXPECT_EQ(Form(0), "-2");
  EXPECT_EQ(Form(1), "idle");
}

TEST_F(StepSchedulerTest, NoStepForReleasesWhileAnotherBlockHasWork) {
  Make({.num_blocks = 2});
  Enqueue(1, 1, 10);
  Enqueue(2, 1, 10);
  Form(0);
  Form(1);
  Done(0);
  Done(1);
  Finish(1);
  EXPECT_EQ(Form(0), "idle");
  EXPECT_EQ(Form(1), "-1 | 2:1+1!");
}

TEST_F(StepSchedulerTest, NoStepForReleasesWhileACancelledOneIsInFlight) {
  Make({.num_blocks = 2});
  Enqueue(1, 1, 10);
  Enqueue(2, 1, 10);
  Form(0);
  Form(1);
  Finish(1);
  Done(1);
  Finish(2);
  EXPECT_EQ(s_->running(), 0);
  EXPECT_EQ(Form(1), "idle");
  EXPECT_EQ(Next(0), "-2 -1");
}

TEST_F(StepSchedulerTest, ABlocksShareOfPagesComesBack) {
  Make({.num_blocks = 2,
        .kv_pages = 8,
        .page_tokens = 10,
        .reserve = Reserve::kMaximum});
  const auto enqueue = [&] {
    for (int i = 1; i <= 11; ++i) Enqueue(i, 1, i == 5 ? 40 : 10);
  };
  const char* const kFour = "+1 +2 +3 +4 | 1:0+1! 2:0+1! 3:0+1! 4:0+1!";
  enqueue();
  EXPECT_EQ(Form(0), kFour);
  EXPECT_EQ(Form(1), "+5 | 5:0+1!");
  Done(0);
  for (int i = 1; i <= 4; ++i) Finish(i);
  EXPECT_EQ(Form(0), "-1 -2 -3 -4 +6 +7 +8 +9 | 6:0+1! 7:0+1! 8:0+1! 9:0+1!");
  EXPECT_EQ(Clear(), "5 6 7 8 9 10 11");
  enqueue();
  EXPECT_EQ(Form(0), kFour);
}

TEST_F(StepSchedulerTest, CancelledInFlightIsReleasedAfterItsStep) {
  Make({.num_blocks = 2, .kv_pages = 2});
  Enqueue(1, 1, 32);
  Enqueue(2, 1, 32);
  Enqueue(3, 1, 32);
  EXPECT_EQ(Form(0), "+1 | 1:0+1!");
  EXPECT_EQ(Form(1), "+2 | 2:0+1!");
  Finish(1);
  Finish(1);
  EXPECT_EQ(s_->running(), 1);
  EXPECT_EQ(s_->pages_reserved(), 2) << "still in the plan in flight";
  EXPECT_EQ(Next(1), "| 2:1+1!");
  EXPECT_EQ(Next(0), "-1 +3 | 3:0+1!");
}

TEST_F(StepSchedulerTest, CancelledWhileWaitingIsForgotten) {
  Make({.gbs = 1, .max_step_tokens = 8});
  for (int i = 1; i <= 4; ++i) Enqueue(i, 1, 10);
  EXPECT_EQ(Form(), "+1 | 1:0+1!");
  Finish(2);
  Finish(4);
  EXPECT_EQ(s_->waiting(), 1);
  Done();
  Finish(1);
  EXPECT_EQ(Form(), "-1 +3 | 3:0+1!");
  EXPECT_EQ(s_->waiting(), 0);
}

TEST_F(StepSchedulerTest, CancelledInPrefill) {
  Make({.gbs = 4, .max_step_tokens = 4});
  Enqueue(1, 10, 20);
  EXPECT_EQ(Form(), "+1 | 1:0+4");
  Finish(1);
  EXPECT_EQ(Next(), "-1");
  EXPECT_EQ(Next(), "idle");
}

TEST_F(StepSchedulerTest, ClearForgetsEverything) {
  Make({.num_blocks = 2, .gbs = 2, .max_step_tokens = 4});
  for (int i = 1; i <= 7; ++i) Enqueue(i, 1, 10);
  EXPECT_EQ(Form(1), "+1 +2 | 1:0+1! 2:0+1!");
  EXPECT_EQ(Form(0), "+3 +4 | 3:0+1! 4:0+1!");
  Finish(3);  // in flight: already finished, so not returned
  Done(1);
  Finish(1);  // its release is pending
  Finish(6);
  EXPECT_EQ(Clear(), "2 4 5 7");
  EXPECT_EQ(s_->waiting(), 0);
  EXPECT_EQ(s_->running(), 0);
  EXPECT_EQ(s_->pages_reserved(), 0);
  EXPECT_EQ(Form(0), "idle") << "neither in flight nor anything to release";
  // Sequences come again for replay, with what was generated.
  Enqueue(2, 3, 10);
  Enqueue(4, 2, 10);
  EXPECT_EQ(Form(0), "+2 | 2:0+3!");
  EXPECT_EQ(Form(1), "+4 | 4:0+2!");
}

TEST_F(StepSchedulerTest, RunningOnesAreClearedInOrderOfAdmission) {
  Make({.num_blocks = 2, .gbs = 4, .num_microbatches = 2});
  for (int i = 8; i >= 1; --i) Enqueue(i, 1, 10);
  Form(1);
  Form(0);
  Enqueue(9, 1, 10);
  EXPECT_EQ(Clear(), "8 7 6 5 4 3 2 1 9");
}

TEST_F(StepSchedulerTest, LateArrivalsFillTheEmptierBlock) {
  Make({.num_blocks = 2});
  Enqueue(1, 1, 10);
  EXPECT_EQ(Form(0), "+1 | 1:0+1!");
  Enqueue(2, 1, 10);
  EXPECT_EQ(Next(0), "| 1:1+1!") << "2 is block 1's";
  EXPECT_EQ(Form(1), "+2 | 2:0+1!");
}

TEST_F(StepSchedulerTest, MayBeMoved) {
  Make({});
  Enqueue(1, 1, 10);
  Enqueue(2, 1, 10);
  StepScheduler moved = *std::move(s_);
  moved.Finish(SequenceId(1));
  EXPECT_EQ(Show(moved.FormStep(BlockId(0))), "+2 | 2:0+1!");
}

}  // namespace
}  // namespace sluice
