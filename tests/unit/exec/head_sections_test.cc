// A vocabulary whose matrix is much larger than a layer: the head is streamed
// section by section, and passed through as often as a step's rows want it.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

// 3 layers of 0.15 MB each; the head has a quarter of a kilobyte for each
// token.
DecoderSpec Spec(int32_t vocab) { return LlamaSpec(3, 64, 4, 2, 100, vocab); }

// There are so many requests that a step of four micro-batches samples three
// times what the head takes at once, which is what a micro-batch may have of
// rows.
std::vector<ChainRequest> Requests() {
  std::vector<ChainRequest> requests;
  for (int i = 0; i < 24; ++i) {
    ChainRequest request;
    request.new_tokens = 4 + i % 3;
    request.chunk = 2;
    for (int j = 0; j <= i % 5; ++j) {
      request.prompt.push_back((31 * i + 977 * j) % 9001);
    }
    requests.push_back(request);
  }
  return requests;
}

struct Outcome {
  std::vector<std::vector<int32_t>> tokens;
  std::map<StageChain::Position, std::vector<float>> logits;
};

void RunChain(const std::string& text, int32_t vocab,
              const StageChain::Options& given, Outcome* outcome) {
  StageChain::Options options = given;
  options.policy.max_step_tokens = 12;
  options.policy.num_microbatches = 4;
  const absl::Status policy = UpdatePolicy(text, &options.policy);
  ASSERT_TRUE(policy.ok()) << policy;
  options.max_model_len = 64;
  options.max_sequences = 24;
  options.compute_threads = 2;
  auto chain = StageChain::Create(Spec(vocab), RandomSource(3), options);
  ASSERT_TRUE(chain.ok()) << chain.status();
  for (int round = 0; round < 2; ++round) {
    (*chain)->logits().clear();
    auto tokens = RunRequests(**chain, Requests(),
                              options.policy.num_microbatches, 100 * round);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    outcome->tokens = *tokens;
    (*chain)->Reset();
  }
  outcome->logits = (*chain)->logits();
}

TEST(HeadSectionsTest, SameBitsWhereverTheyLie) {
  Outcome expected;
  RunChain("", 9001, {}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  TempDir dir = TempDir::OnDisk();
  for (const char* policy :
       {"w=0/0/100", "w=0/50/50", "w=0/95/5", "w=0/0/100 overlap=off",
        "w=0/0/100 schedule=row", "w=0/30/70 schedule=row overlap=off",
        "w=0/0/100 c=0/0/100 h=0/0/100", "w=50/50/0", "w=40/0/60",
        "w=0/100/0"}) {
    for (const uint64_t device : {uint64_t{0}, uint64_t{64} << 20}) {
      for (const std::vector<int>& cuts :
           {std::vector<int>{}, std::vector<int>{2}}) {
        SCOPED_TRACE(testing::Message() << policy << ", device " << device
                                        << ", stages " << cuts.size() + 1);
        Outcome outcome;
        RunChain(policy, 9001,
                 {.cuts = cuts, .disk_dir = dir.path(), .device_bytes = device},
                 &outcome);
        ASSERT_FALSE(HasFatalFailure());
        EXPECT_TRUE(outcome.tokens == expected.tokens);
        for (const auto& [position, logits] : expected.logits) {
          // Sequences of the second round.
          EXPECT_TRUE(outcome.logits[position] == logits);
        }
      }
    }
  }
}

TEST(HeadSectionsTest, ABudgetBelowTheHeadIsEnough) {
  TempDir dir = TempDir::OnDisk();
  Outcome expected;
  RunChain("", 60'001, {}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  Outcome outcome;
  // The head has 15 MB, and so has the embedding.
  RunChain("w=0/0/100 c=0/100/0", 60'001,
           {.budget_bytes = 13'000'000, .disk_dir = dir.path()}, &outcome);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_TRUE(outcome.tokens == expected.tokens);
}

}  // namespace
}  // namespace sluice
