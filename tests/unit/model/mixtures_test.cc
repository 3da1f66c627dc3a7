#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/code_format.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/model_dir.h"
#include "tests/support/test_paths.h"

// What the config.json files of families with experts say, in the form in which
// they are published, and what their checkpoints call the weights.

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DecoderSpec SpecOf(const std::string& config) {
  auto spec = ParseDecoderSpec(config);
  EXPECT_TRUE(spec.ok()) << spec.status() << "\n" << config;
  return spec.ok() ? *spec : DecoderSpec();
}

TensorRef Find(const DecoderSpec& spec, TensorRole role, int expert = 0) {
  for (const TensorRef& ref : LayerTensors(spec, 1)) {
    if (ref.role == role && ref.expert == expert) return ref;
  }
  ADD_FAILURE() << "no such tensor";
  return {};
}

std::string MixtureMarks(const DecoderSpec& spec) {
  std::string text;
  for (const LayerSpec& layer : spec.layers) text += layer.mixture ? 'm' : '.';
  return text;
}

TEST(MixturesTest, Mixtral) {
  const DecoderSpec spec = SpecOf(
      R"({"model_type": "mixtral", "num_local_experts": 8, "hidden_size": 4096,
          "num_experts_per_tok": 2, "intermediate_size": 14336,
          "num_hidden_layers": 2, "rope_theta": 1e6, "sliding_window": null})");
  EXPECT_EQ(MixtureMarks(spec), "mm");
  EXPECT_EQ(spec.mixture.experts, 8);
  EXPECT_EQ(spec.mixture.experts_per_token, 2);
  EXPECT_EQ(spec.mixture.expert_size, 14336);
  EXPECT_TRUE(spec.mixture.normalize);
  EXPECT_EQ(Find(spec, TensorRole::kRouterWeight).name,
            "model.layers.1.block_sparse_moe.gate.weight");
  EXPECT_EQ(Find(spec, TensorRole::kExpertUpWeight, 7).name,
            "model.layers.1.block_sparse_moe.experts.7.w3.weight");
}

TEST(MixturesTest, QwensOfTwoKinds) {
  const DecoderSpec two = SpecOf(
      R"({"model_type": "qwen2_moe", "num_experts": 60, "hidden_size": 2048,
          "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
          "shared_expert_intermediate_size": 5632, "num_hidden_layers": 4,
          "norm_topk_prob": false, "decoder_sparse_step": 1,
          "max_window_layers": 21, "sliding_window": 32768,
          "use_sliding_window": false})");
  EXPECT_EQ(MixtureMarks(two), "mmmm");
  EXPECT_EQ(two.mixture.shared_size, 5632);
  EXPECT_TRUE(two.mixture.shared_score);
  EXPECT_FALSE(two.mixture.normalize);
  EXPECT_TRUE(two.qkv_bias);
  EXPECT_EQ(two.layers[0].window, 0);
  EXPECT_EQ(Find(two, TensorRole::kSharedDownWeight).name,
            "model.layers.1.mlp.shared_expert.down_proj.weight");
  EXPECT_THAT(Find(two, TensorRole::kSharedScoreWeight).tensor_shape(),
              ElementsAre(1, 2048));
  // Windows are those of every other layer, before the one that is named.
  const DecoderSpec windows = SpecOf(
      R"({"model_type": "qwen2_moe", "num_hidden_layers": 5,
          "use_sliding_window": true, "sliding_window": 64,
          "max_window_layers": 3, "mlp_only_layers": [1],
          "decoder_sparse_step": 2})");
  EXPECT_EQ(MixtureMarks(windows), "...m.");
  std::vector<int32_t> of_layers;
  for (const LayerSpec& layer : windows.layers) {
    of_layers.push_back(layer.window);
  }
  EXPECT_THAT(of_layers, ElementsAre(64, 0, 64, 0, 0));
  // Those of Qwen3-MoE are all layers'.
  const DecoderSpec three = SpecOf(
      R"({"model_type": "qwen3_moe", "num_experts": 128, "head_dim": 128,
          "num_experts_per_tok": 8, "moe_intermediate_size": 768,
          "hidden_size": 2048, "norm_topk_prob": true, "mlp_only_layers": [],
          "num_hidden_layers": 3, "use_sliding_window": true,
          "sliding_window": 64, "max_window_layers": 2})");
  EXPECT_EQ(three.layers[2].window, 64);
  EXPECT_TRUE(three.mixture.normalize);
  EXPECT_EQ(three.qk_norm, QkNorm::kEachHead);
  EXPECT_EQ(Find(three, TensorRole::kExpertGateWeight, 127).name,
            "model.layers.1.mlp.experts.127.gate_proj.weight");
}

TEST(MixturesTest, GraniteHasExpertsInOneTensor) {
  const DecoderSpec spec = SpecOf(
      R"({"model_type": "granitemoe", "num_local_experts": 40,
          "num_experts_per_tok": 8, "hidden_size": 1536,
          "intermediate_size": 512, "num_attention_heads": 24,
          "residual_multiplier": 0.22, "num_hidden_layers": 2})");
  EXPECT_EQ(spec.mixture.router, RouterKind::kChosenSoftmax);
  const TensorRef up = Find(spec, TensorRole::kExpertUpWeight, 3);
  EXPECT_EQ(up.name, "model.layers.1.block_sparse_moe.input_linear.weight");
  EXPECT_THAT(up.tensor_shape(), ElementsAre(40, 1024, 1536));
  EXPECT_EQ(up.StoredRow(0), 512);
  EXPECT_EQ(up.first_element(), 3 * 1024 * 1536);
  const TensorRef down = Find(spec, TensorRole::kExpertDownWeight, 3);
  EXPECT_THAT(down.tensor_shape(), ElementsAre(40, 1536, 512));
  EXPECT_EQ(down.scale, 0.22F);
  const DecoderSpec shared = SpecOf(
      R"({"model_type": "granitemoeshared", "num_hidden_layers": 2,
          "shared_intermediate_size": 1024, "residual_multiplier": 0.5})");
  const TensorRef shared_up = Find(shared, TensorRole::kSharedUpWeight);
  EXPECT_EQ(shared_up.name, "model.layers.1.shared_mlp.input_linear.weight");
  EXPECT_EQ(shared_up.StoredRow(0), 1024);
  EXPECT_EQ(Find(shared, TensorRole::kSharedDownWeight).scale, 0.5F);
}

TEST(MixturesTest, GptOssHasRowsOfGateAndUpInTurns) {
  const DecoderSpec spec = SpecOf(
      R"({"model_type": "gpt_oss", "num_hidden_layers": 4, "hidden_size": 2880,
          "num_local_experts": 32, "experts_per_token": 4,
          "num_experts_per_tok": 4, "intermediate_size": 2880,
          "initial_context_length": 4096, "rope_theta": 150000,
          "sliding_window": 128, "swiglu_limit": 7.0, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn",
            "truncate": false}})");
  EXPECT_TRUE(spec.attention_sinks);
  EXPECT_EQ(spec.gate_limit, 7);
  EXPECT_EQ(spec.gate_slope, 1.702F);
  EXPECT_EQ(spec.up_offset, 1);
  EXPECT_TRUE(spec.qkv_bias && spec.out_bias);
  EXPECT_TRUE(spec.mixture.router_bias && spec.mixture.expert_bias);
  EXPECT_EQ(spec.max_positions, 131072);
  EXPECT_EQ(spec.layers[0].window, 128);
  EXPECT_EQ(spec.layers[1].window, 0);
  EXPECT_THAT(Find(spec, TensorRole::kSinks).shape, ElementsAre(64));
  const TensorRef up = Find(spec, TensorRole::kExpertUpWeight, 5);
  EXPECT_EQ(up.name, "model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_THAT(up.tensor_shape(), ElementsAre(32, 2880, 5760));
  EXPECT_EQ(up.StoredRow(0), 1);
  EXPECT_EQ(up.StoredRow(7), 15);
  const TensorRef bias = Find(spec, TensorRole::kExpertGateBias, 5);
  EXPECT_THAT(bias.tensor_shape(), ElementsAre(32, 5760));
  EXPECT_EQ(bias.first_element(), 5 * 5760);
  EXPECT_EQ(bias.StoredRow(7), 14);
  // Without settings, positions are scaled all the same.
  const DecoderSpec bare = SpecOf(R"({"model_type": "gpt_oss"})");
  EXPECT_EQ(bare.rotaries[0].inv_freq, spec.rotaries[0].inv_freq);
}

TEST(MixturesTest, Glm4HasDenseLayersFirst) {
  const DecoderSpec spec = SpecOf(
      R"({"model_type": "glm4_moe", "num_hidden_layers": 4,
          "n_routed_experts": 160, "n_shared_experts": 2, "n_group": 8,
          "topk_group": 4, "num_experts_per_tok": 8, "norm_topk_prob": true,
          "moe_intermediate_size": 1536, "first_k_dense_replace": 1,
          "routed_scaling_factor": 2.5, "use_qk_norm": true,
          "attention_bias": true, "partial_rotary_factor": 0.5,
          "head_dim": 128, "num_nextn_predict_layers": 1})");
  EXPECT_EQ(MixtureMarks(spec), ".mmm");
  EXPECT_EQ(spec.mixture.router, RouterKind::kSigmoid);
  EXPECT_EQ(spec.mixture.shared_size, 3072);
  EXPECT_EQ(spec.mixture.groups, 8);
  EXPECT_EQ(spec.mixture.chosen_groups, 4);
  EXPECT_EQ(spec.mixture.scale, 2.5F);
  EXPECT_TRUE(spec.qkv_bias && !spec.out_bias);
  EXPECT_EQ(spec.rotaries[0].dim, 64);
  EXPECT_EQ(Find(spec, TensorRole::kChoiceBias).name,
            "model.layers.1.mlp.gate.e_score_correction_bias");
}

TEST(MixturesTest, ErnieAndMiniMax) {
  const DecoderSpec ernie = SpecOf(
      R"({"model_type": "ernie4_5_moe", "moe_num_experts": 64, "moe_k": 6,
          "moe_intermediate_size": 1536, "moe_num_shared_experts": 2,
          "moe_layer_start_index": 1, "moe_layer_end_index": 3,
          "moe_layer_interval": 2, "num_hidden_layers": 6})");
  EXPECT_EQ(MixtureMarks(ernie), ".m.m..");
  EXPECT_EQ(ernie.mixture.shared_size, 3072);
  const TensorRef bias = Find(ernie, TensorRole::kChoiceBias);
  EXPECT_EQ(bias.name,
            "model.layers.1.mlp.moe_statics.e_score_correction_bias");
  EXPECT_THAT(bias.tensor_shape(), ElementsAre(1, 64));
  EXPECT_EQ(Find(ernie, TensorRole::kQWeight).interleaved, 128);
  const DecoderSpec minimax = SpecOf(
      R"({"model_type": "minimax_m2", "num_hidden_layers": 2, "head_dim": 128,
          "rotary_dim": 64, "rope_theta": 5000000})");
  EXPECT_EQ(minimax.rotaries[0].dim, 64);
  EXPECT_EQ(minimax.qk_norm, QkNorm::kAllHeads);
  EXPECT_EQ(Find(minimax, TensorRole::kChoiceBias).name,
            "model.layers.1.block_sparse_moe.e_score_correction_bias");
  EXPECT_EQ(Find(minimax, TensorRole::kExpertDownWeight, 255).name,
            "model.layers.1.block_sparse_moe.experts.255.w2.weight");
}

// Those of both kinds of files are MXFP4, and gate and up are rows of one
// tensor in one of them.
TEST(MixturesTest, ExpertsOfGptOssStayInTheirCodes) {
  const std::string golden = TestsDir() + "/golden/";
  for (const char* const path :
       {"models/gpt-oss-mxfp4", "gguf/gpt-oss-mxfp4.gguf"}) {
    const auto model = ModelDir::Open(golden + path);
    ASSERT_TRUE(model.ok()) << model.status();
    const LayerCodes& codes = (*model)->spec().layers[1].codes;
    for (const CodeFormat* format :
         {codes.expert_gate, codes.expert_up, codes.expert_down}) {
      ASSERT_NE(format, nullptr) << path;
      EXPECT_EQ(format->name, "MXFP4");
    }
  }
}

TEST(MixturesTest, WhatCannotRunIsSaidByItsKey) {
  for (const auto& [config, message] :
       std::vector<std::pair<std::string, std::string>>{
           {R"({"model_type": "mixtral", "num_experts_per_tok": 9})",
            "num_experts_per_tok is 9, but there are 8 experts"},
           {R"({"model_type": "qwen3_moe", "num_experts": 0})",
            "num_experts must be in [1, "},
           {R"({"model_type": "olmoe", "clip_qkv": 8.0})",
            "clip_qkv (not null)"},
           {R"({"model_type": "glm4_moe", "n_group": 3})",
            "n_group must divide the number of experts (128), but is 3"},
           {R"({"model_type": "glm4_moe", "n_group": 64, "topk_group": 2})",
            "topk_group is 2 of 64 groups"},
           {R"({"model_type": "glm4_moe", "moe_intermediate_size": 65536,
                "n_shared_experts": 32})",
            "n_shared_experts times the experts' size must be at most"},
           {R"({"model_type": "ernie4_5_moe", "use_bias": true})",
            "use_bias true"},
           {R"({"model_type": "gpt_oss", "swiglu_limit": -1})",
            "swiglu_limit must be in"},
           {R"({"model_type": "qwen2_moe", "num_hidden_layers": 1,
                "layer_types": ["sliding_attention"]})",
            "layer_types has \"sliding_attention\""}}) {
    const absl::Status status = ParseDecoderSpec(config).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace sluice
