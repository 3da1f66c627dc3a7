// Many requests with many beginnings through a driver: what is kept of them is
// bounded, and nothing stays.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/dispatch/block_driver.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {
namespace {

constexpr uint32_t kPage = 8;
constexpr int64_t kPages = 4000;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The pages that a stage has, as plans say.
class Stage {
 public:
  void CarryOut(const StepPlan& plan) {
    for (const KeptPrefix& keep : plan.keep) {
      ASSERT_FALSE(tables_.contains(keep.id));
      Share(keep.id, keep.prefix);
      ++kept_;
    }
    for (const SequenceId id : plan.release) {
      ASSERT_TRUE(tables_.contains(id)) << id.value();
      for (const int64_t page : tables_[id]) {
        if (--owners_[page] == 0) owners_.erase(page);
      }
      tables_.erase(id);
    }
    for (const SequenceAdmission& admitted : plan.admit) {
      ASSERT_FALSE(tables_.contains(admitted.sequence));
      Share(admitted.sequence, admitted.prefix);
      shared_ += admitted.prefix.positions;
    }
    for (const MicroBatch& batch : plan.micro_batches) {
      for (const Segment& segment : batch.segments) {
        std::vector<int64_t>& table = tables_.at(segment.sequence);
        while (std::ssize(table) * int64_t{kPage} <
               segment.start + segment.num_tokens) {
          table.push_back(next_page_);
          owners_[next_page_++] = 1;
        }
      }
    }
    most_ = std::max<int64_t>(most_, owners_.size());
  }

  int64_t most() const { return most_; }      // pages at any time
  int64_t shared() const { return shared_; }  // positions
  int64_t kept() const { return kept_; }      // prefixes, ever
  bool empty() const { return tables_.empty() && owners_.empty(); }

 private:
  void Share(SequenceId id, const SharedPrefix& prefix) {
    std::vector<int64_t> table;
    if (prefix.positions > 0) {
      const std::vector<int64_t>& source = tables_.at(prefix.source);
      ASSERT_GE(std::ssize(source) * int64_t{kPage}, prefix.positions);
      table.assign(source.begin(), source.begin() + prefix.positions / kPage);
    }
    for (const int64_t page : table) ++owners_[page];
    tables_[id] = std::move(table);
  }

  absl::flat_hash_map<SequenceId, std::vector<int64_t>> tables_;
  absl::flat_hash_map<int64_t, int32_t> owners_;
  int64_t next_page_ = 0, most_ = 0, shared_ = 0, kept_ = 0;
};

// Runs of requests with one of 5,000 beginnings, and between them some with any
// of these. Fifty have their first page in common.
std::vector<int32_t> Prompt(int64_t index, std::mt19937* random) {
  const auto beginning = static_cast<uint32_t>(
      index % 3 == 0 ? (*random)() % 5000 : index / 40 * 7919 % 5000);
  std::vector<int32_t> prompt;
  for (uint32_t i = 0; i < kPage * (2 + beginning % 5); ++i) {
    const uint32_t of = i < kPage ? beginning / 50 : beginning;
    prompt.push_back(static_cast<int32_t>(((of * 64 + i) * 2654435761u >> 8) %
                                          FakeTokenizer::kAsciiVocab));
  }
  for (int64_t i = 0; i < 1 + index % 10; ++i) {
    prompt.push_back(static_cast<int32_t>((*random)() % 90));
  }
  return prompt;
}

void RunRequests(int64_t count, Order order) {
  FakeTokenizer tokenizer;
  ManualClock clock;
  BlockDriver driver({.tokenizer = &tokenizer,
                      .vocab_size = FakeTokenizer::kAsciiVocab,
                      .eos_tokens = {FakeTokenizer::kAsciiEos},
                      .clock = &clock});
  StepScheduler::Options options;
  options.num_blocks = 2;
  options.gbs = 128;
  options.max_step_tokens = 512;
  options.kv_pages = kPages;
  options.page_tokens = kPage;
  options.share_prefixes = true;
  options.order = order;
  ASSERT_TRUE(driver.StartEpoch(PlanEpoch(1), options).ok());
  std::mt19937 random(7);
  Stage stage;
  int64_t next = 0, ended = 0;
  size_t memory = 0;  // after a quarter
  while (true) {
    while (next < count && driver.live() < 1024) {
      Request request = MakeRequest(1, next, "x", 1 + next % 3);
      request.prompt = Prompt(next++, &random);
      driver.Add(std::move(request));
    }
    const std::vector<StepPlan> plans = driver.TakePlans();
    if (plans.empty()) break;
    for (const StepPlan& plan : plans) {
      stage.CarryOut(plan);
      if (testing::Test::HasFatalFailure()) return;
      StepResult result{plan.epoch, plan.block, plan.step, {}};
      for (const MicroBatch& batch : plan.micro_batches) {
        for (const Segment& segment : batch.segments) {
          if (segment.sample) result.tokens.push_back({segment.sequence, 65});
        }
      }
      ASSERT_TRUE(driver.OnResult(std::move(result)).ok());
    }
    ended += std::ssize(driver.TakeFinished());
    driver.TakeStats();
    driver.TakeProgress();
    if (memory == 0 && next >= count / 4) memory = mallinfo2().uordblks;
    if (next > count / 2 && next < count && !kSanitized) {
      ASSERT_LT(mallinfo2().uordblks, memory + (4 << 20));
    }
  }
  EXPECT_EQ(ended, count);
  EXPECT_EQ(driver.live(), 0);
  EXPECT_EQ(driver.ExpectedLoad().prompt_tokens, 0);
  EXPECT_TRUE(stage.empty());
  EXPECT_LE(stage.most(), kPages);
  EXPECT_GT(stage.kept(), count / 100);
  EXPECT_GT(stage.shared(), count * 10);
}

TEST(DispatchPrefixesTest, ManyBeginningsLeaveNothingBehind) {
  RunRequests(200'000, Order::kArrival);
}

TEST(DispatchPrefixesTest, NorDoTheyWithTheLongestFirst) {
  RunRequests(20'000, Order::kLongest);
}

}  // namespace
}  // namespace sluice
