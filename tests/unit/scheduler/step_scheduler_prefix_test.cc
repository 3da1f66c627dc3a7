#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/steps/step_scheduler.h"

// Requests that begin alike, as tables of exact decisions. Pages have 4 tokens.

namespace sluice {
namespace {

// "^id=source:positions -release +admit(source:positions) | micro-batch".
std::string Show(const std::optional<StepScheduler::StepDecision>& decision) {
  if (!decision) return "idle";
  std::vector<std::string> parts;
  const auto prefix = [](const SharedPrefix& p) {
    return absl::StrCat(p.source.value(), ":", p.positions);
  };
  for (const KeptPrefix& keep : decision->keep) {
    parts.push_back(
        absl::StrCat("^", keep.id.value(), "=", prefix(keep.prefix)));
  }
  for (SequenceId id : decision->release) {
    parts.push_back(absl::StrCat("-", id.value()));
  }
  for (size_t i = 0; i < decision->admit.size(); ++i) {
    const SharedPrefix& shared = decision->prefixes[i];
    parts.push_back(absl::StrCat(
        "+", decision->admit[i].value(),
        shared.positions > 0 ? absl::StrCat("(", prefix(shared), ")") : ""));
  }
  for (const auto& micro_batch : decision->micro_batches) {
    parts.push_back("|");
    for (const Segment& s : micro_batch) {
      parts.push_back(absl::StrCat(s.sequence.value(), ":", s.start, "+",
                                   s.num_tokens, s.sample ? "!" : ""));
    }
  }
  return absl::StrJoin(parts, " ");
}

class PrefixTest : public ::testing::Test {
 protected:
  void Make(StepScheduler::Options options) {
    options.share_prefixes = true;
    options.page_tokens = 4;
    if (options.kv_pages == 0) options.kv_pages = 1000;
    auto made = StepScheduler::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    s_.emplace(*std::move(made));
  }
  // A sequence of pages, each named by a letter, and one more token.
  void Enqueue(int64_t id, const std::string& pages, int32_t generated = 3) {
    std::vector<int32_t> tokens;
    for (const char page : pages) tokens.insert(tokens.end(), 4, page);
    const auto known = static_cast<int32_t>(tokens.size()) + 1;
    s_->Enqueue(SequenceId(id), known, known + generated, 0, tokens);
  }
  void Finish(int64_t id) { s_->Finish(SequenceId(id)); }
  std::string Form(int32_t block = 0) {
    return Show(s_->FormStep(BlockId(block)));
  }
  std::string Next(int32_t block = 0) {
    s_->OnStepDone(BlockId(block));
    return Form(block);
  }

  std::optional<StepScheduler> s_;
};

TEST_F(PrefixTest, TheFirstComputesWhatTheOthersShare) {
  Make({.gbs = 4, .max_step_tokens = 16});
  Enqueue(1, "abx");
  Enqueue(2, "aby");
  Enqueue(3, "abz");
  // Two wait for 8 tokens each: a step's worth.
  EXPECT_EQ(Form(), "+1 | 1:0+13!");
  EXPECT_EQ(s_->prefix_pages(), 2);
  EXPECT_EQ(Next(), "^-1=1:8 +2(-1:8) +3(-1:8) | 1:13+1! 2:8+5! 3:8+5!");
  // One page more of each, and one for what they generate.
  EXPECT_EQ(s_->pages_reserved(), 6);
  Finish(1);
  Finish(2);
  EXPECT_EQ(Next(), "-1 -2 | 3:13+1!");
  EXPECT_EQ(s_->prefix_pages(), 2);
  s_->OnStepDone(BlockId(0));
  Finish(3);
  EXPECT_EQ(Form(), "-3 --1");
  EXPECT_EQ(s_->prefix_pages() + s_->pages_reserved(), 0);
}

TEST_F(PrefixTest, OtherBlocksShareInTheNextPlan) {
  Make({.num_blocks = 2, .gbs = 4, .max_step_tokens = 8});
  Enqueue(1, "ab");
  Enqueue(2, "ab");
  EXPECT_EQ(Form(0), "+1 | 1:0+8");
  EXPECT_EQ(Form(1), "^-1=1:8 +2(-1:8) | 2:8+1!");
}

TEST_F(PrefixTest, WhatWouldSaveLittleIsNotWaitedFor) {
  Make({.gbs = 4, .max_step_tokens = 20});
  Enqueue(1, "a");
  Enqueue(2, "a");
  EXPECT_EQ(Form(), "+1 +2 | 1:0+5! 2:0+5!");
}

TEST_F(PrefixTest, WhatNobodyWaitsForIsOvertaken) {
  Make({.gbs = 4, .max_step_tokens = 6});
  Enqueue(1, "ab");
  Enqueue(2, "ab");
  Enqueue(3, "c");
  EXPECT_EQ(Form(), "+1 | 1:0+6");
  // Sequence 2 waits for the second page.
  EXPECT_EQ(Next(), "+3 | 1:6+3! 3:0+3");
  EXPECT_EQ(Next(), "^-1=1:8 +2(-1:8) | 1:9+1! 3:3+2! 2:8+1!");
}

TEST_F(PrefixTest, LaterOnesShareWhatARunningOneHas) {
  Make({.gbs = 4, .max_step_tokens = 16});
  Enqueue(1, "abc", 9);
  EXPECT_EQ(Form(), "+1 | 1:0+13!");
  Enqueue(2, "abd");
  EXPECT_EQ(Next(), "^-1=1:8 +2(-1:8) | 1:13+1! 2:8+5!");
  // A prefix is cut where a later one leaves it.
  Enqueue(3, "axx");
  EXPECT_EQ(Next(), "^-2=-1:4 +3(-2:4) | 1:14+1! 2:13+1! 3:4+9!");
}

TEST_F(PrefixTest, AMakerThatGoesLeavesItsPlaceToTheNext) {
  Make({.gbs = 2, .max_step_tokens = 4});
  Enqueue(1, "abc");
  Enqueue(2, "abc");
  EXPECT_EQ(Form(), "+1 | 1:0+4");
  s_->OnStepDone(BlockId(0));
  Finish(1);  // its first page is kept
  EXPECT_EQ(s_->prefix_pages(), 0);
  EXPECT_EQ(Form(), "-1 +2 | 2:0+4");
}

TEST_F(PrefixTest, PrefixesGoWhereRoomIsShort) {
  for (const bool wanted : {false, true}) {
    Make({.gbs = 2, .max_step_tokens = 8, .kv_pages = 6});
    Enqueue(1, "ab");
    Enqueue(2, "ab");
    Enqueue(3, "cdef");
    if (wanted) Enqueue(4, "ab");
    EXPECT_EQ(Form(), "+1 | 1:0+8");
    EXPECT_EQ(Next(), "^-1=1:8 +2(-1:8) | 1:8+1! 2:8+1!");
    s_->OnStepDone(BlockId(0));
    Finish(1);
    // What wants it goes on before what does not.
    EXPECT_EQ(Form(), wanted ? "-1 +4(-1:8) | 2:9+1! 4:8+1!" : "-1 | 2:9+1!");
    s_->OnStepDone(BlockId(0));
    Finish(2);
    Finish(4);
    EXPECT_EQ(Form(), wanted ? "-2 -4 --1 +3 | 3:0+8" : "-2 --1 +3 | 3:0+8");
  }
}

TEST_F(PrefixTest, ThoseThatBeginAlikeGoTogether) {
  Make({.gbs = 1, .max_step_tokens = 100});
  for (int64_t id = 1; id <= 6; ++id) Enqueue(id, id % 2 == 0 ? "ax" : "by");
  for (const int64_t id : {1, 3, 5, 2, 4, 6}) {
    const std::string step = Form();
    EXPECT_NE(step.find(absl::StrCat("+", id)), std::string::npos) << step;
    s_->OnStepDone(BlockId(0));
    Finish(id);
  }
}

TEST_F(PrefixTest, NoneIsOvertakenWithoutEnd) {
  Make({.gbs = 1, .max_step_tokens = 100});
  Enqueue(1, "a");
  Enqueue(2, "b");
  for (int64_t id = 3; id <= 100; ++id) Enqueue(id, "a");
  std::vector<int64_t> order;
  for (int i = 0; i < 100; ++i) {
    const auto step = s_->FormStep(BlockId(0));
    ASSERT_TRUE(step && step->admit.size() == 1);
    order.push_back(step->admit[0].value());
    s_->OnStepDone(BlockId(0));
    s_->Finish(step->admit[0]);
  }
  EXPECT_EQ(order[65], 2);
  EXPECT_EQ(order[64], 66);
  EXPECT_EQ(order[66], 67);
}

TEST_F(PrefixTest, WhatIsWantedStays) {
  Make({.gbs = 4, .max_step_tokens = 16});
  Enqueue(1, "ab");
  EXPECT_EQ(Form(), "+1 | 1:0+9!");
  s_->OnStepDone(BlockId(0));
  std::vector<int32_t> wanted(10, 'a');
  std::fill(wanted.begin() + 4, wanted.end(), 'b');
  s_->Want(SequenceId(2), wanted);
  Finish(1);
  EXPECT_EQ(s_->prefix_pages(), 2);
  EXPECT_EQ(Form(), "^-1=1:8 -1");
  EXPECT_EQ(Next(), "idle");
  Enqueue(3, "abc");
  EXPECT_EQ(Form(), "+3(-1:8) | 3:8+5!");
  s_->OnStepDone(BlockId(0));
  Finish(3);
  EXPECT_EQ(Form(), "-3");
  EXPECT_EQ(Next(), "idle");
  s_->Unwant(SequenceId(2));
  s_->Unwant(SequenceId(2));
  EXPECT_EQ(Form(), "--1");
  EXPECT_EQ(s_->prefix_pages(), 0);
}

}  // namespace
}  // namespace sluice
