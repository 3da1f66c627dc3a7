#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/steps/step_scheduler.h"

// Plays random arrivals, lengths, ends and cancellations against a scheduler,
// as a dispatcher and stages would, and checks what must hold for every plan.

namespace sluice {
namespace {

struct Sequence {
  int32_t prompt = 0;
  int32_t max_positions = 0;
  int32_t wanted = 0;  // generated tokens until it ends
  int32_t known = 0;
  int32_t computed = 0;
  int32_t generated = 0;
  int32_t block = -1;
  bool finished = false;
  bool released = false;
  std::vector<int32_t> tokens;  // of its prompt, if prefixes are shared
  std::vector<int64_t> pages;   // in the stages' KV cache
  Turn turn;
};

class Play {
 public:
  // `to_the_end`: share of the sequences that run on to their max_positions.
  // `unfair`: one block after the other hardly moves for a while, and the
  // scheduler is told late of some ends.
  Play(const StepScheduler::Options& options, uint32_t seed,
       double to_the_end = 0.3, bool unfair = false)
      : options_(options),
        to_the_end_(to_the_end),
        unfair_(unfair),
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
      if (!late_ends_.empty() && Chance(0.2)) {
        const int64_t id = late_ends_.front();
        late_ends_.pop_front();
        if (!sequences_[id].finished) End(id);
      }
      const int32_t block = random_() % options_.num_blocks;
      const bool held_up = unfair_ && options_.num_blocks > 1 &&
                           turns / 300 % options_.num_blocks == block &&
                           !Chance(0.01);
      if (!in_flight_[block].empty() && !held_up && Chance(0.7)) {
        StepDone(block);
      }
      // Any block may take what one event frees.
      bool formed = false;
      while (auto next = scheduler_.FormNext()) {
        formed = true;
        Take(*next);
        if (::testing::Test::HasFatalFailure()) return;
      }
      // If nothing is in flight and nothing was formed, no sequence may be
      // left.
      if (!formed && !AnyInFlight() && late_ends_.empty()) {
        ASSERT_EQ(scheduler_.running(), 0);
        ASSERT_EQ(scheduler_.waiting(), 0);
      }
    }
    EXPECT_EQ(scheduler_.running(), 0);
    EXPECT_EQ(scheduler_.waiting(), 0);
    EXPECT_EQ(scheduler_.pages_reserved(), 0);
    EXPECT_EQ(scheduler_.window_pages_reserved(), 0);
    EXPECT_EQ(scheduler_.prefix_pages(), 0);
    EXPECT_TRUE(live_.empty());
    EXPECT_TRUE(kept_.empty());
    EXPECT_TRUE(owners_.empty());
    for (const auto& [id, sequence] : sequences_) {
      EXPECT_TRUE(sequence.finished) << id;
      EXPECT_TRUE(sequence.released || sequence.block < 0) << id;
    }
  }

  // Returns the most pages that were in use at any time.
  int64_t max_pages() const { return max_pages_; }
  int64_t max_window_pages() const { return max_window_pages_; }
  int64_t mixed_steps() const { return mixed_steps_; }
  int64_t slices() const { return slices_; }
  // Returns the positions that sequences shared, and all that they had.
  int64_t shared() const { return shared_; }
  int64_t kept() const { return num_kept_; }

 private:
  // A step in flight: the segments, or only the fact that there is one.
  struct Step {
    std::vector<std::vector<Segment>> micro_batches;
    bool slice = false;
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
      // The last token generated needs no position.
      s.max_positions = s.prompt + s.wanted - 1;
      if (!Chance(to_the_end_)) s.max_positions += random_() % 40;
    } while (!scheduler_.Fits(s.max_positions));
    s.known = s.prompt;
    if (options_.share_prefixes) ChooseTokens(&s);
    s.turn = {.rank = random_() % 8 == 0 ? 1 : 0,
              .expected = s.max_positions - s.prompt,
              .prefill = s.prompt};
    scheduler_.Enqueue(SequenceId(id), s.prompt, s.max_positions, 0,
                       std::span<const int32_t>(s.tokens).first(
                           s.tokens.empty() ? 0 : s.tokens.size() - 1),
                       s.turn);
    waiting_.push_back(id);
  }

  // A way through a tree of three levels, whose branches end within pages or
  // not, and then tokens of its own.
  void ChooseTokens(Sequence* s) {
    for (int32_t level = 0, branch = 0; level < 3; ++level) {
      branch = 3 * branch + static_cast<int32_t>(random_() % 3);
      const auto [node, added] = tree_.try_emplace({level, branch});
      if (added) {
        node->second = random_() % 4 == 0
                           ? 3 * options_.page_tokens
                           : 1 + static_cast<int32_t>(random_() % 60);
      }
      s->tokens.insert(s->tokens.end(), node->second, 100 * level + branch);
      if (Chance(0.1)) break;
    }
    const auto shared = static_cast<int32_t>(s->tokens.size());
    while (std::ssize(s->tokens) < s->prompt) {
      s->tokens.push_back(1000 + static_cast<int32_t>(random_() % 1000));
    }
    if (shared > s->prompt && !Chance(0.5)) s->tokens.resize(s->prompt);
    const auto more = static_cast<int32_t>(s->tokens.size()) - s->prompt;
    if (!scheduler_.Fits(s->max_positions + more)) {
      s->tokens.resize(s->prompt);
      return;
    }
    s->known = s->prompt = s->prompt + more;
    s->max_positions += more;
  }

  // What the stages do with pages.
  void Own(int64_t page) { ++owners_[page]; }
  void Disown(const std::vector<int64_t>& pages) {
    for (const int64_t page : pages) {
      ASSERT_GT(owners_[page], 0);
      if (--owners_[page] == 0) owners_.erase(page);
    }
  }
  void Grow(Sequence* s, int32_t positions) {
    while (std::ssize(s->pages) * options_.page_tokens < positions) {
      s->pages.push_back(next_page_++);
      Own(s->pages.back());
    }
  }
  // Returns the pages of the prefix, owned once more. `tokens` gets its tokens.
  std::vector<int64_t> Share(const SharedPrefix& prefix,
                             std::vector<int32_t>* tokens) {
    const int64_t id = prefix.source.value();
    EXPECT_TRUE(id < 0 ? kept_.count(id) : live_.count(id)) << id;
    const Sequence& source = id < 0 ? kept_[id] : sequences_[id];
    EXPECT_EQ(prefix.positions % options_.page_tokens, 0);
    EXPECT_LE(prefix.positions, source.computed) << "not computed yet";
    tokens->assign(source.tokens.begin(),
                   source.tokens.begin() + prefix.positions);
    std::vector<int64_t> pages(
        source.pages.begin(),
        source.pages.begin() + prefix.positions / options_.page_tokens);
    for (const int64_t page : pages) Own(page);
    return pages;
  }
  void Keep(const KeptPrefix& keep) {
    ASSERT_LT(keep.id.value(), 0);
    ASSERT_FALSE(kept_.count(keep.id.value()));
    Sequence kept;
    kept.pages = Share(keep.prefix, &kept.tokens);
    kept.computed = keep.prefix.positions;
    kept_[keep.id.value()] = kept;
    ++num_kept_;
  }
  void Begin(Sequence* s, const SharedPrefix& prefix) {
    if (prefix.positions > 0) {
      std::vector<int32_t> tokens;
      s->pages = Share(prefix, &tokens);
      ASSERT_LT(prefix.positions, s->known);
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), s->tokens.begin()));
      s->computed = prefix.positions;
      shared_ += prefix.positions;
    }
    if (options_.reserve == StepScheduler::Reserve::kMaximum) {
      Grow(s, s->max_positions);
    }
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
        if (++s.generated != s.wanted) continue;
        if (unfair_ && Chance(0.3)) {
          late_ends_.push_back(segment.sequence.value());
        } else {
          End(segment.sequence.value());
        }
      }
    }
  }

  int64_t InFlight(bool slices = true) const {
    int64_t steps = 0;
    for (const auto& block : in_flight_) {
      steps += std::count_if(
          block.begin(), block.end(),
          [slices](const Step& step) { return slices || !step.slice; });
    }
    return steps;
  }

  void Take(const StepScheduler::NextStep& next) {
    const int32_t block = next.block.value();
    const StepScheduler::StepDecision* decision = &next.decision;
    const int64_t others = scheduler_.running() + scheduler_.waiting();
    if (next.slice) {
      ASSERT_FALSE(in_flight_[block].empty());
      ASSERT_LT(InFlight(), options_.steps_in_flight);
      ASSERT_LT(InFlight(false), options_.steps_in_flight - 1);
      ASSERT_FALSE(decision->micro_batches.empty());
      ++slices_;
    } else {
      for (const Step& step : in_flight_[block]) {
        ASSERT_TRUE(step.slice) << "second step of a block in flight";
      }
    }
    if (decision->micro_batches.empty()) {
      ASSERT_FALSE(decision->release.empty()) << "empty step";
      ASSERT_FALSE(AnyInFlight());
    }
    ASSERT_LE(decision->micro_batches.size(),
              static_cast<size_t>(options_.num_microbatches));

    for (const KeptPrefix& keep : decision->keep) Keep(keep);
    for (SequenceId id : decision->release) {
      if (id.value() < 0) {
        ASSERT_TRUE(kept_.count(id.value()));
        Disown(kept_[id.value()].pages);
        kept_.erase(id.value());
        continue;
      }
      ASSERT_TRUE(live_.erase(id.value())) << "released without being live";
      Sequence& s = sequences_[id.value()];
      ASSERT_TRUE(s.finished);
      ASSERT_TRUE(in_flight_[s.block].empty() || !NamedInFlight(id));
      s.released = true;
      Disown(s.pages);
    }
    ASSERT_EQ(decision->prefixes.size(), decision->admit.size());
    for (size_t i = 0; i < decision->admit.size(); ++i) {
      const SequenceId id = decision->admit[i];
      ASSERT_FALSE(waiting_.empty());
      const auto it = std::find(waiting_.begin(), waiting_.end(), id.value());
      ASSERT_TRUE(it != waiting_.end());
      ASSERT_TRUE(options_.share_prefixes || IsNext(it)) << "overtaken";
      waiting_.erase(it);
      ASSERT_TRUE(live_.insert(id.value()).second);
      Sequence& s = sequences_[id.value()];
      s.block = block;
      Begin(&s, decision->prefixes[i]);
      if (::testing::Test::HasFailure()) return;
    }
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
    CheckPages();
    // Every decoding sequence of the block has its token, and not in slices.
    for (int64_t id : live_) {
      const Sequence& s = sequences_[id];
      if (s.block == block && !s.finished && s.generated > 0) {
        ASSERT_EQ(named.count(id), next.slice ? 0 : 1) << "decode left out";
      }
    }
    in_flight_[block].push_back({decision->micro_batches, next.slice});
  }

  // Whether none that waits is to go before it, or it fills what is left.
  bool IsNext(std::deque<int64_t>::const_iterator it) const {
    if (options_.order == Order::kArrival) return it == waiting_.begin();
    if (IsLast(it)) return true;
    const Turn& turn = sequences_.at(*it).turn;
    return std::all_of(waiting_.begin(), waiting_.end(), [&](int64_t other) {
      const Turn& others = sequences_.at(other).turn;
      return others < turn || (others == turn && other >= *it);
    });
  }

  bool IsLast(std::deque<int64_t>::const_iterator it) const {
    const Turn& turn = sequences_.at(*it).turn;
    return std::all_of(waiting_.begin(), waiting_.end(), [&](int64_t other) {
      const Turn& others = sequences_.at(other).turn;
      return turn < others || (others == turn && other <= *it);
    });
  }

  // Checks the pages that stages hold which have carried out all plans so far.
  void CheckPages() {
    const auto pages = static_cast<int64_t>(owners_.size());
    int64_t window_pages = 0;
    for (int64_t id : live_) {
      const Sequence& s = sequences_[id];
      const int32_t positions =
          options_.reserve == StepScheduler::Reserve::kMaximum ? s.max_positions
                                                               : s.computed;
      const int64_t of_sequence =
          (positions + options_.page_tokens - 1) / options_.page_tokens;
      window_pages +=
          std::min<int64_t>(of_sequence, options_.kv_window.pages_each);
    }
    ASSERT_LE(window_pages, scheduler_.window_pages_reserved());
    ASSERT_LE(scheduler_.window_pages_reserved(), options_.kv_window.pages);
    max_window_pages_ = std::max(max_window_pages_, window_pages);
    const int64_t claimed =
        scheduler_.pages_reserved() + scheduler_.prefix_pages();
    ASSERT_LE(pages, claimed);
    ASSERT_LE(claimed, options_.kv_pages);
    max_pages_ = std::max(max_pages_, pages);
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
    double cost = 0;
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
      Grow(&s, s.computed + segment.num_tokens);
      for (int32_t p = s.computed; p < s.computed + segment.num_tokens; ++p) {
        ASSERT_EQ(owners_[s.pages[p / options_.page_tokens]], 1)
            << "a shared page is written";
      }
      s.computed += segment.num_tokens;
      ASSERT_LE(s.computed, s.known) << "a token that nobody knows";
      ASSERT_LE(s.computed, s.max_positions);
      ASSERT_EQ(segment.sample, s.computed == s.known);
      if (s.generated > 0) {
        ASSERT_FALSE(prefill) << "decode after prefill";
        ASSERT_EQ(segment.num_tokens, 1);
        decode = true;
      } else {
        prefill = true;
      }
      tokens += segment.num_tokens;
      cost += segment.num_tokens;
      if (s.generated == 0 && options_.slice_context > 0) {
        cost += segment.num_tokens *
                (segment.start + 0.5 * segment.num_tokens) /
                options_.slice_context;
      }
    }
    ASSERT_LE(tokens, options_.max_step_tokens);
    if (options_.slice_context > 0 && segments.back().num_tokens > 1) {
      const double most = options_.max_step_tokens;
      ASSERT_LE(cost, most * (1 + 0.5 * most / options_.slice_context) + 1e-6);
    }
    mixed_steps_ += prefill && decode;
  }

  const StepScheduler::Options options_;
  const double to_the_end_;
  const bool unfair_;
  StepScheduler scheduler_;
  std::mt19937 random_;
  std::map<int64_t, Sequence> sequences_;
  std::deque<int64_t> waiting_;
  std::set<int64_t> live_;  // admitted and not released, as the stages see it
  std::vector<std::deque<Step>> in_flight_;
  std::map<int64_t, int32_t> owners_;  // of the stages' pages
  std::map<int64_t, Sequence> kept_;
  // The lengths of its branches, by level and number.
  std::map<std::pair<int32_t, int32_t>, int32_t> tree_;
  int64_t next_page_ = 0, shared_ = 0, num_kept_ = 0;
  std::deque<int64_t> late_ends_;  // ended, but the scheduler is yet to hear
  int64_t max_pages_ = 0, max_window_pages_ = 0;
  int64_t mixed_steps_ = 0;
  int64_t slices_ = 0;
  int ended_ = 0;
};

// Gives layers with a window pages of their own, for barely one sequence or for
// more.
void ChooseWindow(std::mt19937& random, StepScheduler::Options* options) {
  options->kv_window.pages_each = 1 + random() % 8;
  options->kv_window.pages = options->kv_window.pages_each + random() % 40;
}

// Slices in half of the plays, with shorter ones at greater contexts in half of
// these.
void ChooseSlices(std::mt19937& random, StepScheduler::Options* options) {
  if (random() % 2 == 0) return;
  options->steps_in_flight = 2 + random() % (2 * options->num_blocks + 4);
  if (random() % 2 == 0) options->slice_context = 1 + random() % 200;
}

TEST(StepSchedulerPropertyTest, InvariantsHoldInRandomPlays) {
  int roomy = 0;
  int64_t slices = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    StepScheduler::Options options;
    options.num_blocks = 1 + random() % 4;
    options.gbs = 1 + random() % 8;
    options.num_microbatches = 1 + random() % 3;
    options.max_step_tokens = options.gbs + random() % 40;
    options.page_tokens = 1 + random() % 32;
    // There is room for barely one sequence, or for plenty.
    options.kv_pages = 300 / options.page_tokens + random() % 100;
    options.refill = seed % 3 != 0;
    options.reserve = seed % 4 < 2 ? StepScheduler::Reserve::kProfile
                                   : StepScheduler::Reserve::kMaximum;
    if (seed % 5 < 2) options.order = Order::kLongest;
    ChooseSlices(random, &options);
    if (seed % 4 == 0) ChooseWindow(random, &options);
    SCOPED_TRACE(absl::StrCat(
        "seed ", seed, ": blocks ", options.num_blocks, " gbs ", options.gbs,
        " micro-batches ", options.num_microbatches, " tokens ",
        options.max_step_tokens, " pages ", options.kv_pages, " of ",
        options.page_tokens, " refill ", options.refill, " in flight ",
        options.steps_in_flight, " context ", options.slice_context));
    Play play(options, seed);
    play.Run(100, seed % 2 ? 0.05 : 0);
    if (::testing::Test::HasFatalFailure()) return;
    slices += play.slices();
    if (options.steps_in_flight == 0) {
      EXPECT_EQ(play.slices(), 0);
    }
    // Steps mix prefill and decode where there is room for several sequences in
    // a micro-batch.
    if (options.refill && options.gbs > 3 && options.num_microbatches == 1 &&
        options.kv_window.pages_each == 0 &&
        options.kv_pages * options.page_tokens > 1000) {
      EXPECT_GT(play.mixed_steps(), 5);
      ++roomy;
    }
  }
  EXPECT_GT(roomy, 10);
  EXPECT_GT(slices, 1000);
}

// Blocks that advance at unlike speeds, prefill held up by scarce tokens, and
// nearly all sequences running on to their maximum, in a KV cache as small as
// can be: pages suffice (CheckPages, after each plan), and are made use of.
TEST(StepSchedulerPropertyTest, PagesSufficeWhateverTheOrderOfProgress) {
  int full = 0, full_windows = 0;
  int64_t slices = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(1000 + seed);
    StepScheduler::Options options;
    options.num_blocks = 2 + random() % 3;
    options.gbs = 1 + random() % 24;
    options.num_microbatches = 1 + random() % 3;
    options.max_step_tokens = options.gbs + random() % 12;
    options.page_tokens = 1 + random() % 16;
    options.kv_pages = 270 / options.page_tokens + random() % 60;
    options.refill = seed % 5 != 0;
    ChooseSlices(random, &options);
    if (seed % 4 == 1) options.order = Order::kLongest;
    if (seed % 2 == 0) ChooseWindow(random, &options);
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Play play(options, seed, seed % 3 == 0 ? 0.9 : 1.0, true);
    play.Run(120, seed % 4 == 0 ? 0.02 : 0);
    if (::testing::Test::HasFatalFailure()) return;
    full += play.max_pages() == options.kv_pages;
    full_windows += options.kv_window.pages > 0 &&
                    play.max_window_pages() == options.kv_window.pages;
    slices += play.slices();
  }
  EXPECT_GT(full, 50);
  EXPECT_GT(full_windows, 20);
  EXPECT_GT(slices, 1000);
}

// Requests that begin alike, in any room, each play with a tree of its own:
// pages are shared, never lost, kept or written to again, and suffice.
// SLUICE_TREES has more trees tried.
TEST(StepSchedulerPropertyTest, SharedPagesAreCounted) {
  int64_t shared = 0, kept = 0;
  int full = 0;
  const char* const said = std::getenv("SLUICE_TREES");
  const uint32_t trees =
      said == nullptr ? 1000 : std::strtoul(said, nullptr, 10);
  for (uint32_t seed = 1; seed <= trees; ++seed) {
    std::mt19937 random(2000 + seed);
    StepScheduler::Options options;
    options.share_prefixes = true;
    options.num_blocks = 1 + random() % 3;
    options.gbs = 1 + random() % 16;
    options.num_microbatches = 1 + random() % 3;
    options.max_step_tokens = options.gbs + random() % 40;
    options.page_tokens = 1 + random() % 16;
    options.kv_pages = 270 / options.page_tokens + random() % 200;
    options.reserve = seed % 4 == 0 ? StepScheduler::Reserve::kMaximum
                                    : StepScheduler::Reserve::kProfile;
    if (seed % 3 == 0) options.order = Order::kLongest;
    ChooseSlices(random, &options);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": pages ", options.kv_pages,
                              " of ", options.page_tokens));
    Play play(options, seed, seed % 3 == 0 ? 0.3 : 1.0, seed % 5 == 0);
    play.Run(120, seed % 4 == 1 ? 0.05 : 0);
    if (::testing::Test::HasFatalFailure()) return;
    shared += play.shared();
    kept += play.kept();
    full += play.max_pages() == options.kv_pages;
  }
  EXPECT_GT(shared, int64_t{1000} * trees);
  EXPECT_GT(kept, 10 * trees);
  EXPECT_GT(full, static_cast<int>(trees) / 10);
}

}  // namespace
}  // namespace sluice
