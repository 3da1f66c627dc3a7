#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "runtime/exec/stage_loader.h"
#include "runtime/exec/step_inputs.h"
#include "tests/parity/random_source.h"

namespace sluice {
namespace {

class StagePlanTest : public testing::Test {
 protected:
  std::unique_ptr<StageExecutor> Load(LayerRange layers, bool packing = true) {
    StageOptions options;
    options.layers = layers;
    options.max_model_len = 64;
    options.max_sequences = 3;
    options.host_budget = &budget_;
    options.policy.max_step_tokens = 16;
    options.policy.packing = packing;
    auto stage = LoadStage(spec_, RandomSource(), options, nullptr, nullptr);
    EXPECT_TRUE(stage.ok()) << stage.status();
    return *std::move(stage);
  }

  // Sequence 1 with its first four tokens.
  static StepPlan Plan() {
    StepPlan plan;
    plan.admit = {{SequenceId(1), 4, 10, {}}};
    plan.micro_batches = {{{{SequenceId(1), 0, 4, true}}, {1, 2, 3, 4}}};
    return plan;
  }

  absl::Status Run(StageExecutor& stage, const StepPlan& plan) {
    return stage.RunStep(plan, {}, nullptr, &result_);
  }

  // Runs the plan, changed, on a stage just reset.
  absl::Status RunChanged(const std::function<void(StepPlan&)>& change) {
    if (whole_ == nullptr) whole_ = Load({0, 2});
    whole_->Reset();
    StepPlan plan = Plan();
    change(plan);
    return Run(*whole_, plan);
  }

  const DecoderSpec spec_ = LlamaSpec(2, 32, 2, 2, 64, 50);
  MemoryBudget budget_{Tier::kHost, uint64_t{1} << 30};
  std::unique_ptr<StageExecutor> whole_;
  StepResult result_;
};

TEST_F(StagePlanTest, ResultNamesThePlan) {
  const absl::Status status = RunChanged([](StepPlan& plan) {
    plan.epoch = PlanEpoch(7);
    plan.block = BlockId(2);
    plan.step = 9;
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(result_.epoch, PlanEpoch(7));
  EXPECT_EQ(result_.block, BlockId(2));
  EXPECT_EQ(result_.step, 9);
  ASSERT_EQ(result_.tokens.size(), 1u);
  EXPECT_EQ(result_.tokens[0].sequence, SequenceId(1));
  EXPECT_GE(result_.tokens[0].token, 0);
}

TEST_F(StagePlanTest, PagesComeAndGo) {
  auto stage = Load({0, 2});
  StepPlan plan = Plan();
  plan.admit.push_back({SequenceId(2), 40, 40, {}});
  ASSERT_TRUE(stage->kv_by_need());
  ASSERT_TRUE(Run(*stage, plan).ok());
  EXPECT_EQ(stage->kv_pages_used(), 1) << "the second has no position yet";
  const auto chunk = [&](int32_t start, int32_t num_tokens) {
    StepPlan step;
    step.micro_batches = {{{{SequenceId(2), start, num_tokens, false}},
                           std::vector<int32_t>(num_tokens, 1)}};
    ASSERT_TRUE(Run(*stage, step).ok());
  };
  chunk(0, 16);
  chunk(16, 16);
  EXPECT_EQ(stage->kv_pages_used(), 2);
  chunk(32, 1);
  EXPECT_EQ(stage->kv_pages_used(), 3);
  StepPlan release;
  release.release = {SequenceId(2)};
  ASSERT_TRUE(Run(*stage, release).ok());
  EXPECT_EQ(stage->kv_pages_used(), 1);
  EXPECT_TRUE(result_.tokens.empty());
  // A plan may release a sequence and admit it again.
  StepPlan both;
  both.release = {SequenceId(1)};
  both.admit = {{SequenceId(1), 4, 10, {}}};
  both.micro_batches = Plan().micro_batches;
  ASSERT_TRUE(Run(*stage, both).ok());
  stage->Reset();
  EXPECT_EQ(stage->kv_pages_used(), 0);
  ASSERT_TRUE(Run(*stage, Plan()).ok());
}

TEST_F(StagePlanTest, ChunksOfOneSequenceInOneStep) {
  auto stage = Load({0, 2});
  ASSERT_TRUE(Run(*stage, Plan()).ok());
  const int32_t whole = result_.tokens[0].token;
  stage->Reset();
  StepPlan plan = Plan();
  plan.micro_batches = {
      {{{SequenceId(1), 0, 1, false}, {SequenceId(1), 1, 1, false}}, {1, 2}},
      {{{SequenceId(1), 2, 2, true}}, {3, 4}}};
  ASSERT_TRUE(Run(*stage, plan).ok());
  EXPECT_EQ(result_.tokens[0].token, whole);
}

TEST_F(StagePlanTest, RefusesPlansThatDoNotFit) {
  using Plan = StepPlan;
  const auto invalid = [&](const std::function<void(Plan&)>& change,
                           const char* what) {
    const absl::Status status = RunChanged(change);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find(what), std::string::npos) << status;
  };
  invalid([](Plan& p) { p.admit.clear(); }, "not admitted");
  invalid([](Plan& p) { p.release = {SequenceId(5)}; }, "not known");
  invalid([](Plan& p) { p.admit.push_back(p.admit[0]); }, "admitted already");
  invalid([](Plan& p) { p.admit[0].max_positions = 0; }, "max_positions");
  invalid([](Plan& p) { p.admit[0].max_positions = 65; }, "64 positions");
  invalid([](Plan& p) { p.admit[0].prompt_tokens = 11; }, "prompt_tokens");
  invalid([](Plan& p) { p.admit[0].prompt_tokens = -1; }, "prompt_tokens");
  invalid([](Plan& p) { p.micro_batches[0].segments[0].start = 1; },
          "starts at position 1");
  invalid(
      [](Plan& p) {
        p.admit[0].max_positions = 4, p.admit[0].prompt_tokens = 3,
        p.micro_batches[0].segments[0].num_tokens = 5;
      },
      "exceed the sequence's");
  invalid([](Plan& p) { p.micro_batches[0].segments[0].num_tokens = 0; },
          "0 tokens");
  invalid([](Plan& p) { p.micro_batches[0].segments[0].num_tokens = 3; },
          "4 tokens, but its segments 3");
  invalid([](Plan& p) { p.micro_batches[0].tokens[2] = 50; }, "token id 50");
  invalid([](Plan& p) { p.micro_batches[0].tokens[2] = -1; }, "token id -1");
  invalid([](Plan& p) { p.micro_batches[0].tokens.assign(17, 0); }, "17");
  invalid([](Plan& p) { p.micro_batches[0] = {}; }, "no segments");
  invalid(
      [](Plan& p) {
        p.micro_batches[0].segments[0].num_tokens =
            std::numeric_limits<int32_t>::max();
      },
      "exceed the sequence's");
  ASSERT_TRUE(RunChanged([](Plan&) {}).ok());
}

// 9 and 2 tokens are 18 rows, of 16.
TEST_F(StagePlanTest, PaddingCounts) {
  StepPlan plan;
  plan.admit = {{SequenceId(1), 9, 10, {}}, {SequenceId(2), 2, 10, {}}};
  plan.micro_batches = {
      {{{SequenceId(1), 0, 9, true}, {SequenceId(2), 0, 2, true}},
       {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}}};
  EXPECT_TRUE(Run(*Load({0, 2}), plan).ok());
  const absl::Status status = Run(*Load({0, 2}, false), plan);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("18 rows"), std::string::npos) << status;
  plan.micro_batches[0].segments[0].num_tokens = 8;
  plan.micro_batches[0].tokens.erase(plan.micro_batches[0].tokens.begin());
  EXPECT_TRUE(Run(*Load({0, 2}, false), plan).ok());
}

TEST_F(StagePlanTest, RefusesScoresThatDoNotFit) {
  const auto invalid = [&](int32_t begin, int32_t end, int32_t next,
                           bool sample, const char* what) {
    const absl::Status status = RunChanged([&](StepPlan& plan) {
      Segment& segment = plan.micro_batches[0].segments[0];
      segment.sample = sample;
      segment.score_begin = begin;
      segment.score_end = end;
      segment.next_token = next;
    });
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find(what), std::string::npos) << status;
  };
  invalid(0, 3, -1, false, "can't score positions 0 to 3");
  invalid(-5, 3, -1, false, "can't score");
  invalid(3, 2, -1, false, "can't score");
  invalid(1, 6, 7, false, "can't score");
  invalid(1, std::numeric_limits<int32_t>::max(), 7, false, "can't score");
  invalid(1, 5, 7, true, "both scored and sampled");
  invalid(1, 5, -1, false, "token id -1");
  invalid(1, 5, 50, false, "token id 50");
  const absl::Status many =
      RunChanged([](StepPlan& plan) { plan.admit[0].sampling.logprobs = 257; });
  EXPECT_TRUE(absl::IsInvalidArgument(many)) << many;
}

TEST_F(StagePlanTest, ScoresAreThoseOfTheLogits) {
  StepPlan plan = Plan();
  plan.admit[0].sampling.logprobs = 2;
  plan.micro_batches[0].segments[0] = {SequenceId(1), 0, 4, false, 2, 5, 7};
  std::map<int32_t, std::vector<float>> logits;
  StageOptions options;
  options.layers = {0, 2};
  options.max_model_len = 64;
  options.max_sequences = 3;
  options.host_budget = &budget_;
  options.policy.max_step_tokens = 16;
  options.logits_observer = [&](SequenceId, int32_t position,
                                std::span<const float> row) {
    logits[position] = {row.begin(), row.end()};
  };
  auto stage = LoadStage(spec_, RandomSource(), options, nullptr, nullptr);
  ASSERT_TRUE(stage.ok()) << stage.status();
  ASSERT_TRUE(Run(**stage, plan).ok());
  EXPECT_TRUE(result_.tokens.empty());
  ASSERT_EQ(result_.scores.size(), 1u);
  const TokenScores& scores = result_.scores[0];
  EXPECT_EQ(scores.sequence, SequenceId(1));
  EXPECT_EQ(scores.begin, 2);
  ASSERT_EQ(scores.logprobs.size(), 3u);
  ASSERT_EQ(scores.top.size(), 6u);
  const int32_t targets[] = {3, 4, 7};
  ASSERT_EQ(logits.size(), 3u);  // no row more than is needed
  for (int i = 0; i < 3; ++i) {
    const std::vector<float>& row = logits.at(i + 1);
    double sum = 0;
    for (const float x : row) sum += std::exp(double{x});
    EXPECT_NEAR(scores.logprobs[i], row[targets[i]] - std::log(sum), 1e-5);
    const auto best = std::max_element(row.begin(), row.end());
    EXPECT_EQ(scores.top[2 * i].token, best - row.begin());
    EXPECT_NEAR(scores.top[2 * i].logprob, *best - std::log(sum), 1e-5);
    EXPECT_GE(scores.top[2 * i].logprob, scores.top[2 * i + 1].logprob);
  }
  // A step without scores leaves none behind.
  (*stage)->Reset();
  ASSERT_TRUE(Run(**stage, Plan()).ok());
  EXPECT_TRUE(result_.scores.empty());
}

TEST_F(StagePlanTest, RefusesMoreThanFits) {
  const absl::Status many = RunChanged([](StepPlan& plan) {
    for (int i = 2; i <= 4; ++i) {
      plan.admit.push_back({SequenceId(i), 1, 2, {}});
    }
  });
  EXPECT_TRUE(absl::IsResourceExhausted(many)) << many;
  // Pages for 3 sequences of 64 positions.
  EXPECT_EQ(whole_->kv_pages(), 6);
}

TEST_F(StagePlanTest, NoPageLeft) {
  StageOptions options;
  options.layers = {0, 2};
  options.max_model_len = 64;
  options.max_sequences = 3;
  options.policy.max_step_tokens = 16;
  uint64_t used = 0, page = 0;
  {
    auto stage = Load({0, 2});
    used = budget_.used_bytes();
    page = budget_.holders().at("kv cache") / 6;
  }
  MemoryBudget tight(Tier::kHost, used - 2 * page);
  options.host_budget = &tight;
  auto stage = LoadStage(spec_, RandomSource(), options, nullptr, nullptr);
  ASSERT_TRUE(stage.ok()) << stage.status();
  ASSERT_LE((*stage)->kv_pages(), 4);
  StepPlan plan = Plan();
  plan.admit = {{SequenceId(1), 4, 64, {}},
                {SequenceId(2), 4, 64, {}},
                {SequenceId(3), 4, 64, {}}};
  ASSERT_TRUE(Run(**stage, plan).ok());
  // All three sequences run to their ends, one after the other: the third finds
  // no page.
  absl::Status status;
  for (int32_t id = 1; id <= 3 && status.ok(); ++id) {
    for (int32_t start = id == 1 ? 4 : 0; start < 64 && status.ok();) {
      const int32_t n = std::min(16, 64 - start);
      StepPlan step;
      step.micro_batches = {
          {{{SequenceId(id), start, n, false}}, std::vector<int32_t>(n, 1)}};
      status = Run(**stage, step);
      start += n;
    }
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("sequence "), std::string::npos) << status;
  EXPECT_NE(status.message().find("pages left"), std::string::npos) << status;
  EXPECT_EQ((*stage)->kv_pages_used(), (*stage)->kv_pages());
  (*stage)->Reset();
  ASSERT_TRUE(Run(**stage, plan).ok());
}

TEST_F(StagePlanTest, HiddenStatesMustFit) {
  auto stage = Load({1, 2});
  const auto run = [&](std::vector<std::shared_ptr<ActivationBuffer>> hidden) {
    stage->Reset();
    HeldInputs inputs(std::move(hidden));
    return stage->RunStep(Plan(), &inputs, nullptr, &result_);
  };
  const auto buffer = [](int rows, int cols) {
    auto b = std::make_shared<ActivationBuffer>();
    b->Resize(rows, cols);
    std::fill_n(b->data(), rows * cols, 0.5f);
    return b;
  };
  EXPECT_TRUE(absl::IsInvalidArgument(run({})));
  EXPECT_TRUE(absl::IsInvalidArgument(run({nullptr})));
  EXPECT_TRUE(absl::IsInvalidArgument(run({buffer(3, 32)})));
  EXPECT_TRUE(absl::IsInvalidArgument(run({buffer(4, 31)})));
  stage->Reset();
  EXPECT_TRUE(absl::IsInvalidArgument(
      stage->RunStep(Plan(), nullptr, nullptr, &result_)));
  EXPECT_TRUE(run({buffer(4, 32)}).ok());
  auto first = Load({0, 2});
  HeldInputs inputs({buffer(4, 32)});
  EXPECT_TRUE(absl::IsInvalidArgument(
      first->RunStep(Plan(), &inputs, nullptr, &result_)));
}

TEST_F(StagePlanTest, EmitsInOrderAndPassesItsErrorsOn) {
  auto stage = Load({0, 1});
  StepPlan plan;
  plan.admit = {{SequenceId(1), 4, 10, {}}, {SequenceId(2), 4, 10, {}}};
  plan.micro_batches = {{{{SequenceId(1), 0, 2, false}}, {1, 2}},
                        {{{SequenceId(2), 0, 3, true}}, {4, 5, 6}}};
  std::vector<int64_t> rows;
  ASSERT_TRUE(stage
                  ->RunStep(
                      plan, {},
                      [&](int32_t k, std::shared_ptr<ActivationBuffer> x) {
                        EXPECT_EQ(k, static_cast<int32_t>(rows.size()));
                        rows.push_back(x->rows());
                        EXPECT_EQ(x->cols(), 32);
                        return absl::OkStatus();
                      },
                      nullptr)
                  .ok());
  EXPECT_EQ(rows, (std::vector<int64_t>{2, 3}));
  stage->Reset();
  const absl::Status status = stage->RunStep(
      plan, {},
      [](int32_t, std::shared_ptr<ActivationBuffer>) {
        return absl::UnavailableError("link is down");
      },
      nullptr);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(StagePlanTest, NotANumberGivesNoToken) {
  auto stage = Load({1, 2});
  auto x = std::make_shared<ActivationBuffer>();
  x->Resize(4, 32);
  std::fill_n(x->data(), 4 * 32, 0.5f);
  x->data()[3 * 32] = std::numeric_limits<float>::quiet_NaN();
  HeldInputs inputs({x});
  ASSERT_TRUE(stage->RunStep(Plan(), &inputs, nullptr, &result_).ok());
  EXPECT_EQ(result_.tokens[0].token, -1);
}

}  // namespace
}  // namespace sluice
