#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/decoder_spec.h"

// What the config.json files of families say, in the form in which they are
// published. What the models compute is held to transformers by the golden
// logits.

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DecoderSpec Parse(const std::string& config) {
  auto spec = ParseDecoderSpec(config);
  EXPECT_TRUE(spec.ok()) << spec.status() << "\n" << config;
  return spec.ok() ? *spec : DecoderSpec();
}

TensorRef LayerTensor(const DecoderSpec& spec, TensorRole role) {
  for (const TensorRef& ref : LayerTensors(spec, 1)) {
    if (ref.role == role) return ref;
  }
  ADD_FAILURE() << "no such tensor";
  return {};
}

std::vector<int32_t> Windows(const DecoderSpec& spec) {
  std::vector<int32_t> windows;
  for (const LayerSpec& layer : spec.layers) windows.push_back(layer.window);
  return windows;
}

std::vector<int32_t> Rotaries(const DecoderSpec& spec) {
  std::vector<int32_t> rotaries;
  for (const LayerSpec& layer : spec.layers) rotaries.push_back(layer.rotary);
  return rotaries;
}

std::vector<bool> Mixtures(const DecoderSpec& spec) {
  std::vector<bool> mixtures;
  for (const LayerSpec& layer : spec.layers) mixtures.push_back(layer.mixture);
  return mixtures;
}

TEST(FamiliesTest, Qwen3Moe) {
  // As Qwen3-30B-A3B's, with a layer that has no experts.
  const std::string config =
      R"({"model_type": "qwen3_moe", "num_hidden_layers": 3, "num_experts": 128,
          "hidden_size": 2048, "head_dim": 128, "moe_intermediate_size": 768,
          "norm_topk_prob": true, "mlp_only_layers": [0], "rope_theta": 1e6,
          "num_experts_per_tok": )";
  const DecoderSpec spec = Parse(config + "8}");
  EXPECT_THAT(Mixtures(spec), ElementsAre(false, true, true));
  EXPECT_EQ(spec.mixture.experts, 128);
  EXPECT_EQ(spec.mixture.experts_per_token, 8);
  EXPECT_EQ(spec.mixture.router, RouterKind::kSoftmax);
  EXPECT_TRUE(spec.mixture.normalize);
  EXPECT_EQ(spec.widest_inner(), 6144);
  const std::vector<TensorRef> tensors = LayerTensors(spec, 1);
  EXPECT_EQ(tensors.back().name,
            "model.layers.1.mlp.experts.127.down_proj.weight");
  EXPECT_THAT(tensors.back().shape, ElementsAre(2048, 768));
  EXPECT_EQ(LayerTensor(spec, TensorRole::kRouterWeight).name,
            "model.layers.1.mlp.gate.weight");
  EXPECT_THAT(LayerTensor(spec, TensorRole::kRouterWeight).shape,
              ElementsAre(128, 2048));
  EXPECT_THAT(
      ParseDecoderSpec(config + "129}").status().message(),
      HasSubstr("num_experts_per_tok is 129, but there are 128 experts"));
}

TEST(FamiliesTest, Mixtral) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "mixtral", "num_hidden_layers": 2, "rope_theta": 1e6})");
  EXPECT_THAT(Mixtures(spec), ElementsAre(true, true));
  EXPECT_EQ(spec.mixture.expert_size, 14336);
  EXPECT_EQ(LayerTensor(spec, TensorRole::kRouterWeight).name,
            "model.layers.1.block_sparse_moe.gate.weight");
  EXPECT_EQ(LayerTensors(spec, 1).back().name,
            "model.layers.1.block_sparse_moe.experts.7.w2.weight");
  EXPECT_THAT(ParseDecoderSpec(
                  R"({"model_type": "mixtral", "num_local_experts": 4000})")
                  .status()
                  .message(),
              HasSubstr("times num_local_experts (4000) must be at most"));
}

TEST(FamiliesTest, Gemma2) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "gemma2", "num_hidden_layers": 3, "hidden_size": 2304,
          "hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096,
          "query_pre_attn_scalar": 144, "torch_dtype": "bfloat16"})");
  EXPECT_EQ(spec.vocab_size, 256000);
  EXPECT_EQ(spec.norm_place, NormPlace::kInputAndOutput);
  EXPECT_EQ(spec.activation, Activation::kGeluTanh);
  EXPECT_THAT(Windows(spec), ElementsAre(4096, 0, 4096));
  EXPECT_THAT(Rotaries(spec), ElementsAre(0, 0, 0));
  EXPECT_EQ(spec.attention_cap, 50);
  EXPECT_EQ(spec.logit_cap, 30);
  EXPECT_FLOAT_EQ(spec.attention_scale, 1 / 12.0F);
  EXPECT_EQ(spec.embedding_scale, 48);
  EXPECT_TRUE(spec.tied_embeddings);
  const TensorRef norm = LayerTensor(spec, TensorRole::kNorm2Weight);
  EXPECT_EQ(norm.name, "model.layers.1.pre_feedforward_layernorm.weight");
  EXPECT_EQ(norm.add, 1);
  EXPECT_EQ(LayerTensor(spec, TensorRole::kOutNormWeight).name,
            "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(LayerTensor(spec, TensorRole::kDownNormWeight).name,
            "model.layers.1.post_feedforward_layernorm.weight");
  // A cap that is null is none.
  const DecoderSpec bare = Parse(
      R"({"model_type": "gemma2", "attn_logit_softcapping": null,
          "final_logit_softcapping": null})");
  EXPECT_EQ(bare.attention_cap, 0);
  EXPECT_EQ(bare.logit_cap, 0);
}

// The config.json of Gemma 3 4B has the text's part within.
TEST(FamiliesTest, Gemma3TakesTheTextOfAModelForImages) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "gemma3", "eos_token_id": [1, 106],
          "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
          "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240,
            "model_type": "gemma3_text", "num_hidden_layers": 7,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024}})");
  EXPECT_EQ(spec.model_type, "gemma3");
  EXPECT_EQ(spec.vocab_size, 262208);
  EXPECT_EQ(spec.native_dtype, DType::kBFloat16);
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(1, 106));
  EXPECT_EQ(spec.qk_norm, QkNorm::kEachHead);
  EXPECT_THAT(Windows(spec),
              ElementsAre(1024, 1024, 1024, 1024, 1024, 0, 1024));
  EXPECT_THAT(Rotaries(spec), ElementsAre(0, 0, 0, 0, 0, 1, 0));
  ASSERT_EQ(spec.rotaries.size(), 2u);
  EXPECT_FLOAT_EQ(spec.rotaries[0].inv_freq[1],
                  std::pow(10000.0F, -2 / 256.0F));
  EXPECT_FLOAT_EQ(spec.rotaries[1].inv_freq[1],
                  std::pow(1e6F, -2 / 256.0F) / 8);
  EXPECT_EQ(spec.attention_cap, 0);
  EXPECT_EQ(spec.default_positions, 131072);
}

TEST(FamiliesTest, Gemma3InTransformers5sSpelling) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "gemma3_text", "num_hidden_layers": 2,
          "layer_types": ["full_attention", "sliding_attention"],
          "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5000},
            "sliding_attention": {"rope_type": "default", "rope_theta": 7}}})");
  EXPECT_THAT(Windows(spec), ElementsAre(0, 4096));
  EXPECT_THAT(Rotaries(spec), ElementsAre(1, 0));
  EXPECT_FLOAT_EQ(spec.rotaries[0].inv_freq[1], std::pow(7.0F, -2 / 256.0F));
  EXPECT_FLOAT_EQ(spec.rotaries[1].inv_freq[1], std::pow(5e3F, -2 / 256.0F));
}

TEST(FamiliesTest, OlmoNormsOutputsAndAllHeads) {
  const DecoderSpec two = Parse(R"({"model_type": "olmo2"})");
  EXPECT_EQ(two.norm_place, NormPlace::kOutput);
  EXPECT_EQ(two.norm_eps, 1e-5F);
  EXPECT_THAT(LayerTensor(two, TensorRole::kQNormWeight).shape,
              ElementsAre(4096));
  const DecoderSpec three = Parse(
      R"({"model_type": "olmo3", "num_hidden_layers": 4, "rope_theta": 500000,
          "max_position_embeddings": 65536, "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2,
            "original_max_position_embeddings": 8192}})");
  EXPECT_THAT(Windows(three), ElementsAre(4096, 4096, 4096, 0));
  EXPECT_THAT(Rotaries(three), ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(three.rotaries[0].attention_factor, 1);
  EXPECT_EQ(three.rotaries[1].attention_factor, 1.2F);
}

TEST(FamiliesTest, Smollm3HasLayersThatDoNotRotate) {
  const DecoderSpec spec =
      Parse(R"({"model_type": "smollm3", "num_hidden_layers": 5,
                "no_rope_layers": [1, 1, 1, 0, 1]})");
  EXPECT_THAT(Rotaries(spec), ElementsAre(0, 0, 0, -1, 0));
  EXPECT_EQ(spec.rotary(3), nullptr);
  EXPECT_FLOAT_EQ(spec.rotary(4)->inv_freq[1], std::pow(2e6F, -2 / 128.0F));
  EXPECT_THAT(
      Rotaries(Parse(R"({"model_type": "smollm3", "num_hidden_layers": 4})")),
      ElementsAre(0, 0, 0, -1));
}

TEST(FamiliesTest, Glm4RotatesNeighbours) {
  const DecoderSpec spec = Parse(R"({"model_type": "glm4"})");
  EXPECT_EQ(spec.rotaries[0].dim, 64);
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(151329, 151336, 151338));
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_FALSE(spec.out_bias);
  const TensorRef k = LayerTensor(spec, TensorRole::kKBias);
  EXPECT_EQ(k.interleaved, 64);
  EXPECT_EQ(k.head_rows, 128);
  EXPECT_EQ(k.StoredRow(0), 0);
  EXPECT_EQ(k.StoredRow(1), 2);
  EXPECT_EQ(k.StoredRow(33), 3);
  EXPECT_EQ(k.StoredRow(64), 64);
  EXPECT_EQ(k.StoredRow(129), 130);
  EXPECT_EQ(LayerTensor(spec, TensorRole::kOutNormWeight).name,
            "model.layers.1.post_self_attn_layernorm.weight");
}

TEST(FamiliesTest, Cohere2RotatesWhereThereIsAWindow) {
  const DecoderSpec spec =
      Parse(R"({"model_type": "cohere2", "num_hidden_layers": 4,
                "logit_scale": 0.25, "sliding_window": 4096})");
  EXPECT_TRUE(spec.parallel && spec.shared_norm);
  EXPECT_FALSE(spec.norm_bias);
  EXPECT_THAT(Windows(spec), ElementsAre(4096, 4096, 4096, 0));
  EXPECT_THAT(Rotaries(spec), ElementsAre(0, 0, 0, -1));
  EXPECT_EQ(HeadTensors(spec).back().scale, 0.25F);
}

TEST(FamiliesTest, PythiasHeadsAreParts) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "gpt_neox", "hidden_size": 512, "rotary_pct": 0.25,
          "num_attention_heads": 8, "num_hidden_layers": 6,
          "rotary_emb_base": 20000, "intermediate_size": 2048})");
  EXPECT_EQ(spec.rotaries[0].dim, 16);
  EXPECT_FLOAT_EQ(spec.rotaries[0].inv_freq[1], std::pow(2e4F, -2 / 16.0F));
  EXPECT_TRUE(spec.parallel && !spec.shared_norm);
  const TensorRef k = LayerTensor(spec, TensorRole::kKWeight);
  EXPECT_EQ(k.name, "gpt_neox.layers.1.attention.query_key_value.weight");
  EXPECT_THAT(k.tensor_shape(), ElementsAre(1536, 512));
  EXPECT_EQ(k.StoredRow(0), 64);
  EXPECT_EQ(k.StoredRow(64), 256);
}

TEST(FamiliesTest, FalconsOfThreeKinds) {
  const DecoderSpec small = Parse(
      R"({"model_type": "falcon", "hidden_size": 4544, "alibi": false,
          "num_attention_heads": 71, "multi_query": true})");
  EXPECT_EQ(small.num_kv_heads, 1);
  EXPECT_EQ(small.intermediate_size, 4 * 4544);
  EXPECT_TRUE(small.parallel && small.shared_norm);
  EXPECT_EQ(LayerTensor(small, TensorRole::kVWeight).StoredRow(0), 72 * 64);
  const DecoderSpec large = Parse(
      R"({"model_type": "falcon", "hidden_size": 8192, "num_kv_heads": 8,
          "num_attention_heads": 128, "new_decoder_architecture": true})");
  EXPECT_EQ(large.num_kv_heads, 8);
  EXPECT_TRUE(large.parallel && !large.shared_norm);
  const TensorRef q = LayerTensor(large, TensorRole::kQWeight);
  EXPECT_EQ(q.StoredRow(16 * 64), 18 * 64);
  const DecoderSpec in_turn = Parse(
      R"({"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4,
          "multi_query": false, "parallel_attn": false, "bias": true})");
  EXPECT_EQ(in_turn.num_kv_heads, 4);
  EXPECT_FALSE(in_turn.parallel);
  EXPECT_TRUE(in_turn.mlp_bias);
}

TEST(FamiliesTest, GptsHaveNamesOfTheirOwn) {
  const DecoderSpec two = Parse(
      R"({"model_type": "gpt2", "n_embd": 1024, "n_head": 16, "n_layer": 24,
          "n_positions": 2048, "n_inner": null})");
  EXPECT_EQ(two.hidden_size, 1024);
  EXPECT_EQ(two.head_dim, 64);
  EXPECT_EQ(two.num_layers, 24);
  EXPECT_EQ(two.max_positions, 2048);
  EXPECT_EQ(two.intermediate_size, 4096);
  EXPECT_TRUE(two.rotaries.empty());
  const TensorRef v = LayerTensor(two, TensorRole::kVWeight);
  EXPECT_THAT(v.tensor_shape(), ElementsAre(1024, 3072));
  EXPECT_EQ(v.StoredRow(5), 2053);
  const DecoderSpec j = Parse(R"({"model_type": "gptj"})");
  EXPECT_EQ(j.rotaries[0].dim, 64);
  EXPECT_TRUE(j.head_bias);
  EXPECT_EQ(HeadTensors(j).back().name, "lm_head.bias");
}

TEST(FamiliesTest, BloomHasSlopes) {
  DecoderSpec spec = Parse(
      R"({"model_type": "bloom", "n_embed": 1024, "n_head": 16, "n_layer": 24,
          "seq_length": 4096})");
  EXPECT_EQ(spec.hidden_size, 1024);
  EXPECT_EQ(spec.max_positions, 4096);
  EXPECT_EQ(EmbeddingTensors(spec).back().name,
            "transformer.word_embeddings_layernorm.bias");
  EXPECT_FLOAT_EQ(spec.alibi_slope(0), std::exp2(-0.5F));
  EXPECT_FLOAT_EQ(spec.alibi_slope(15), 1 / 256.0F);
  // Of 112 heads, the last 48 have slopes between those of 64.
  spec.num_heads = 112;
  EXPECT_EQ(spec.alibi_heads(), 64);
  EXPECT_FLOAT_EQ(spec.alibi_slope(63), 1 / 256.0F);
  EXPECT_FLOAT_EQ(spec.alibi_slope(64), std::exp2(-1 / 16.0F));
  EXPECT_FLOAT_EQ(spec.alibi_slope(111), std::exp2(-95 / 16.0F));
}

TEST(FamiliesTest, FalconsAlibiIsRoundedAndScaled) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "falcon", "hidden_size": 4544, "alibi": true,
          "num_attention_heads": 71})");
  EXPECT_EQ(spec.positions, PositionKind::kRoundedAlibi);
  EXPECT_EQ(spec.alibi_heads(), 64);
  EXPECT_EQ(spec.rotary(0), nullptr);
  EXPECT_FLOAT_EQ(spec.attention_scale, 0.125F);
}

TEST(FamiliesTest, Gpt2MayDivideScoresByTheLayersNumber) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4,
          "scale_attn_by_inverse_layer_idx": true,
          "reorder_and_upcast_attn": true})");
  EXPECT_FLOAT_EQ(spec.attention_scale, 0.25F);
  EXPECT_FLOAT_EQ(spec.layer(0).attention_scale, 1);
  EXPECT_FLOAT_EQ(spec.layer(2).attention_scale, 1 / 3.0F);
}

TEST(FamiliesTest, StablelmsNormsOfHeadsAreTensorsOfTheirOwn) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "stablelm", "hidden_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 6, "num_key_value_heads": 2,
          "use_parallel_residual": true, "qk_layernorm": true})");
  EXPECT_EQ(spec.qk_norm, QkNorm::kEachHeadOwnWeight);
  EXPECT_TRUE(spec.parallel && spec.shared_norm);
  const TensorRef k = LayerTensor(spec, TensorRole::kKNormWeight);
  EXPECT_THAT(k.shape, ElementsAre(32));
  std::vector<std::string> names;
  for (const TensorRef& tensor : k.Tensors()) {
    EXPECT_THAT(tensor.tensor_shape(), ElementsAre(16));
    EXPECT_EQ(tensor.Tensors().size(), 1u);
    names.push_back(tensor.name);
  }
  EXPECT_THAT(
      names,
      ElementsAre("model.layers.1.self_attn.k_layernorm.norms.0.weight",
                  "model.layers.1.self_attn.k_layernorm.norms.1.weight"));
  EXPECT_EQ(LayerTensor(spec, TensorRole::kQNormWeight).Tensors().size(), 6u);
}

TEST(FamiliesTest, WhatCannotRunIsSaidByItsKey) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {R"({"model_type": "falcon", "alibi": 2})", {"alibi"}},
      {R"({"model_type": "falcon", "new_decoder_architecture": true,
           "parallel_attn": false})",
       {"parallel_attn"}},
      {R"({"model_type": "falcon", "new_decoder_architecture": true,
           "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 3})",
       {"num_kv_heads", "divide"}},
      {R"({"model_type": "bloom", "n_head": 3})", {"hidden_size", "3"}},
      {R"({"model_type": "gpt2", "n_embd": 10, "n_head": 3})",
       {"n_embd", "num_attention_heads"}},
      {R"({"model_type": "gpt2", "n_layer": "many"})", {"n_layer"}},
      {R"({"model_type": "gpt2", "add_cross_attention": true})",
       {"add_cross_attention"}},
      {R"({"model_type": "gptj", "n_embd": 48, "n_head": 4})",
       {"rotary_dim", "12"}},
      {R"({"model_type": "cohere", "use_qk_norm": 1})", {"use_qk_norm"}},
      {R"({"model_type": "gemma3_text", "use_bidirectional_attention": true})",
       {"use_bidirectional_attention"}},
      {R"({"model_type": "gemma3", "text_config": 5})", {"text_config"}},
      {R"({"model_type": "gemma3_text", "rope_parameters":
           {"rope_type": "default", "rope_theta": 10000.0}})",
       {"rope_parameters", "nested"}},
      {R"({"model_type": "gemma2", "attn_logit_softcapping": 0})",
       {"attn_logit_softcapping"}},
      {R"({"model_type": "olmo3", "sliding_window": null})",
       {"sliding_window", "null"}},
      {R"({"model_type": "olmo3", "layer_types": ["full_attention"]})",
       {"layer_types", "32"}},
      {R"({"model_type": "smollm3", "no_rope_layers": [1, 0]})",
       {"no_rope_layers", "36"}},
      {R"({"model_type": "smollm3", "num_hidden_layers": 1,
           "no_rope_layers": ["x"]})",
       {"no_rope_layers"}},
      {R"({"model_type": "glm4", "partial_rotary_factor": 7})",
       {"partial_rotary_factor"}},
      {R"({"model_type": "gpt_neox", "rotary_pct": -1})", {"rotary_pct"}},
  };
  for (const auto& [config, parts] : cases) {
    const absl::Status status = ParseDecoderSpec(config).status();
    EXPECT_FALSE(status.ok()) << config;
    for (const char* part : parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << config;
    }
  }
}

}  // namespace
}  // namespace sluice
