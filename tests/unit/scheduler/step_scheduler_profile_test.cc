#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/steps/step_scheduler.h"

// Admission by the future use of KV pages: what it decides, and what it gains
// over reserving each sequence's maximum, in simulated jobs.

namespace sluice {
namespace {

using Reserve = StepScheduler::Reserve;

struct Job {
  int32_t prompt = 0;
  int32_t max_new = 0;
  int32_t generated = 0;  // until it ends, at most max_new
};

struct Outcome {
  int64_t steps = 0;  // of each block
  // The rate in the middle, while neither the start nor the end of the job
  // shows.
  double tokens_per_step = 0;
  int64_t max_pages = 0;
  std::vector<int32_t> admitted;  // by step, while it lasted
};

// All blocks take their steps in turn. At most `window` of the jobs are known
// to the scheduler at a time.
Outcome Simulate(const StepScheduler::Options& options,
                 const std::vector<Job>& jobs, int64_t window = 1 << 30) {
  StepScheduler scheduler = *StepScheduler::Create(options);
  struct State {
    int32_t cached = 0;
    int32_t generated = 0;
  };
  std::vector<State> states(jobs.size());
  const auto pages_of = [&](int64_t id) {
    return (states[id].cached + options.page_tokens - 1) / options.page_tokens;
  };
  const auto count = static_cast<int64_t>(jobs.size());
  int64_t next = 0, ended = 0, tokens = 0, pages = 0;
  int64_t begin_step = -1, begin_tokens = 0, end_step = -1, end_tokens = 0;
  int64_t all_tokens = 0;
  for (const Job& job : jobs) all_tokens += job.generated;
  Outcome outcome;
  while (ended < count) {
    if (outcome.steps > 1000000) {
      ADD_FAILURE() << "never ends";
      break;
    }
    while (next < count && scheduler.waiting() + scheduler.running() < window) {
      const Job& job = jobs[next];
      scheduler.Enqueue(SequenceId(next++), job.prompt,
                        job.prompt + job.max_new - 1, 0, {},
                        {.expected = job.max_new, .prefill = job.prompt});
    }
    std::vector<StepScheduler::StepDecision> decisions(options.num_blocks);
    outcome.admitted.push_back(0);
    for (int32_t b = 0; b < options.num_blocks; ++b) {
      auto decision = scheduler.FormStep(BlockId(b));
      if (!decision) continue;
      for (SequenceId id : decision->release) pages -= pages_of(id.value());
      outcome.admitted.back() += static_cast<int32_t>(decision->admit.size());
      for (const auto& micro_batch : decision->micro_batches) {
        for (const Segment& s : micro_batch) {
          pages -= pages_of(s.sequence.value());
          states[s.sequence.value()].cached = s.start + s.num_tokens;
          pages += pages_of(s.sequence.value());
        }
      }
      outcome.max_pages = std::max(outcome.max_pages, pages);
      EXPECT_LE(pages, options.kv_pages);
      decisions[b] = *std::move(decision);
    }
    ++outcome.steps;
    for (int32_t b = 0; b < options.num_blocks; ++b) {
      scheduler.OnStepDone(BlockId(b));
      for (const auto& micro_batch : decisions[b].micro_batches) {
        for (const Segment& s : micro_batch) {
          if (!s.sample) continue;
          ++tokens;
          const int64_t id = s.sequence.value();
          if (++states[id].generated < jobs[id].generated) continue;
          scheduler.Finish(s.sequence);
          ++ended;
        }
      }
    }
    if (begin_step < 0 && tokens * 10 >= all_tokens * 3) {
      begin_step = outcome.steps;
      begin_tokens = tokens;
    }
    if (end_step < 0 && tokens * 10 >= all_tokens * 7) {
      end_step = outcome.steps;
      end_tokens = tokens;
    }
  }
  if (end_step > begin_step) {
    outcome.tokens_per_step = static_cast<double>(end_tokens - begin_tokens) /
                              static_cast<double>(end_step - begin_step);
  }
  return outcome;
}

struct Comparison {
  Outcome zigzag, diagonal;
  double gain() const {
    return diagonal.tokens_per_step / zigzag.tokens_per_step;
  }
};

Comparison Compare(StepScheduler::Options options, const std::vector<Job>& jobs,
                   int64_t window = 1 << 30) {
  Comparison result;
  options.reserve = Reserve::kMaximum;
  result.zigzag = Simulate(options, jobs, window);
  options.reserve = Reserve::kProfile;
  result.diagonal = Simulate(options, jobs, window);
  return result;
}

// Slots and tokens that limit nothing.
StepScheduler::Options Roomy(int64_t kv_pages) {
  StepScheduler::Options options;
  options.gbs = 4096;
  options.max_step_tokens = 1 << 16;
  options.kv_pages = kv_pages;
  return options;
}

std::vector<Job> Equal(int count, int32_t prompt, int32_t generated) {
  return std::vector<Job>(count, {prompt, generated, generated});
}

class ProfileTest : public ::testing::Test {
 protected:
  void Make(StepScheduler::Options options) {
    options.page_tokens = 10;
    s_.emplace(*StepScheduler::Create(options));
  }
  void Enqueue(int64_t id, int32_t known, int32_t max) {
    s_->Enqueue(SequenceId(id), known, max, 0, {}, {.expected = max - known});
  }
  // Ids admitted by the block's next step; "idle" if there is none. Its step
  // before, if any, comes back first.
  std::string Admitted(int32_t block = 0) {
    s_->OnStepDone(BlockId(block));
    const auto decision = s_->FormStep(BlockId(block));
    if (!decision) return "idle";
    std::string ids;
    for (SequenceId id : decision->admit)
      absl::StrAppend(&ids, id.value(), ";");
    return ids;
  }
  void Steps(int n, int32_t block = 0) {
    for (int i = 0; i < n; ++i) ASSERT_EQ(Admitted(block), "");
  }
  std::optional<StepScheduler> s_;
};

TEST_F(ProfileTest, AdmitsWhatFitsAtEachStepToCome) {
  Make({.gbs = 8, .kv_pages = 4});
  Enqueue(1, 10, 30);  // 1 page, 2 from its second step on, 3 from the twelfth
  Enqueue(2, 10, 20);  // gone by then
  Enqueue(3, 1, 1);
  EXPECT_EQ(Admitted(), "1;2;3;");
  EXPECT_EQ(s_->pages_reserved(), 4);
  s_->OnStepDone(BlockId(0));
  s_->Finish(SequenceId(3));
  Enqueue(4, 1, 10);  // while both have two pages there is none left
  Steps(10);
  EXPECT_EQ(Admitted(), "idle") << "2 is at its maximum";
  s_->Finish(SequenceId(2));
  EXPECT_EQ(s_->pages_reserved(), 3);
  EXPECT_EQ(Admitted(), "4;");
}

TEST_F(ProfileTest, TheShortestFillWhatTheLongestLeave) {
  for (const Order order : {Order::kArrival, Order::kLongest}) {
    Make({.gbs = 8, .kv_pages = 4, .order = order});
    Enqueue(1, 10, 30);
    Enqueue(2, 10, 29);  // both would come to six pages
    Enqueue(3, 1, 11);   // a second page while the other has its third
    Enqueue(4, 1, 10);   // a page while the other has two
    EXPECT_EQ(Admitted(), order == Order::kLongest ? "1;4;" : "1;");
    EXPECT_EQ(s_->pages_reserved(), 3);
  }
}

TEST_F(ProfileTest, AnEarlyEndMakesRoom) {
  Make({.gbs = 8, .kv_pages = 4});
  Enqueue(1, 10, 30);
  Enqueue(2, 10, 30);
  EXPECT_EQ(Admitted(), "1;") << "both would come to six pages";
  s_->OnStepDone(BlockId(0));
  s_->Finish(SequenceId(1));
  EXPECT_EQ(Admitted(), "2;");
}

// 1 needs 3 pages at its end. 2 would be gone by then, if not for the tokens
// that its prefill has to wait for.
TEST_F(ProfileTest, CountsADelayedPrefillByItsLatestEnd) {
  for (const int32_t tokens : {12, 30}) {
    Make({.gbs = 2, .max_step_tokens = tokens, .kv_pages = 4});
    Enqueue(1, 1, 30);
    Steps(0);
    EXPECT_EQ(Admitted(), "1;");
    Enqueue(2, 18, 20);  // two pages; gone after 3 steps, or 4
    EXPECT_EQ(Admitted(), "2;");
    for (int i = 0; i < 2; ++i) Steps(1);
    if (tokens == 12) Steps(1);
    EXPECT_EQ(Admitted(), "idle");
    s_->Finish(SequenceId(2));
    Steps(1);
  }
  // The end that is counted is too late by a step at the worst.
  for (const bool late : {false, true}) {
    Make({.gbs = 2, .max_step_tokens = 12, .kv_pages = 4});
    Enqueue(1, 1, 30);
    EXPECT_EQ(Admitted(), "1;");
    Steps(late ? 16 : 15);  // at position 17, or 16
    Enqueue(2, 18, 20);
    // Prefill of 11 and 7 tokens: holds two pages in 4 steps, in which 1 is at
    // positions 18 to 21, or 17 to 20.
    EXPECT_EQ(Admitted(), late ? "" : "2;");
  }
}

// A block may be held up for any time while another one runs on.
TEST_F(ProfileTest, BlocksClaimTheirPeaks) {
  Make({.num_blocks = 2, .gbs = 8, .kv_pages = 5});
  Enqueue(1, 10, 30);
  Enqueue(2, 10, 30);
  EXPECT_EQ(Admitted(0), "1;");
  EXPECT_EQ(Admitted(1), "idle") << "both may be at their ends together";
  EXPECT_EQ(s_->pages_reserved(), 3);
  s_->OnStepDone(BlockId(0));
  s_->Finish(SequenceId(1));
  EXPECT_EQ(Admitted(1), "2;");
}

TEST_F(ProfileTest, ClearForgetsWhatWasClaimed) {
  Make({.num_blocks = 2, .gbs = 8, .kv_pages = 5});
  Enqueue(1, 10, 30);
  EXPECT_EQ(Admitted(0), "1;");
  EXPECT_EQ(s_->Clear().size(), 1u);
  EXPECT_EQ(s_->pages_reserved(), 0);
  Enqueue(2, 10, 50);
  EXPECT_EQ(Admitted(0), "2;");
}

// FlexGen, appendix A.2.1: at equal memory the block is (2s + 2n) / (2s + n)
// times as large.
TEST(DiagonalTest, GainsWhatThePaperSays) {
  const int32_t s = 128, n = 512;
  const double formula = (2.0 * s + 2 * n) / (2.0 * s + n);
  for (const int64_t pages : {200, 800}) {
    const Comparison c = Compare(Roomy(pages), Equal(pages * 3, s, n));
    std::printf(
        "%ld pages, s = %d, n = %d: zig-zag %.2f, diagonal %.2f tokens a step: "
        "gain %.3f, formula %.3f; whole job %.3f\n",
        static_cast<long>(pages), s, n, c.zigzag.tokens_per_step,
        c.diagonal.tokens_per_step, c.gain(), formula,
        static_cast<double>(c.zigzag.steps) /
            static_cast<double>(c.diagonal.steps));
    EXPECT_DOUBLE_EQ(c.zigzag.tokens_per_step, pages / 20.0);
    EXPECT_GT(c.gain(), formula * 0.9);
    EXPECT_LT(c.gain(), formula * 1.1);
    EXPECT_EQ(c.zigzag.max_pages, pages);
    EXPECT_EQ(c.diagonal.max_pages, pages);
  }
}

TEST(DiagonalTest, GainsInSeveralBlocksAndMicroBatches) {
  StepScheduler::Options options = Roomy(1600);
  options.num_blocks = 2;
  options.num_microbatches = 4;
  const double formula = 1280.0 / 768;
  EXPECT_GT(Compare(options, Equal(2400, 128, 512)).gain(), formula * 0.9);
  // There are slots for little more than what runs at a time, and a small
  // window.
  options.gbs = 20;
  EXPECT_GT(Compare(options, Equal(2400, 128, 512), 2 * 160).gain(),
            formula * 0.9);
}

TEST(DiagonalTest, FirstAdmissionsAreEvenlySpaced) {
  StepScheduler::Options options = Roomy(800);
  const Outcome outcome = Simulate(options, Equal(400, 128, 512));
  // 64 run at a time, for 512 steps each: one every eight steps.
  for (int step = 0; step < 512; step += 64) {
    int32_t admitted = 0;
    for (int i = 0; i < 64; ++i) admitted += outcome.admitted[step + i];
    EXPECT_NEAR(admitted, 8, 1) << step;
  }
  EXPECT_EQ(*std::max_element(outcome.admitted.begin(), outcome.admitted.end()),
            1);
}

// Where it would not pay, all begin at once.
TEST(DiagonalTest, SmallJobsAreNotHeldBack) {
  const auto steps = [](int64_t pages, int32_t gbs, int count) {
    StepScheduler::Options options = Roomy(pages);
    options.gbs = gbs;
    const Comparison c = Compare(options, Equal(count, 128, 512));
    EXPECT_EQ(c.zigzag.steps, c.diagonal.steps);
    return c.diagonal.admitted[0];
  };
  EXPECT_EQ(steps(800, 4096, 20), 20);
  EXPECT_EQ(steps(800, 4096, 40), 40);
  EXPECT_EQ(steps(800, 4096, 80), 40) << "twice what fits";
  EXPECT_EQ(steps(800, 40, 400), 40) << "slots are the limit";
}

TEST(DiagonalTest, NeverLosesWithRaggedLengths) {
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    std::mt19937 random(seed);
    std::vector<Job> known, early, mostly_short, far_from_maximum;
    for (int i = 0; i < 1500; ++i) {
      const auto prompt = static_cast<int32_t>(16 + random() % 240);
      const auto n = static_cast<int32_t>(16 + random() % 497);
      known.push_back({prompt, n, n});
      early.push_back({prompt, 512, n});
      const int32_t m = random() % 10 == 0 ? 512 : 32;
      mostly_short.push_back({64, m, m});
      far_from_maximum.push_back({128, 512, 20});
    }
    const auto gain = [&](const char* name, const std::vector<Job>& jobs) {
      StepScheduler::Options options = Roomy(800);
      const Comparison one = Compare(options, jobs);
      options.num_blocks = 2;
      options.num_microbatches = 2;
      const Comparison two = Compare(options, jobs);
      std::printf("%-18s gain %.3f, whole job %.3f; in two blocks %.3f\n", name,
                  one.gain(),
                  static_cast<double>(one.zigzag.steps) /
                      static_cast<double>(one.diagonal.steps),
                  two.gain());
      EXPECT_GE(two.gain(), 1);
      EXPECT_GE(one.gain(), 1);
      return one.gain();
    };
    EXPECT_GT(gain("lengths known", known), 1.3);
    EXPECT_GT(gain("early ends", early), 1.3);
    EXPECT_GT(gain("mostly short", mostly_short), 1.05);
    gain("far from maximum", far_from_maximum);
  }
}

// A long prompt comes in many chunks; tokens are scarce throughout.
TEST(DiagonalTest, NeverLosesWhereTokensAreScarce) {
  StepScheduler::Options options = Roomy(800);
  options.gbs = 80;
  options.max_step_tokens = 96;
  EXPECT_GE(Compare(options, Equal(800, 128, 512)).gain(), 1.4);
  options.max_step_tokens = 80;
  EXPECT_GE(Compare(options, Equal(800, 128, 512)).gain(), 1);
}

// Lengths as those of answers: a few are many times the median. What begins
// last ends last, so the long ones should not. Where pages are few, the short
// ones fill what the long ones leave.
TEST(OrderTest, TheLongestFirstEndAJobSooner) {
  for (const uint32_t seed : {1, 2, 3, 4, 5}) {
    std::mt19937 random(seed);
    std::lognormal_distribution<double> lengths(std::log(48), 1);
    std::uniform_real_distribution<double> shares(0.5, 1);
    std::vector<Job> known, early;
    for (int i = 0; i < 600; ++i) {
      const auto n =
          static_cast<int32_t>(std::clamp(lengths(random), 1.0, 512.0));
      const auto prompt = static_cast<int32_t>(16 + random() % 100);
      known.push_back({prompt, n, n});
      early.push_back(
          {prompt, n, std::max(1, static_cast<int32_t>(n * shares(random)))});
    }
    const auto gain = [](const std::vector<Job>& jobs, int64_t kv_pages) {
      StepScheduler::Options options = Roomy(kv_pages);
      options.gbs = 64;
      const auto steps = [&](Order order) {
        options.order = order;
        return static_cast<double>(Simulate(options, jobs, 1024).steps);
      };
      return steps(Order::kArrival) / steps(Order::kLongest);
    };
    const double roomy = gain(known, 100000), ends = gain(early, 100000),
                 scarce = gain(known, 200);
    std::printf(
        "the longest of 600 requests first: gain %.2f; that end early %.2f; "
        "with few pages %.2f\n",
        roomy, ends, scarce);
    EXPECT_GT(roomy, 1.3);
    EXPECT_GT(ends, 1.3);
    EXPECT_GT(scarce, 1.03);
    // Nothing is lost where all are alike, and begin one after the other.
    EXPECT_GE(gain(Equal(600, 128, 512), 800), 0.99);
  }
}

}  // namespace
}  // namespace sluice
