#include "tests/unit/exec/placement_testing.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/parity/random_source.h"

namespace sluice {

std::string PlacementName(int model) {
  const char* const names[kPlacementModels] = {"qwen3",  "opt",      "gemma",
                                               "olmo",   "parallel", "bloom",
                                               "falcon", "mixture"};
  return names[model];
}

DecoderSpec PlacementSpec(int model) {
  if (model == 2) return GemmaSpec(4);
  if (model == 3) return OlmoSpec(4);
  if (model == 4) return ParallelSpec(4);
  if (model == 5) return BloomSpec(4);
  if (model == 6) return FalconSpec(4);
  if (model == 7) return MixtureOfExperts(4, RouterKind::kSigmoid);
  if (model == 0) {
    DecoderSpec spec = LlamaSpec(4, 96, 6, 2, 200, 301);
    spec.qk_norm = QkNorm::kEachHead;
    return spec;
  }
  DecoderSpec spec = LlamaSpec(4, 64, 4, 4, 130, 150);
  spec.model_type = "opt";
  spec.norm = NormKind::kLayerNorm;
  spec.gated_mlp = false;
  spec.activation = Activation::kRelu;
  spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
  spec.positions = PositionKind::kLearned;
  spec.rotaries.clear();
  spec.position_offset = 2;
  spec.max_positions = 400;
  return spec;
}

Policy With(const std::string& keys) {
  Policy policy;
  policy.max_step_tokens = 256;
  policy.num_microbatches = 2;
  const absl::Status status = UpdatePolicy(keys, &policy);
  EXPECT_TRUE(status.ok()) << status;
  return policy;
}

std::vector<ChainRequest> PlacementRequests(int32_t vocab) {
  std::vector<ChainRequest> requests;
  uint32_t state = 1;
  int i = 0;
  for (const int length : {1, 2, 31, 32, 33, 70, 150, 5, 64, 40}) {
    ChainRequest request;
    request.new_tokens = 10;
    request.chunk = 48;
    request.enters_at_step = i++ % 4;
    for (int j = 0; j < length; ++j) {
      state = state * 1664525u + 1013904223u;
      request.prompt.push_back((state >> 8) % vocab);
    }
    requests.push_back(request);
  }
  return requests;
}

void RunPlacement(const DecoderSpec& spec, const PlacementRun& run,
                  Outcome* outcome) {
  StageChain::Options options;
  options.policy = run.policy;
  options.disk_dir = run.disk_dir;
  options.cuts = run.cuts;
  options.ranks = run.ranks;
  options.device_bytes = run.device_bytes;
  options.device = run.device;
  options.wrap_backend = run.wrap_backend;
  options.max_model_len = 200;
  options.max_sequences = 12;
  options.compute_threads = 2;
  const RandomSource random(3);
  auto chain = StageChain::Create(
      spec, run.source != nullptr ? *run.source : random, options);
  ASSERT_TRUE(chain.ok()) << chain.status();
  for (int round = 0; round < 2; ++round) {
    // The second round finds whatever the first one left behind.
    (*chain)->logits().clear();
    auto tokens = RunRequests(**chain, PlacementRequests(spec.vocab_size),
                              run.policy.num_microbatches, 100 * round);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    if (round > 0) {
      EXPECT_EQ(outcome->tokens, *tokens);
    }
    outcome->tokens = *std::move(tokens);
    (*chain)->Reset();
  }
  for (auto& [position, logits] : (*chain)->logits()) {
    outcome->logits[{position.first - 100, position.second}] = logits;
  }
  for (int i = 0; i < (*chain)->num_stages(); ++i) {
    const SweepStats stats = (*chain)->stage(i).stats();
    outcome->stats.disk_read_bytes += stats.disk_read_bytes;
    outcome->stats.disk_write_bytes += stats.disk_write_bytes;
    outcome->stats.activation_read_bytes += stats.activation_read_bytes;
    outcome->stats.activation_write_bytes += stats.activation_write_bytes;
    outcome->stats.h2d_bytes += stats.h2d_bytes;
    outcome->stats.d2h_bytes += stats.d2h_bytes;
    outcome->stats.host_attention_seconds += stats.host_attention_seconds;
  }
  outcome->placement = (*chain)->stage(0).placement();
  if (run.observe) run.observe(**chain);
}

}  // namespace sluice
