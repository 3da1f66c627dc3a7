// A sequence's logits must be the same bits however it is run: cut into chunks,
// in any company, on any number of stages and threads, in float32 and in
// bfloat16.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"

namespace sluice {
namespace {

struct Case {
  std::string name;
  DecoderSpec spec;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  cases.push_back({"multi_head", LlamaSpec(3, 60, 5, 5, 100, 150)});
  cases.push_back({"grouped", LlamaSpec(3, 96, 8, 2, 200, 97)});
  // Wide enough for several panels and for whole tiles.
  cases.push_back({"wide", LlamaSpec(3, 256, 4, 2, 640, 300)});
  DecoderSpec windows = LlamaSpec(3, 80, 4, 1, 100, 150);
  windows.layers = {{}, {.window = 9}, {.window = 40}};
  windows.qkv_bias = true;
  windows.tied_embeddings = true;
  cases.push_back({"windows", windows});
  DecoderSpec opt = LlamaSpec(3, 64, 4, 4, 130, 150);
  opt.model_type = "opt";
  opt.norm = NormKind::kLayerNorm;
  opt.norm_place = NormPlace::kSum;
  opt.gated_mlp = false;
  opt.activation = Activation::kRelu;
  opt.qkv_bias = opt.out_bias = opt.mlp_bias = true;
  opt.positions = PositionKind::kLearned;
  opt.rotaries.clear();
  opt.position_offset = 2;
  opt.max_positions = 400;
  opt.embed_dim = 40;
  opt.final_norm = false;
  cases.push_back({"opt", opt});
  cases.push_back({"gemma", GemmaSpec(3)});
  cases.push_back({"olmo", OlmoSpec(3)});
  cases.push_back({"bloom", BloomSpec(3)});
  cases.push_back({"falcon", FalconSpec(3)});
  cases.push_back({"parallel", ParallelSpec(3)});
  cases.push_back({"mixture", MixtureOfExperts(3, RouterKind::kSoftmax)});
  cases.push_back(
      {"sigmoid_mixture", MixtureOfExperts(3, RouterKind::kSigmoid)});
  cases.push_back({"chosen_softmax_mixture",
                   MixtureOfExperts(3, RouterKind::kChosenSoftmax)});
  cases.push_back({"grouped_mixture", GroupedMixture(3)});
  return cases;
}

class StageInvarianceTest
    : public testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  // Null if the machine has no products of this type.
  std::unique_ptr<StageChain> Chain(std::vector<int> cuts, int threads) {
    StageChain::Options options;
    options.cuts = std::move(cuts);
    options.policy.dtype = std::get<1>(GetParam());
    options.policy.num_microbatches = 3;
    options.max_model_len = 300;
    options.compute_threads = threads;
    auto chain = StageChain::Create(case_.spec, RandomSource(3), options);
    if (absl::IsUnimplemented(chain.status())) return nullptr;
    EXPECT_TRUE(chain.ok()) << chain.status();
    return *std::move(chain);
  }

  std::vector<ChainRequest> Requests() const {
    std::vector<ChainRequest> requests;
    uint32_t state = 1;
    for (const int length : {1, 2, 31, 32, 33, 70, 150, 5, 64}) {
      ChainRequest request;
      request.new_tokens = 12;
      for (int i = 0; i < length; ++i) {
        state = state * 1664525u + 1013904223u;
        request.prompt.push_back((state >> 8) % case_.spec.vocab_size);
      }
      requests.push_back(request);
    }
    return requests;
  }

  const Case case_ = Cases()[std::get<0>(GetParam())];
};

TEST_P(StageInvarianceTest, SameBitsHoweverItIsRun) {
  std::unique_ptr<StageChain> one = Chain({}, 1);
  if (one == nullptr) GTEST_SKIP() << "not on this machine";
  // Each request runs alone, its prompt whole.
  std::vector<ChainRequest> requests = Requests();
  std::vector<std::vector<int32_t>> tokens;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto run = RunRequests(*one, {requests[i]}, 1, i);
    ASSERT_TRUE(run.ok()) << run.status();
    tokens.push_back((*run)[0]);
  }
  auto expected = one->logits();

  struct Variant {
    std::vector<int> cuts;
    int threads;
    int micro_batches;
    int chunk;
  };
  for (const Variant& v :
       {Variant{{}, 1, 1, 1 << 30}, Variant{{}, 2, 3, 1 << 30},
        Variant{{1}, 1, 2, 1}, Variant{{1, 2}, 3, 3, 7}, Variant{{2}, 5, 2, 32},
        Variant{{}, 1, 1, 33}}) {
    SCOPED_TRACE(testing::Message()
                 << v.cuts.size() + 1 << " stages, " << v.threads
                 << " threads, " << v.micro_batches << " micro-batches, chunk "
                 << v.chunk);
    std::unique_ptr<StageChain> chain = Chain(v.cuts, v.threads);
    ASSERT_NE(chain, nullptr);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].chunk = v.chunk == 7 ? 7 + static_cast<int>(i) : v.chunk;
      requests[i].enters_at_step = static_cast<int>(i * v.threads % 7);
    }
    auto run = RunRequests(*chain, requests, v.micro_batches);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(*run, tokens);
    ASSERT_EQ(chain->logits().size(), expected.size());
    for (const auto& [position, logits] : chain->logits()) {
      ASSERT_EQ(logits, expected[position])
          << "sequence " << position.first << " position " << position.second;
    }
  }
}

// Recovery prefills prompt and generated tokens together, as this does.
TEST_P(StageInvarianceTest, SameTokensAfterReplay) {
  std::unique_ptr<StageChain> chain = Chain({1}, 2);
  if (chain == nullptr) GTEST_SKIP() << "not on this machine";
  std::vector<ChainRequest> requests = Requests();
  for (auto& request : requests) {
    request.sampling.temperature = 0.8f;
    request.sampling.seed = 17;
  }
  auto whole = RunRequests(*chain, requests, 2);
  ASSERT_TRUE(whole.ok()) << whole.status();
  chain->Reset();
  for (size_t i = 0; i < requests.size(); ++i) {
    const int known = static_cast<int>(i % 12);
    requests[i].prompt.insert(requests[i].prompt.end(), (*whole)[i].begin(),
                              (*whole)[i].begin() + known);
    requests[i].new_tokens -= known;
  }
  auto again = RunRequests(*chain, requests, 3);
  ASSERT_TRUE(again.ok()) << again.status();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ((*again)[i], std::vector<int32_t>((*whole)[i].begin() + i % 12,
                                                (*whole)[i].end()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, StageInvarianceTest,
    testing::Combine(testing::Range(0, static_cast<int>(Cases().size())),
                     testing::Values(DType::kFloat32, DType::kBFloat16)),
    [](const auto& i) {
      return Cases()[std::get<0>(i.param)].name + "_" +
             std::string(DTypeName(std::get<1>(i.param)));
    });

}  // namespace
}  // namespace sluice
