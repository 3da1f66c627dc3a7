// Random trees of prompts through drivers and real stages: every answer is, bit
// for bit, that of a run which shares nothing, wherever things lie, however the
// model is divided, and when an epoch ends in the middle of it.

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/dispatch/block_driver.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

constexpr int32_t kVocab = FakeTokenizer::kAsciiVocab;
constexpr int32_t kMaxLength = 480;

struct Place {
  const char* name;
  const char* policy = "";
  std::vector<int> cuts = {};
  int ranks = 1;
  bool disk = false;
  bool device = false;
  int replicas = 1;
};

const std::vector<Place>& Places() {
  static const auto& places = *new std::vector<Place>{
      {"memory"},
      {"two stages", "", {2}},
      {"three stages", "", {1, 2}},
      {"two ranks", "", {}, 2},
      {"two stages of two ranks", "", {1}, 2},
      {"two replicas", "", {1}, 1, false, false, 2},
      {"weights on disk", "w=0/0/100", {}, 1, true},
      {"rows of weights on disk", "w=0/50/50", {2}, 1, true},
      {"KV on disk", "c=0/0/100", {}, 1, true},
      {"all on disk, row by row",
       "w=0/0/100 c=0/0/100 schedule=row",
       {},
       1,
       true},
      {"row by row", "schedule=row"},
      {"a device", "w=100/0/0 c=100/0/0", {}, 1, false, true},
      {"a device and KV in memory", "w=30/70/0 c=0/100/0", {1}, 1, false, true},
      {"a device and KV on disk",
       "c=0/0/100 attention-site=device",
       {},
       1,
       true,
       true},
      {"int8 KV", "compress-kv=int8", {2}},
  };
  return places;
}

// How many trees each place gets: a few, or its share of SLUICE_TEST_TREES.
int Trees() {
  const char* const all = std::getenv("SLUICE_TEST_TREES");
  const auto places = static_cast<int>(Places().size());
  return all == nullptr ? 2 : (std::atoi(all) + places - 1) / places;
}

// Has the request answered by a beam search.
void MakeBeams(int32_t width, Request* request) {
  request->sampling = {};
  request->echo = false;
  request->max_tokens = std::min(request->max_tokens, 9);
  request->beams = BeamParams{1, EarlyStopping::kYes};
  request->candidates = request->choices = request->num_parts = width;
}

// Prompts that begin with a system prompt, a document and a question, and are
// sampled in many ways.
std::vector<Request> Tree(uint32_t seed) {
  std::mt19937 dice(seed);
  const auto pick = [&](std::vector<int32_t> of) {
    return of[dice() % of.size()];
  };
  const auto text = [&](int32_t length) {
    std::vector<int32_t> tokens(static_cast<size_t>(length));
    for (int32_t& token : tokens)
      token = 1 + static_cast<int32_t>(dice() % 127);
    return tokens;
  };
  const int32_t page = kPageTokens;
  const std::vector<int32_t> lengths = {page,     2 * page, page - 1, page + 1,
                                        3 * page, 7,        50};
  std::vector<Request> requests;
  const std::vector<int32_t> system = text(pick(lengths));
  for (int d = pick({1, 2, 3}); d > 0; --d) {
    const std::vector<int32_t> document = text(pick(lengths));
    for (int q = pick({1, 2, 4}); q > 0; --q) {
      const std::vector<int32_t> question = text(pick(lengths));
      for (int own = pick({1, 1, 2}); own > 0; --own) {
        Request request;
        request.job = JobId(1);
        request.index = std::ssize(requests);
        request.prompt = system;
        for (const auto& part : {document, question, text(pick({0, 1, 5, 31}))})
          request.prompt.insert(request.prompt.end(), part.begin(), part.end());
        request.max_tokens = pick({1, 2, 9, 40});
        request.ignore_eos = dice() % 2 == 0;
        request.sampling.seed = dice();
        request.sampling.temperature = dice() % 2 == 0 ? 0.0F : 0.9F;
        request.sampling.top_p = dice() % 3 == 0 ? 0.8F : 1.0F;
        request.sampling.logprobs = pick({-1, 0, 2});
        if (dice() % 4 == 0) request.sampling.repetition_penalty = 1.3F;
        request.echo = dice() % 6 == 0;
        if (dice() % 5 == 0) MakeBeams(pick({2, 3, 5}), &request);
        requests.push_back(std::move(request));
      }
    }
  }
  return requests;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of its tokens and of its prompt's
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<std::pair<int64_t, int32_t>, Answer>;  // by its part

// A pipeline: a driver, and the stages that carry out its plans in their order.
class Pipeline {
 public:
  Pipeline(const Place& place, const std::string& disk) {
    static const FakeTokenizer tokenizer;
    static const ManualClock clock;
    StageChain::Options options;
    options.policy.max_step_tokens = 64;
    options.policy.num_microbatches = 2;
    EXPECT_TRUE(UpdatePolicy(place.policy, &options.policy).ok());
    options.cuts = place.cuts;
    options.ranks = place.ranks;
    options.max_model_len = kMaxLength;
    options.max_sequences = 16;
    options.observe_logits = false;
    if (place.disk) options.disk_dir = disk;
    if (place.device) options.device_bytes = uint64_t{1} << 28;
    const RandomSource source(5);
    auto chain =
        StageChain::Create(LlamaSpec(3, 32, 4, 2, 48, kVocab), source, options);
    EXPECT_TRUE(chain.ok()) << place.name << ": " << chain.status();
    chain_ = *std::move(chain);
    driver_ = std::make_unique<BlockDriver>(
        BlockDriver::Options{.tokenizer = &tokenizer,
                             .vocab_size = kVocab,
                             .eos_tokens = {FakeTokenizer::kAsciiEos},
                             .clock = &clock});
  }

  BlockDriver& driver() { return *driver_; }

  // Begins an epoch with some schedule; what was in flight is lost.
  void Start(bool share, std::mt19937* dice) {
    driver_->StopEpoch();
    chain_->Reset();
    plans_.clear();
    const StageExecutor& stage = chain_->stage(0);
    StepScheduler::Options options;
    options.num_blocks = 1 + (*dice)() % 3;
    options.gbs = 1 + (*dice)() % 2;
    options.num_microbatches = 1 + (*dice)() % 2;
    options.max_step_tokens = 16 + (*dice)() % 49;
    options.steps_in_flight = (*dice)() % 4;
    options.page_tokens = stage.page_tokens();
    const int64_t least = kMaxLength / options.page_tokens;
    options.kv_pages =
        std::min<int64_t>(stage.kv_pages(), least * (1 + (*dice)() % 4));
    options.reserve = stage.kv_by_need() && (*dice)() % 2 == 0
                          ? StepScheduler::Reserve::kProfile
                          : StepScheduler::Reserve::kMaximum;
    options.share_prefixes = share;
    options.order = (*dice)() % 2 == 0 ? Order::kArrival : Order::kLongest;
    EXPECT_TRUE(stage.kv_shared());
    const absl::Status status =
        driver_->StartEpoch(PlanEpoch(++epoch_), options);
    EXPECT_TRUE(status.ok()) << status;
  }

  // Carries out one plan; returns false if there is none.
  bool Turn(Answers* answers) {
    for (StepPlan& plan : driver_->TakePlans()) {
      for (const SequenceAdmission& admitted : plan.admit) {
        shared_ += admitted.prefix.positions;
      }
      plans_.push_back(std::move(plan));
    }
    if (plans_.empty()) return false;
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    StepResult result;
    result.epoch = plan.epoch;
    result.block = plan.block;
    result.step = plan.step;
    absl::Status status = chain_->RunStep(plan, &result);
    if (status.ok()) status = driver_->OnResult(std::move(result));
    EXPECT_TRUE(status.ok()) << status;
    for (FinishedRequest& finished : driver_->TakeFinished()) {
      const Generation& generation = finished.generation;
      EXPECT_TRUE(generation.status.ok()) << generation.status;
      Answer answer = {generation.tokens, generation.prompt_scores.logprobs};
      for (const SampledToken& token : generation.logprobs) {
        answer.logprobs.push_back(token.logprob);
        for (const TokenLogprob& top : token.top) {
          answer.logprobs.push_back(top.logprob);
        }
      }
      const Request& request = finished.request;
      EXPECT_TRUE(
          answers->emplace(std::pair(request.index, request.part), answer)
              .second);
    }
    return status.ok();
  }

  int64_t shared() const { return shared_; }
  int64_t pages_used() const {
    int64_t pages = 0;
    for (int i = 0; i < chain_->num_stages(); ++i) {
      pages += chain_->stage(i).kv_pages_used();
    }
    return pages;
  }

 private:
  std::unique_ptr<StageChain> chain_;
  std::unique_ptr<BlockDriver> driver_;
  std::deque<StepPlan> plans_;
  int64_t epoch_ = 0, shared_ = 0;
};

using Pipelines = std::vector<std::unique_ptr<Pipeline>>;

// Answers all; after `kill_after` turns a pipeline loses what it has, and where
// there are others, these go on with it.
Answers AnswersOf(const Pipelines& pipelines,
                  const std::vector<Request>& requests, bool share,
                  int kill_after, uint32_t seed) {
  std::mt19937 dice(seed);
  for (const auto& pipeline : pipelines) pipeline->Start(share, &dice);
  for (const Request& request : requests) {
    pipelines[dice() % pipelines.size()]->driver().Add(request);
  }
  Answers answers;
  bool busy = true;
  for (int turn = 0; busy && !testing::Test::HasFailure(); ++turn) {
    if (turn == kill_after) {
      BlockDriver& killed = pipelines[0]->driver();
      killed.StopEpoch();
      if (pipelines.size() > 1) {
        for (SequenceState& sequence : killed.Release(
                 killed.live(), [](const SequenceState&) { return true; })) {
          pipelines[1]->driver().Adopt(std::move(sequence));
        }
      }
      pipelines[0]->Start(share, &dice);
    }
    busy = false;
    for (const auto& pipeline : pipelines) {
      busy = pipeline->Turn(&answers) || busy;
    }
  }
  for (const auto& pipeline : pipelines) {
    EXPECT_EQ(pipeline->driver().live(), 0);
    EXPECT_EQ(pipeline->pages_used(), 0);
  }
  size_t parts = 0;
  for (const Request& request : requests) parts += request.candidates;
  EXPECT_EQ(answers.size(), parts);
  return answers;
}

class PrefixTreesTest : public testing::TestWithParam<int> {};

TEST_P(PrefixTreesTest, AnswersAreThoseWithoutSharing) {
  const Place& place = Places()[GetParam()];
  SCOPED_TRACE(place.name);
  std::vector<std::unique_ptr<TempDir>> dirs;
  // KV in fewer bits has other answers; the split changes none.
  const bool coded = std::string(place.policy).starts_with("compress-kv");
  Pipelines plain, pipelines;
  plain.push_back(std::make_unique<Pipeline>(
      Place{"plain", coded ? place.policy : ""}, ""));
  for (int i = 0; i < place.replicas; ++i) {
    dirs.push_back(std::make_unique<TempDir>(std::filesystem::current_path()));
    pipelines.push_back(std::make_unique<Pipeline>(place, dirs.back()->path()));
  }
  for (int tree = 0; tree < Trees() && !HasFailure(); ++tree) {
    const auto seed = static_cast<uint32_t>(tree * 1000 + GetParam());
    SCOPED_TRACE(seed);
    const std::vector<Request> requests = Tree(seed);
    const Answers expected = AnswersOf(plain, requests, false, -1, seed);
    EXPECT_EQ(plain[0]->shared(), 0);
    // Killed at its beginning, in the middle, or not.
    const int kill_after = tree % 3 == 2 ? -1 : 2 + static_cast<int>(seed % 37);
    EXPECT_EQ(AnswersOf(pipelines, requests, true, kill_after, seed + 1),
              expected);
  }
  int64_t shared = 0;
  for (const auto& pipeline : pipelines) shared += pipeline->shared();
  EXPECT_GT(shared, 0);
}

INSTANTIATE_TEST_SUITE_P(Places, PrefixTreesTest,
                         testing::Range(0, static_cast<int>(Places().size())));

}  // namespace
}  // namespace sluice
