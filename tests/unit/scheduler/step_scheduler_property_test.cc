#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/step_scheduler.h"

// Plays random arrivals, lengths, ends and cancellations against a scheduler,
// as a dispatcher and stages would, and checks what must hold for every plan.

namespace sluice {
namespace {

struct Sequence {
  int32_t prompt = 0;
  int32_t max_tokens = 0;
  int32_t wanted = 0;  // generated tokens until it ends
  int32_t known = 0;
  int32_t computed = 0;
  int32_t generated = 0;
  int32_t block = -1;
  int64_t pages = 0;
  bool finished = false;
  bool released = false;
};

class Play {
 public:
  Play(const StepScheduler::Options& options, uint32_t seed)
      : options_(options),
        scheduler_(*StepScheduler::Create(options)),
        random_(seed),
        in_flight_(options.num_blocks) {}

  void Run(int num_sequences, double cancel_share) {
    int arrived = 0;
    int64_t turns = 0;
    while (ended_ < num_sequences || AnyInFlight()) {
      ASSERT_LT(++turns, 200000) << "never ends";
      if (arrived < num_sequences && Chance(arrived < 5 ? 1.0 : 0.4)) {
        const int burst = 1 + random_() % 9;
        for (int i = 0; i < burst && arrived < num_sequences; ++i)
          Arrive(++arrived);
      }
      if (Chance(cancel_share)) CancelOne();
      const int32_t block = random_() % options_.num_blocks;
      if (!in_flight_[block].empty() && Chance(0.7)) {
        StepDone(block);
      }
      // What one event frees any idle block may take.
      bool formed = false;
      for (int32_t b = 0; b < options_.num_blocks; ++b) {
        Form(b, &formed);
        if (::testing::Test::HasFatalFailure()) return;
      }
      // Nothing in flight and nothing formed: no sequence may be left.
      if (!formed && !AnyInFlight()) {
        ASSERT_EQ(scheduler_.running(), 0);
        ASSERT_EQ(scheduler_.waiting(), 0);
      }
    }
    EXPECT_EQ(scheduler_.running(), 0);
    EXPECT_EQ(scheduler_.waiting(), 0);
    EXPECT_EQ(scheduler_.pages_reserved(), 0);
    EXPECT_EQ(pages_, 0);
    EXPECT_TRUE(live_.empty());
    for (const auto& [id, sequence] : sequences_) {
      EXPECT_TRUE(sequence.finished) << id;
      EXPECT_TRUE(sequence.released || sequence.block < 0) << id;
    }
  }

  int64_t mixed_steps() const { return mixed_steps_; }

 private:
  // A step in flight: the segments, or only the fact that there is one.
  struct Step {
    std::vector<std::vector<Segment>> micro_batches;
  };

  bool Chance(double p) { return random_() < p * 4294967296.0; }

  bool AnyInFlight() const {
    return std::any_of(in_flight_.begin(), in_flight_.end(),
                       [](const auto& steps) { return !steps.empty(); });
  }

  void Arrive(int64_t id) {
    Sequence& s = sequences_[id];
    do {
      s.prompt = 1 + random_() % (Chance(0.1) ? 200 : 20);
      s.wanted = 1 + random_() % 30;
      s.max_tokens = s.prompt + s.wanted + random_() % 40;
    } while (!scheduler_.Fits(s.max_tokens));
    s.known = s.prompt;
    s.pages = (s.max_tokens + options_.page_tokens - 1) / options_.page_tokens;
    scheduler_.Enqueue(SequenceId(id), s.prompt, s.max_tokens);
    waiting_.push_back(id);
  }

  void End(int64_t id) {
    Sequence& s = sequences_[id];
    scheduler_.Finish(SequenceId(id));
    s.finished = true;
    ++ended_;
    if (s.block < 0)
      waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
  }

  void CancelOne() {
    if (sequences_.empty()) return;
    const int64_t id = 1 + random_() % sequences_.size();
    if (!sequences_[id].finished) End(id);
  }

  void StepDone(int32_t block) {
    const Step step = in_flight_[block].front();
    in_flight_[block].pop_front();
    scheduler_.OnStepDone(BlockId(block));
    for (const auto& micro_batch : step.micro_batches) {
      for (const Segment& segment : micro_batch) {
        Sequence& s = sequences_[segment.sequence.value()];
        ASSERT_FALSE(s.released) << "released while its step was in flight";
        if (!segment.sample || s.finished) continue;
        ++s.known;
        if (++s.generated == s.wanted) End(segment.sequence.value());
      }
    }
  }

  void Form(int32_t block, bool* formed) {
    const int64_t others = scheduler_.running() + scheduler_.waiting();
    const auto decision = scheduler_.FormStep(BlockId(block));
    if (!in_flight_[block].empty()) {
      ASSERT_FALSE(decision) << "second step of a block in flight";
    }
    if (!decision) return;
    *formed = true;
    if (decision->micro_batches.empty()) {
      ASSERT_FALSE(decision->release.empty()) << "empty step";
      ASSERT_FALSE(AnyInFlight());
    }
    ASSERT_LE(decision->micro_batches.size(),
              static_cast<size_t>(options_.num_microbatches));

    for (SequenceId id : decision->release) {
      ASSERT_TRUE(live_.erase(id.value())) << "released without being live";
      Sequence& s = sequences_[id.value()];
      ASSERT_TRUE(s.finished);
      ASSERT_TRUE(in_flight_[s.block].empty() || !NamedInFlight(id));
      s.released = true;
      pages_ -= s.pages;
    }
    for (SequenceId id : decision->admit) {
      ASSERT_FALSE(waiting_.empty());
      ASSERT_EQ(id.value(), waiting_.front()) << "overtaken";
      waiting_.pop_front();
      ASSERT_TRUE(live_.insert(id.value()).second);
      Sequence& s = sequences_[id.value()];
      s.block = block;
      pages_ += s.pages;
    }
    ASSERT_LE(pages_, options_.kv_pages);
    if (!decision->admit.empty()) {
      int64_t mine = 0;
      for (int64_t id : live_)
        mine += sequences_[id].block == block && !sequences_[id].finished;
      const int64_t share =
          (others + options_.num_blocks - 1) / options_.num_blocks;
      ASSERT_LE(mine, share) << "more than its share";
    }

    std::set<int64_t> named;
    for (size_t m = 0; m < decision->micro_batches.size(); ++m)
      CheckMicroBatch(decision->micro_batches[m], block, named);
    if (::testing::Test::HasFatalFailure()) return;
    // Every decoding sequence of the block has its token.
    for (int64_t id : live_) {
      const Sequence& s = sequences_[id];
      if (s.block == block && !s.finished && s.generated > 0) {
        ASSERT_TRUE(named.count(id)) << "decode left out";
      }
    }
    in_flight_[block].push_back({decision->micro_batches});
  }

  bool NamedInFlight(SequenceId id) const {
    for (const auto& steps : in_flight_)
      for (const Step& step : steps)
        for (const auto& micro_batch : step.micro_batches)
          for (const Segment& segment : micro_batch)
            if (segment.sequence == id) return true;
    return false;
  }

  void CheckMicroBatch(const std::vector<Segment>& segments, int32_t block,
                       std::set<int64_t>& named) {
    ASSERT_FALSE(segments.empty());
    ASSERT_LE(segments.size(), static_cast<size_t>(options_.gbs));
    int64_t tokens = 0;
    bool prefill = false;
    bool decode = false;
    for (const Segment& segment : segments) {
      const int64_t id = segment.sequence.value();
      ASSERT_TRUE(named.insert(id).second) << "twice in a step";
      ASSERT_TRUE(live_.count(id)) << "not admitted, or released";
      Sequence& s = sequences_[id];
      ASSERT_FALSE(s.finished) << "planned after its end";
      ASSERT_EQ(s.block, block) << "moved to another block";
      ASSERT_EQ(segment.start, s.computed) << "a gap or a repetition";
      ASSERT_GE(segment.num_tokens, 1);
      s.computed += segment.num_tokens;
      ASSERT_LE(s.computed, s.known) << "a token that nobody knows";
      ASSERT_LE(s.computed, s.max_tokens);
      ASSERT_EQ(segment.sample, s.computed == s.known);
      if (s.generated > 0) {
        ASSERT_FALSE(prefill) << "decode after prefill";
        ASSERT_EQ(segment.num_tokens, 1);
        decode = true;
      } else {
        prefill = true;
      }
      tokens += segment.num_tokens;
    }
    ASSERT_LE(tokens, options_.max_step_tokens);
    mixed_steps_ += prefill && decode;
  }

  const StepScheduler::Options options_;
  StepScheduler scheduler_;
  std::mt19937 random_;
  std::map<int64_t, Sequence> sequences_;
  std::deque<int64_t> waiting_;
  std::set<int64_t> live_;  // admitted and not released, as the stages see it
  std::vector<std::deque<Step>> in_flight_;
  int64_t pages_ = 0;
  int64_t mixed_steps_ = 0;
  int ended_ = 0;
};

TEST(StepSchedulerPropertyTest, InvariantsHoldInRandomPlays) {
  int roomy = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    StepScheduler::Options options;
    options.num_blocks = 1 + random() % 4;
    options.gbs = 1 + random() % 8;
    options.num_microbatches = 1 + random() % 3;
    options.max_step_tokens = options.gbs + random() % 40;
    options.page_tokens = 1 + random() % 32;
    // From barely one sequence to plenty.
    options.kv_pages = 300 / options.page_tokens + random() % 100;
    options.refill = seed % 3 != 0;
    SCOPED_TRACE(absl::StrCat(
        "seed ", seed, ": blocks ", options.num_blocks, " gbs ", options.gbs,
        " micro-batches ", options.num_microbatches, " tokens ",
        options.max_step_tokens, " pages ", options.kv_pages, " of ",
        options.page_tokens, " refill ", options.refill));
    Play play(options, seed);
    play.Run(100, seed % 2 ? 0.05 : 0);
    if (::testing::Test::HasFatalFailure()) return;
    // Where there is room for several sequences in a micro-batch.
    if (options.refill && options.gbs > 3 && options.num_microbatches == 1 &&
        options.kv_pages * options.page_tokens > 1000) {
      EXPECT_GT(play.mixed_steps(), 5);
      ++roomy;
    }
  }
  EXPECT_GT(roomy, 10);
}

}  // namespace
}  // namespace sluice
