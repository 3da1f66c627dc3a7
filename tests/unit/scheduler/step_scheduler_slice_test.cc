#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/steps/step_scheduler.h"

// Steps that follow each other without waiting: each decision exactly.

namespace sluice {
namespace {

class StepSchedulerSliceTest : public ::testing::Test {
 protected:
  void Make(StepScheduler::Options options) {
    options.kv_pages = 1000;
    auto made = StepScheduler::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    s_.emplace(*std::move(made));
  }
  void Enqueue(int64_t id, int32_t known, int32_t max) {
    s_->Enqueue(SequenceId(id), known, max);
  }
  void Done(int32_t block = 0) { s_->OnStepDone(BlockId(block)); }
  void Finish(int64_t id) { s_->Finish(SequenceId(id)); }

  // "block 0: -release +admit | sequence:start+tokens", with a "!" where it
  // samples; "slice of 0" if it is one.
  std::string Next() {
    const auto next = s_->FormNext();
    if (!next) return "none";
    std::string text = absl::StrCat(next->slice ? "slice of " : "block ",
                                    next->block.value(), ":");
    for (SequenceId id : next->decision.release) {
      absl::StrAppend(&text, " -", id.value());
    }
    for (SequenceId id : next->decision.admit) {
      absl::StrAppend(&text, " +", id.value());
    }
    for (const auto& micro_batch : next->decision.micro_batches) {
      absl::StrAppend(&text, " |");
      for (const Segment& s : micro_batch) {
        absl::StrAppend(&text, " ", s.sequence.value(), ":", s.start, "+",
                        s.num_tokens, s.sample ? "!" : "");
      }
    }
    return text;
  }

  std::optional<StepScheduler> s_;
};

TEST_F(StepSchedulerSliceTest, APromptsChunksFollowEachOther) {
  Make({.gbs = 2, .max_step_tokens = 4, .steps_in_flight = 4});
  Enqueue(1, 10, 20);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:4+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:8+2!");
  EXPECT_EQ(Next(), "none") << "all of it is on its way";
  Done();
  EXPECT_EQ(Next(), "none");
  Done();
  EXPECT_EQ(Next(), "none");
  Done();
  EXPECT_EQ(Next(), "block 0: | 1:10+1!");
  EXPECT_EQ(Next(), "none") << "decoding waits for its token";
}

TEST_F(StepSchedulerSliceTest, OnlyAsManyAsKeepThePipelineFull) {
  Make({.gbs = 2, .max_step_tokens = 4, .steps_in_flight = 3});
  Enqueue(1, 20, 30);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:4+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:8+4");
  EXPECT_EQ(Next(), "none");
  Done();
  EXPECT_EQ(Next(), "block 0: | 1:12+4");
  EXPECT_EQ(Next(), "none");
  Done();
  EXPECT_EQ(Next(), "slice of 0: | 1:16+4!");
}

TEST_F(StepSchedulerSliceTest, NoneWithoutTheOption) {
  Make({.gbs = 2, .max_step_tokens = 4});
  Enqueue(1, 10, 20);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+4");
  EXPECT_EQ(Next(), "none");
}

TEST_F(StepSchedulerSliceTest, DecodingIsInStepsOnly) {
  Make({.gbs = 3, .max_step_tokens = 4, .steps_in_flight = 3});
  Enqueue(1, 3, 20);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+3!");
  Enqueue(2, 9, 20);
  EXPECT_EQ(Next(), "slice of 0: +2 | 2:0+4") << "1 sits out";
  Done();
  EXPECT_EQ(Next(), "block 0: | 1:3+1! 2:4+3") << "before the slice is back";
  EXPECT_EQ(Next(), "slice of 0: | 2:7+2!");
  EXPECT_EQ(Next(), "none");
  Done();  // the first slice
  EXPECT_EQ(Next(), "none");
  Done();  // the step
  EXPECT_EQ(Next(), "block 0: | 1:4+1!") << "2's first token is on its way";
  Done();  // the last slice
  EXPECT_EQ(Next(), "none");
  Done();
  EXPECT_EQ(Next(), "block 0: | 1:5+1! 2:9+1!");
}

TEST_F(StepSchedulerSliceTest, BlocksShareThePipeline) {
  Make({.num_blocks = 2, .gbs = 2, .max_step_tokens = 4, .steps_in_flight = 5});
  Enqueue(1, 40, 50);
  Enqueue(2, 40, 50);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+4");
  EXPECT_EQ(Next(), "block 1: +2 | 2:0+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:4+4");
  EXPECT_EQ(Next(), "slice of 1: | 2:4+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:8+4");
  EXPECT_EQ(Next(), "none");
  Done(1);
  EXPECT_EQ(Next(), "block 1: | 2:8+4") << "steps go before slices";
}

TEST_F(StepSchedulerSliceTest, ACancelledPromptIsReleasedAfterItsLastSlice) {
  Make({.gbs = 1, .max_step_tokens = 4, .steps_in_flight = 3});
  Enqueue(1, 30, 40);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:4+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:8+4");
  Finish(1);
  Enqueue(2, 3, 9);
  Done();
  EXPECT_EQ(Next(), "none") << "it keeps its slot";
  Done();
  EXPECT_EQ(Next(), "none");
  EXPECT_GT(s_->pages_reserved(), 0);
  Done();
  EXPECT_EQ(s_->pages_reserved(), 0);
  EXPECT_EQ(Next(), "block 0: -1 +2 | 2:0+3!");
}

TEST_F(StepSchedulerSliceTest, SlicesGetShorterAsTheyAttendToMore) {
  // 8 rows without context are 8 x (1 + 4 / 8) = 12 rows' worth.
  Make({.gbs = 2,
        .max_step_tokens = 8,
        .steps_in_flight = 9,
        .slice_context = 8});
  Enqueue(1, 30, 40);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+8");
  EXPECT_EQ(Next(), "slice of 0: | 1:8+5");   // 5 x (1 + 10.5 / 8) = 11.6
  EXPECT_EQ(Next(), "slice of 0: | 1:13+4");  // 4 x (1 + 15 / 8) = 11.5
  EXPECT_EQ(Next(), "slice of 0: | 1:17+3");
  EXPECT_EQ(Next(), "slice of 0: | 1:20+3");
  EXPECT_EQ(Next(), "slice of 0: | 1:23+2");
  EXPECT_EQ(Next(), "slice of 0: | 1:25+2");
  EXPECT_EQ(Next(), "slice of 0: | 1:27+2");
  EXPECT_EQ(Next(), "slice of 0: | 1:29+1!");
}

TEST_F(StepSchedulerSliceTest, AtAnyContextThereIsARowAtLeast) {
  Make({.gbs = 4, .max_step_tokens = 4, .slice_context = 1});
  Enqueue(1, 20, 30);
  Enqueue(2, 1, 9);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+4");
  Done();
  EXPECT_EQ(Next(), "block 0: | 1:4+2");
  for (int start = 6; start < 19; ++start) {
    Done();
    EXPECT_EQ(Next(), absl::StrCat("block 0: | 1:", start, "+1"));
  }
  Done();
  EXPECT_EQ(Next(), "block 0: | 1:19+1!") << "nothing is left for 2";
  Done();
  EXPECT_EQ(Next(), "block 0: +2 | 1:20+1! 2:0+1!");
}

TEST_F(StepSchedulerSliceTest, ClearForgetsWhatIsInFlight) {
  Make({.gbs = 2, .max_step_tokens = 4, .steps_in_flight = 3});
  Enqueue(1, 10, 20);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+4");
  EXPECT_EQ(Next(), "slice of 0: | 1:4+4");
  EXPECT_EQ(s_->Clear().size(), 1u);
  Done();  // of the old epoch
  EXPECT_EQ(Next(), "none");
  Enqueue(1, 5, 20);
  EXPECT_EQ(Next(), "block 0: +1 | 1:0+4");
}

TEST_F(StepSchedulerSliceTest, OptionsAreChecked) {
  StepScheduler::Options options = {.steps_in_flight = -1, .kv_pages = 1};
  EXPECT_FALSE(options.Validate().ok());
  options.steps_in_flight = 0;
  options.slice_context = kMaxSliceContext + 1;
  EXPECT_FALSE(options.Validate().ok());
  options.slice_context = kMaxSliceContext;
  EXPECT_TRUE(options.Validate().ok());
  options.reserve = StepScheduler::Reserve::kMaximum;
  options.packing = false;
  EXPECT_FALSE(options.Validate().ok());
}

}  // namespace
}  // namespace sluice
