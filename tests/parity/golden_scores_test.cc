// Log-probabilities of given tokens against what Hugging Face transformers
// computed (tests/golden/README.md), through pipelines of several lengths and
// with prompts cut into chunks of several sizes: the same bits for all.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/model/model_dir.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr float kMaxAbsError = 1e-4f;
constexpr int32_t kTop = 5;

// Scores the prompts side by side, `chunk` tokens of each in a step; of the
// last token nothing is wanted. Prompt i goes to micro-batch i % micro_batches.
absl::StatusOr<std::vector<TokenScores>> ScorePrompts(
    StageChain& chain, const std::vector<std::vector<int32_t>>& prompts,
    int32_t chunk, int micro_batches) {
  std::vector<TokenScores> scores(prompts.size());
  std::vector<int32_t> done(prompts.size());
  StepPlan plan;
  for (;; ++plan.step) {
    plan.micro_batches.assign(micro_batches, {});
    plan.admit.clear();
    for (size_t i = 0; i < prompts.size(); ++i) {
      const SequenceId id(static_cast<int64_t>(i));
      const auto size = static_cast<int32_t>(prompts[i].size());
      if (plan.step == 0) {
        SamplingParams sampling;
        sampling.logprobs = kTop;
        plan.admit.push_back({id, size, size, sampling});
      }
      const int32_t start = done[i];
      const int32_t count = std::min(chunk, size - 1 - start);
      if (count <= 0) continue;
      MicroBatch& batch = plan.micro_batches[i % micro_batches];
      batch.segments.push_back({id, start, count, false, start + 1,
                                start + count + 1, prompts[i][start + count]});
      batch.tokens.insert(batch.tokens.end(), prompts[i].begin() + start,
                          prompts[i].begin() + start + count);
      done[i] += count;
    }
    std::erase_if(plan.micro_batches,
                  [](const MicroBatch& b) { return b.segments.empty(); });
    if (plan.micro_batches.empty()) break;
    StepResult result;
    const absl::Status status = chain.RunStep(plan, &result);
    if (!status.ok()) return status;
    for (const TokenScores& part : result.scores) {
      TokenScores& all = scores[part.sequence.value()];
      all.logprobs.insert(all.logprobs.end(), part.logprobs.begin(),
                          part.logprobs.end());
      all.top.insert(all.top.end(), part.top.begin(), part.top.end());
    }
  }
  chain.Reset();
  return scores;
}

class GoldenScoresTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenScoresTest, AgreesInFloat32) {
  std::ifstream file(fs::path(TestsDir()) / "golden" / "scores" /
                     (GetParam() + ".json"));
  const nlohmann::json golden = nlohmann::json::parse(file);
  auto model = ModelDir::Open(fs::path(TestsDir()) /
                              golden.at("model").get<std::string>());
  ASSERT_TRUE(model.ok()) << model.status();
  auto source = (*model)->OpenTensors();
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& c : golden.at("cases")) prompts.push_back(c.at("ids"));

  std::vector<TokenScores> first;
  float worst = 0;
  for (int stages = 1; stages <= 3; ++stages) {
    const int layers = (*model)->spec().num_layers;
    StageChain::Options options;
    for (int i = 1; i < stages; ++i) {
      options.cuts.push_back(layers * i / stages);
    }
    options.policy.num_microbatches = stages;
    options.max_model_len = 512;
    options.compute_threads = stages == 2 ? 2 : 1;
    auto chain = StageChain::Create((*model)->spec(), **source, options);
    ASSERT_TRUE(chain.ok()) << chain.status();
    for (const int32_t chunk : {1 << 30, 64, 7}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, chunk " << chunk);
      auto scores = ScorePrompts(**chain, prompts, chunk, stages);
      ASSERT_TRUE(scores.ok()) << scores.status();
      if (first.empty()) first = *scores;
      for (size_t i = 0; i < prompts.size(); ++i) {
        const TokenScores& got = (*scores)[i];
        const auto& expected = golden.at("cases")[i];
        const size_t count = prompts[i].size() - 1;
        ASSERT_EQ(got.logprobs.size(), count) << i;
        ASSERT_EQ(got.top.size(), count * kTop) << i;
        for (size_t t = 0; t < count; ++t) {
          worst = std::max(worst,
                           std::abs(got.logprobs[t] -
                                    expected.at("logprobs")[t].get<float>()));
          for (int32_t k = 0; k < kTop; ++k) {
            const TokenLogprob& top = got.top[t * kTop + k];
            const float logprob = expected.at("top_logprobs")[t][k];
            worst = std::max(worst, std::abs(top.logprob - logprob));
            // Either of two tokens that are almost equally likely may come
            // first.
            if (top.token != expected.at("top_ids")[t][k].get<int32_t>()) {
              const auto& all = expected.at("top_logprobs")[t];
              bool close = k + 1 == kTop;
              for (const int other : {k - 1, k + 1}) {
                if (other < 0 || other >= kTop) continue;
                close |= std::abs(all[other].get<float>() - logprob) < 1e-4f;
              }
              EXPECT_TRUE(close) << "prompt " << i << " token " << t;
            }
          }
        }
        for (size_t t = 0; t < count; ++t) {
          ASSERT_EQ(std::bit_cast<uint32_t>(got.logprobs[t]),
                    std::bit_cast<uint32_t>(first[i].logprobs[t]))
              << "prompt " << i << " token " << t;
        }
        for (size_t t = 0; t < got.top.size(); ++t) {
          ASSERT_EQ(got.top[t].token, first[i].top[t].token);
          ASSERT_EQ(got.top[t].logprob, first[i].top[t].logprob);
        }
      }
    }
  }
  EXPECT_LE(worst, kMaxAbsError);
  std::printf("  %s: max abs error %.2g\n", GetParam().c_str(), worst);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenScoresTest,
                         testing::Values("llama-kjv", "opt-kjv",
                                         "qwen3-moe-kjv"),
                         [](const auto& i) {
                           std::string name = i.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
