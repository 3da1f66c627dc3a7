// Requests with beams through drivers: the same answers whatever the schedule,
// epochs that end, and drivers that they move between; and every one ends.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/dispatch/block_driver.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {
namespace {

constexpr int32_t kBeamPage = 8;
using Tokens = std::vector<int32_t>;

// The likeliest tokens behind these, by chance.
std::vector<TokenLogprob> Likeliest(const Tokens& tokens, int32_t count) {
  uint32_t hash = 17;
  for (const int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 2654435761u;
    hash ^= hash >> 15;
  }
  std::mt19937 random(hash);
  std::vector<TokenLogprob> top;
  for (int32_t i = 0; i < 40; ++i) {
    const auto token = static_cast<int32_t>(random() % 90);
    const float logprob = -static_cast<float>(random() % 100'000) / 10'000;
    if (std::none_of(top.begin(), top.end(),
                     [&](const auto& t) { return t.token == token; })) {
      top.push_back({token, logprob});
    }
  }
  std::sort(top.begin(), top.end(),
            [](const auto& a, const auto& b) { return a.logprob > b.logprob; });
  top.resize(std::min<size_t>(top.size(), static_cast<size_t>(count)));
  return top;
}

Request MakeBeams(int64_t index, int32_t width, int32_t max_tokens,
                  size_t prompt = 20) {
  Request request = MakeRequest(1, index, std::string(prompt, 'x'), max_tokens);
  request.prompt.back() = static_cast<int32_t>('A' + index % 20);
  request.beams = BeamParams{};
  request.choices = request.candidates = request.num_parts = width;
  return request;
}

struct Part {
  Tokens tokens;
  FinishReason reason;
  absl::StatusCode code;
  bool operator==(const Part&) const = default;
};
using Answers = std::map<std::pair<int64_t, int32_t>, Part>;

// A driver, and the stages of its plans.
class Lane {
 public:
  explicit Lane(const StepScheduler::Options& options) : options_(options) {
    Start();
  }

  void Start() {
    tokens_.clear();
    ASSERT_TRUE(driver.StartEpoch(PlanEpoch(++epoch_), options_).ok());
  }

  // Carries out what can be now; returns whether there was something.
  bool Turn(Answers* answers) {
    const std::vector<StepPlan> plans = driver.TakePlans();
    for (const StepPlan& plan : plans) {
      for (const KeptPrefix& keep : plan.keep) Share(keep.id, keep.prefix);
      for (const SequenceId id : plan.release) {
        EXPECT_EQ(tokens_.erase(id), 1u);
      }
      for (const SequenceAdmission& admitted : plan.admit) {
        Share(admitted.sequence, admitted.prefix);
        tops_[admitted.sequence] = admitted.sampling.logprobs;
        shared += admitted.prefix.positions;
      }
      StepResult result{plan.epoch, plan.block, plan.step, {}};
      for (const MicroBatch& batch : plan.micro_batches) {
        auto next = batch.tokens.begin();
        for (const Segment& segment : batch.segments) {
          Tokens& tokens = tokens_.at(segment.sequence);
          EXPECT_EQ(std::ssize(tokens), segment.start);
          tokens.insert(tokens.end(), next, next + segment.num_tokens);
          next += segment.num_tokens;
          computed += segment.num_tokens;
          if (!segment.sample) continue;
          SampledToken& token = result.tokens.emplace_back();
          token.sequence = segment.sequence;
          token.top = Likeliest(tokens, tops_.at(segment.sequence));
          token.token = fails_at == std::ssize(tokens) ? -1 : 65;
        }
      }
      EXPECT_TRUE(driver.OnResult(std::move(result)).ok());
    }
    for (FinishedRequest& finished : driver.TakeFinished()) {
      const auto& [request, generation] = finished;
      const auto key = std::pair(request.index, request.part);
      EXPECT_TRUE(
          answers
              ->emplace(key, Part{generation.tokens, generation.finish_reason,
                                  generation.status.code()})
              .second);
    }
    const auto progress = driver.TakeProgress();
    for (const auto& [job, of] : progress) {
      EXPECT_GE(of.running, 0);
      prompt_tokens += of.prompt_tokens;
      new_tokens += of.new_tokens;
    }
    return !plans.empty();
  }

  bool empty() const { return tokens_.empty() && driver.live() == 0; }

  int64_t fails_at = -1;  // the length of texts whose logits are no numbers
  int64_t shared = 0, computed = 0, prompt_tokens = 0, new_tokens = 0;

 private:
  void Share(SequenceId id, const SharedPrefix& prefix) {
    Tokens tokens;
    if (prefix.positions > 0) {
      const Tokens& source = tokens_.at(prefix.source);
      ASSERT_GE(std::ssize(source), prefix.positions);
      tokens.assign(source.begin(), source.begin() + prefix.positions);
    }
    EXPECT_TRUE(tokens_.emplace(id, std::move(tokens)).second);
  }

  StepScheduler::Options options_;
  FakeTokenizer tokenizer_;
  ManualClock clock_;
  std::map<SequenceId, Tokens> tokens_;  // computed
  std::map<SequenceId, int32_t> tops_;
  int64_t epoch_ = 0;

 public:
  BlockDriver driver{{.tokenizer = &tokenizer_,
                      .vocab_size = FakeTokenizer::kAsciiVocab,
                      .eos_tokens = {1, 2},
                      .clock = &clock_}};
};

StepScheduler::Options Schedule() {
  StepScheduler::Options options;
  options.gbs = 64;
  options.max_step_tokens = 256;
  options.kv_pages = 1000;
  options.page_tokens = kBeamPage;
  options.share_prefixes = true;
  return options;
}

std::vector<Request> Requests() {
  std::vector<Request> requests;
  for (int64_t i = 0; i < 12; ++i) {
    requests.push_back(MakeBeams(i, 2 + static_cast<int32_t>(i % 5),
                                 1 + static_cast<int32_t>(i * 3),
                                 static_cast<size_t>(5 + 9 * i)));
    requests.back().beams->early_stopping = static_cast<EarlyStopping>(i % 3);
    requests.back().ignore_eos = i % 4 == 3;
    // Ordinary ones are among them.
    requests.push_back(MakeRequest(1, 100 + i, "abcdefghijklm", 9));
    requests.back().sampling.logprobs = 0;
  }
  return requests;
}

Answers AnswersOf(Lane& lane) {
  Answers answers;
  for (Request& request : Requests()) lane.driver.Add(std::move(request));
  while (lane.Turn(&answers)) {
  }
  EXPECT_TRUE(lane.empty());
  return answers;
}

const Answers& AnswersUnshared() {
  static const auto& expected = *new Answers([] {
    StepScheduler::Options options = Schedule();
    options.share_prefixes = false;
    Lane lane(options);
    return AnswersOf(lane);
  }());
  return expected;
}

TEST(DispatchBeamsTest, AnswersAreTheSearchs) {
  const Answers& answers = AnswersUnshared();
  for (const Request& request : Requests()) {
    if (!request.beams) continue;
    BeamSearch search({.width = request.candidates,
                       .max_tokens = request.max_tokens,
                       .params = *request.beams,
                       .ends = request.ignore_eos
                                   ? absl::flat_hash_set<int32_t>()
                                   : absl::flat_hash_set<int32_t>{1, 2}});
    while (!search.beams().empty()) {
      std::vector<std::vector<TokenLogprob>> likeliest;
      for (const BeamSearch::Beam& beam : search.beams()) {
        Tokens tokens = request.prompt;
        tokens.insert(tokens.end(), beam.tokens.begin(), beam.tokens.end());
        likeliest.push_back(Likeliest(tokens, search.candidates()));
      }
      search.Advance(likeliest);
    }
    const auto found = search.TakeAnswers();
    ASSERT_EQ(std::ssize(found), request.candidates);
    for (int32_t k = 0; k < request.candidates; ++k) {
      const Part& part = answers.at({request.index, k});
      EXPECT_EQ(part.tokens, found[k].tokens);
      EXPECT_EQ(part.reason,
                found[k].ended ? FinishReason::kStop : FinishReason::kLength);
    }
  }
}

TEST(DispatchBeamsTest, NoScheduleChangesThem) {
  std::mt19937 random(5);
  for (int run = 0; run < 40; ++run) {
    StepScheduler::Options options = Schedule();
    options.num_blocks = 1 + static_cast<int32_t>(random() % 3);
    options.gbs = 1 + static_cast<int32_t>(random() % 8);
    options.num_microbatches = 1 + static_cast<int32_t>(random() % 2);
    options.max_step_tokens = options.gbs + static_cast<int32_t>(random() % 60);
    options.steps_in_flight = static_cast<int32_t>(random() % 4);
    options.kv_pages = 20 + static_cast<int64_t>(random() % 60);
    options.refill = run % 5 != 0;
    options.share_prefixes = run % 3 != 0;
    options.order = run % 2 == 0 ? Order::kArrival : Order::kLongest;
    SCOPED_TRACE(run);
    Lane lane(options);
    EXPECT_EQ(AnswersOf(lane), AnswersUnshared());
    EXPECT_EQ(lane.shared > 0, options.share_prefixes && options.refill);
  }
}

TEST(DispatchBeamsTest, EpochsEndAndBeamsMove) {
  std::mt19937 random(6);
  for (int run = 0; run < 40; ++run) {
    SCOPED_TRACE(run);
    StepScheduler::Options options = Schedule();
    options.num_blocks = 1 + static_cast<int32_t>(random() % 3);
    options.gbs = 1 + static_cast<int32_t>(random() % 4);
    Lane a(options), b(options);
    Answers answers;
    for (Request& request : Requests()) a.driver.Add(std::move(request));
    bool busy = true;
    for (int turn = 0; busy; ++turn) {
      if (random() % 8 == 0) {
        Lane& from = random() % 2 == 0 ? a : b;
        Lane& to = &from == &a ? b : a;
        switch (random() % 4) {
          case 0:  // some of what waits
            for (auto& sequence : from.driver.ReleaseWaiting(3)) {
              to.driver.Adopt(std::move(sequence));
            }
            break;
          case 1:  // what was not begun
            for (auto& request : from.driver.ReleaseNotBegun()) {
              to.driver.Add(std::move(request));
            }
            break;
          default:  // its stages are lost
            from.driver.StopEpoch();
            for (auto& sequence : from.driver.Release(
                     1 + random() % 20, [](const auto&) { return true; })) {
              to.driver.Adopt(std::move(sequence));
            }
            from.Start();
        }
      }
      busy = a.Turn(&answers);
      busy = b.Turn(&answers) || busy;
    }
    EXPECT_EQ(answers, AnswersUnshared());
    EXPECT_TRUE(a.empty() && b.empty());
  }
}

// A beam computes its last page, and what of it was not whole when it forked.
TEST(DispatchBeamsTest, WholePagesAreComputedOnce) {
  for (const int32_t gbs : {64, 3}) {
    StepScheduler::Options options = Schedule();
    options.gbs = gbs;
    options.num_blocks = 2;
    Lane lane(options);
    Answers answers;
    Request request = MakeBeams(0, 4, 60, 400);
    request.ignore_eos = true;
    lane.driver.Add(std::move(request));
    while (lane.Turn(&answers)) {
    }
    EXPECT_EQ(answers.size(), 4u);
    EXPECT_LT(lane.computed, 400 + 4 * 60 * 2 * kBeamPage) << gbs;
    EXPECT_EQ(lane.prompt_tokens, 400);
    EXPECT_EQ(lane.new_tokens, 4 * 60);
    EXPECT_TRUE(lane.empty());
  }
}

TEST(DispatchBeamsTest, ErrorsEndARequestOnce) {
  Lane lane(Schedule());
  Answers answers;
  lane.fails_at = 25;
  lane.driver.Add(MakeBeams(0, 4, 30));
  lane.driver.Add(MakeBeams(1, 3, 5));
  lane.driver.Add(MakeBeams(2, 3, 100'000));  // no room
  lane.driver.Add(MakeBeams(3, 255, 5));      // too wide, with two ends
  Request bad = MakeBeams(4, 2, 5);
  bad.prompt[3] = 5000;
  lane.driver.Add(std::move(bad));
  while (lane.Turn(&answers)) {
  }
  EXPECT_EQ(answers.size(), 4u + 3 + 3 + 255 + 2);
  const std::pair<int64_t, absl::StatusCode> codes[] = {
      {0, absl::StatusCode::kInternal},
      {1, absl::StatusCode::kOk},
      {2, absl::StatusCode::kResourceExhausted},
      {3, absl::StatusCode::kInvalidArgument},
      {4, absl::StatusCode::kInvalidArgument}};
  for (const auto& [index, code] : codes) {
    EXPECT_EQ(answers.at({index, 0}).code, code) << index;
    EXPECT_EQ(answers.at({index, 1}).code, code) << index;
  }
  EXPECT_EQ(lane.prompt_tokens, 20);
  EXPECT_TRUE(lane.empty());
}

TEST(DispatchBeamsTest, CancelledBeamsEndOnce) {
  for (int after = 0; after < 12; ++after) {
    Lane lane(Schedule());
    Answers answers;
    for (Request& request : Requests()) lane.driver.Add(std::move(request));
    for (int turn = 0; turn < after; ++turn) lane.Turn(&answers);
    lane.driver.Cancel(JobId(1));
    while (lane.Turn(&answers)) {
    }
    EXPECT_EQ(answers.size(), AnswersUnshared().size());
    EXPECT_TRUE(lane.empty());
  }
}

}  // namespace
}  // namespace sluice
