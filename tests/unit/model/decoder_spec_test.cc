#include "runtime/model/decoder_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/rotary.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

DecoderSpec Parse(const std::string& config) {
  auto spec = ParseDecoderSpec(config);
  EXPECT_TRUE(spec.ok()) << spec.status() << "\n" << config;
  return spec.ok() ? *spec : DecoderSpec();
}

std::vector<int32_t> Windows(const DecoderSpec& spec) {
  std::vector<int32_t> windows;
  for (const LayerSpec& layer : spec.layers) windows.push_back(layer.window);
  return windows;
}

// transformers' LlamaConfig() and its kin, as saved without any key.
TEST(DecoderSpec, AbsentKeysMeanTheFamilysDefaults) {
  const DecoderSpec llama = Parse(R"({"model_type": "llama"})");
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.hidden_size, 4096);
  EXPECT_EQ(llama.embed_dim, 4096);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.num_layers, 32);
  EXPECT_EQ(llama.num_heads, 32);
  EXPECT_EQ(llama.num_kv_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_EQ(llama.norm, NormKind::kRmsNorm);
  EXPECT_EQ(llama.norm_eps, 1e-6f);
  EXPECT_EQ(llama.activation, Activation::kSilu);
  EXPECT_TRUE(llama.gated_mlp && llama.final_norm);
  EXPECT_EQ(llama.norm_place, NormPlace::kInput);
  EXPECT_FALSE(llama.qkv_bias || llama.out_bias || llama.mlp_bias);
  EXPECT_EQ(llama.positions, PositionKind::kRotary);
  EXPECT_EQ(llama.rotaries[0].dim, 128);
  EXPECT_FLOAT_EQ(llama.attention_scale, 1 / std::sqrt(128.0f));
  EXPECT_THAT(Windows(llama), Each(0));
  EXPECT_EQ(llama.layers.size(), 32u);
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_EQ(llama.native_dtype, DType::kFloat32);
  EXPECT_THAT(llama.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(llama.bos_token_id, 1);

  const DecoderSpec mistral = Parse(R"({"model_type": "mistral"})");
  EXPECT_EQ(mistral.intermediate_size, 14336);
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(mistral.max_positions, 131072);
  EXPECT_THAT(Windows(mistral), Each(4096));
  EXPECT_FALSE(mistral.qkv_bias);

  const DecoderSpec qwen2 = Parse(R"({"model_type": "qwen2"})");
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_EQ(qwen2.intermediate_size, 22016);
  EXPECT_EQ(qwen2.num_kv_heads, 32);
  EXPECT_EQ(qwen2.max_positions, 32768);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.out_bias || qwen2.mlp_bias || qwen2.tied_embeddings);
  EXPECT_THAT(Windows(qwen2), Each(0));
  EXPECT_THAT(qwen2.eos_token_ids, IsEmpty());
  EXPECT_EQ(qwen2.bos_token_id, -1);

  const DecoderSpec opt = Parse(R"({"model_type": "opt"})");
  EXPECT_EQ(opt.vocab_size, 50272);
  EXPECT_EQ(opt.hidden_size, 768);
  EXPECT_EQ(opt.embed_dim, 768);
  EXPECT_EQ(opt.intermediate_size, 3072);
  EXPECT_EQ(opt.num_layers, 12);
  EXPECT_EQ(opt.head_dim, 64);
  EXPECT_EQ(opt.max_positions, 2048);
  EXPECT_EQ(opt.position_offset, 2);
  EXPECT_EQ(opt.norm, NormKind::kLayerNorm);
  EXPECT_TRUE(opt.norm_affine && opt.norms_inputs() && opt.final_norm);
  EXPECT_EQ(opt.norm_eps, 1e-5f);
  EXPECT_EQ(opt.activation, Activation::kRelu);
  EXPECT_FALSE(opt.gated_mlp);
  EXPECT_TRUE(opt.qkv_bias && opt.out_bias && opt.mlp_bias);
  EXPECT_EQ(opt.positions, PositionKind::kLearned);
  EXPECT_TRUE(opt.tied_embeddings);
  EXPECT_THAT(opt.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(opt.bos_token_id, 2);
}

TEST(DecoderSpec, OptVariants) {
  const DecoderSpec post = Parse(
      R"({"model_type": "opt", "do_layer_norm_before": false,
          "word_embed_proj_dim": 512, "hidden_size": 1024,
          "num_attention_heads": 16, "enable_bias": false,
          "activation_function": "gelu"})");
  EXPECT_EQ(post.norm_place, NormPlace::kSum);
  EXPECT_FALSE(post.final_norm);  // transformers has none after post-norm
  EXPECT_EQ(post.embed_dim, 512);
  EXPECT_FALSE(post.qkv_bias || post.out_bias || post.mlp_bias);
  EXPECT_EQ(post.activation, Activation::kGelu);

  const DecoderSpec bare = Parse(
      R"({"model_type": "opt", "_remove_final_layer_norm": true,
          "layer_norm_elementwise_affine": false,
          "word_embed_proj_dim": null})");
  EXPECT_EQ(bare.norm_place, NormPlace::kInput);
  EXPECT_FALSE(bare.final_norm);
  EXPECT_FALSE(bare.norm_affine);
  EXPECT_EQ(bare.embed_dim, 768);
}

TEST(DecoderSpec, NullIsNotAbsent) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "mistral", "sliding_window": null,
          "num_key_value_heads": null, "head_dim": null, "eos_token_id": null,
          "bos_token_id": null, "rope_scaling": null, "torch_dtype": null})");
  EXPECT_THAT(Windows(spec), Each(0));
  EXPECT_EQ(spec.num_kv_heads, 32);
  EXPECT_EQ(spec.head_dim, 128);
  EXPECT_THAT(spec.eos_token_ids, IsEmpty());
  EXPECT_EQ(spec.bos_token_id, -1);
}

TEST(DecoderSpec, Dtypes) {
  const auto dtype = [](const std::string& keys) {
    return Parse(R"({"model_type": "llama", )" + keys + "}").native_dtype;
  };
  EXPECT_EQ(dtype(R"("torch_dtype": "float32")"), DType::kFloat32);
  EXPECT_EQ(dtype(R"("torch_dtype": "bfloat16")"), DType::kBFloat16);
  EXPECT_EQ(dtype(R"("torch_dtype": "float16")"), DType::kFloat16);
  EXPECT_EQ(dtype(R"("dtype": "bfloat16")"), DType::kBFloat16);
  EXPECT_EQ(dtype(R"("dtype": "float32", "torch_dtype": "bfloat16")"),
            DType::kFloat32);

  const DecoderSpec spec = Parse(R"({"model_type": "llama", "dtype": "bfloat16",
                "num_key_value_heads": 4})");
  EXPECT_EQ(ResolveDType(DTypeChoice::kAuto, spec), DType::kBFloat16);
  EXPECT_EQ(ResolveDType(DTypeChoice::kFloat32, spec), DType::kFloat32);
  EXPECT_EQ(ResolveDType(DTypeChoice::kBFloat16, spec), DType::kBFloat16);
  EXPECT_EQ(ResolveDType(DTypeChoice::kFloat16, spec), DType::kFloat16);
  const DecoderSpec half =
      Parse(R"({"model_type": "llama", "torch_dtype": "float16"})");
  EXPECT_EQ(ResolveDType(DTypeChoice::kAuto, half), DType::kBFloat16);
  EXPECT_EQ(ResolveDType(DTypeChoice::kAuto, half, true), DType::kFloat16);
  EXPECT_EQ(ResolveDType(DTypeChoice::kAuto, spec, true), DType::kBFloat16);
}

TEST(DecoderSpec, Qwen2Windows) {
  const auto windows = [](const std::string& keys) {
    return Windows(Parse(R"({"model_type": "qwen2", "num_hidden_layers": 4, )" +
                         keys + "}"));
  };
  EXPECT_THAT(windows(R"("sliding_window": 8, "max_window_layers": 1)"),
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows(R"("use_sliding_window": true, "sliding_window": 8,
                         "max_window_layers": 1)"),
              ElementsAre(0, 8, 8, 8));
  EXPECT_THAT(windows(R"("use_sliding_window": true, "max_window_layers": 3)"),
              ElementsAre(0, 0, 0, 4096));
  EXPECT_THAT(windows(R"("use_sliding_window": true, "sliding_window": null)"),
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows(R"("use_sliding_window": true, "sliding_window": 5,
                 "layer_types": ["sliding_attention", "full_attention",
                                 "attention", "sliding_attention"])"),
              ElementsAre(5, 0, 0, 5));
  // The window is not in use, so its value does not matter.
  EXPECT_THAT(windows(R"("sliding_window": 0)"), ElementsAre(0, 0, 0, 0));
}

TEST(DecoderSpec, HeadDimMayDifferFromHiddenOverHeads) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "mistral", "hidden_size": 5120, "head_dim": 128,
          "num_attention_heads": 32})");
  EXPECT_EQ(spec.head_dim, 128);
  // transformers rounds down where no head_dim is given (but not for llama).
  EXPECT_EQ(Parse(R"({"model_type": "qwen2", "hidden_size": 100,
                      "num_attention_heads": 12, "num_key_value_heads": 12})")
                .head_dim,
            8);
}

TEST(DecoderSpec, NestedRopeParametersThatAgree) {
  const std::string head =
      R"({"model_type": "qwen2", "num_hidden_layers": 2,
          "hidden_size": 64, "num_attention_heads": 4,
          "num_key_value_heads": 4, "use_sliding_window": true,
          "sliding_window": 4, "max_window_layers": 1, "rope_parameters": )";
  const DecoderSpec nested =
      Parse(head + R"({"full_attention": {"rope_theta": 5000.0},
                 "sliding_attention": {"rope_theta": 5000.0}}})");
  const DecoderSpec flat = Parse(head + R"({"rope_theta": 5000.0}})");
  EXPECT_EQ(nested.rotaries[0].inv_freq, flat.rotaries[0].inv_freq);

  const auto differing =
      ParseDecoderSpec(head + R"({"full_attention": {"rope_theta": 5000.0},
                 "sliding_attention": {"rope_theta": 6000.0}}})");
  EXPECT_EQ(differing.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(differing.status().message()),
              HasSubstr("differ by layer"));
  const auto missing =
      ParseDecoderSpec(head + R"({"full_attention": {"rope_theta": 5000.0}}})");
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("sliding_attention is missing"));
}

TEST(DecoderSpec, RotaryFrequenciesAreTransformers) {
  std::ifstream file(TestsDir() + "/unit/model/rope_cases.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 30u);
  size_t exact = 0, total = 0;
  for (const auto& row : cases) {
    SCOPED_TRACE(row["name"].get<std::string>());
    const DecoderSpec spec = Parse(row["config"].dump());
    const auto want = row["inv_freq"].get<std::vector<float>>();
    ASSERT_EQ(spec.rotaries[0].inv_freq.size(), want.size());
    EXPECT_EQ(spec.rotaries[0].dim, static_cast<int>(2 * want.size()));
    EXPECT_EQ(spec.rotaries[0].attention_factor,
              row["attention_factor"].get<float>());
    for (size_t i = 0; i < want.size(); ++i) {
      // Two units in the last place: torch's powf and libm's may differ by one.
      EXPECT_NEAR(spec.rotaries[0].inv_freq[i], want[i], want[i] * 2.4e-7f)
          << i;
      exact += spec.rotaries[0].inv_freq[i] == want[i];
      ++total;
    }
  }
  EXPECT_GT(exact, total * 95 / 100);
}

struct BadConfig {
  const char* config;
  absl::StatusCode code;
  const char* names;  // what the message must say
};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

const BadConfig kBadConfigs[] = {
    {"", kInvalid, "JSON"},
    {"[]", kInvalid, "object"},
    {"{", kInvalid, "JSON"},
    {"{}", kInvalid, "model_type"},
    {R"({"model_type": null})", kInvalid, "model_type"},
    {R"({"model_type": 3})", kInvalid, "model_type"},
    {R"({"model_type": "bert"})", kUnimplemented, "bert"},
    {R"({"model_type": "llama", "hidden_size": "4096"})", kInvalid,
     "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": 4096.0})", kInvalid,
     "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": -4096})", kInvalid,
     "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": 0})", kInvalid, "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": null})", kInvalid,
     "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": true})", kInvalid,
     "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": [1]})", kInvalid, "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": 18446744073709551615})",
     kInvalid, "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": 99999999999999999999999})",
     kInvalid, "hidden_size"},
    {R"({"model_type": "llama", "hidden_size": 4294967296})", kInvalid,
     "hidden_size"},
    {R"({"model_type": "llama", "num_hidden_layers": 2000000000})", kInvalid,
     "num_hidden_layers"},
    {R"({"model_type": "llama", "vocab_size": -1})", kInvalid, "vocab_size"},
    {R"({"model_type": "llama", "intermediate_size": 0})", kInvalid,
     "intermediate_size"},
    {R"({"model_type": "llama", "num_attention_heads": 0})", kInvalid,
     "num_attention_heads"},
    {R"({"model_type": "llama", "num_attention_heads": 33})", kInvalid,
     "num_attention_heads"},
    {R"({"model_type": "llama", "num_key_value_heads": 5})", kInvalid,
     "num_key_value_heads"},
    {R"({"model_type": "llama", "num_key_value_heads": 64})", kInvalid,
     "num_key_value_heads"},
    {R"({"model_type": "llama", "num_key_value_heads": 0})", kInvalid,
     "num_key_value_heads"},
    {R"({"model_type": "llama", "head_dim": 7})", kInvalid, "head_dim"},
    {R"({"model_type": "llama", "head_dim": 60000,
         "num_attention_heads": 60000, "num_key_value_heads": 1})",
     kInvalid, "head_dim"},
    {R"({"model_type": "llama", "rms_norm_eps": "1e-6"})", kInvalid,
     "rms_norm_eps"},
    {R"({"model_type": "llama", "rms_norm_eps": -1e-6})", kInvalid,
     "rms_norm_eps"},
    {R"({"model_type": "llama", "hidden_act": "relu6"})", kUnimplemented,
     "relu6"},
    {R"({"model_type": "llama", "hidden_act": 1})", kInvalid, "hidden_act"},
    {R"({"model_type": "llama", "attention_bias": 1})", kInvalid,
     "attention_bias"},
    {R"({"model_type": "llama", "mlp_bias": "no"})", kInvalid, "mlp_bias"},
    {R"({"model_type": "llama", "tie_word_embeddings": null})", kInvalid,
     "tie_word_embeddings"},
    {R"({"model_type": "llama", "torch_dtype": "float8_e4m3fn"})",
     kUnimplemented, "float8_e4m3fn"},
    {R"({"model_type": "llama", "torch_dtype": 32})", kInvalid, "torch_dtype"},
    {R"({"model_type": "llama",
         "quantization_config": {"quant_method": "quanto"}})",
     kUnimplemented, "quantization_config.quant_method \"quanto\""},
    {R"({"model_type": "llama", "eos_token_id": "2"})", kInvalid,
     "eos_token_id"},
    {R"({"model_type": "llama", "eos_token_id": [2, "x"]})", kInvalid,
     "eos_token_id"},
    {R"({"model_type": "llama", "bos_token_id": 1.5})", kInvalid,
     "bos_token_id"},
    {R"({"model_type": "llama", "max_position_embeddings": 0})", kInvalid,
     "max_position_embeddings"},
    {R"({"model_type": "llama", "rope_theta": "big"})", kInvalid, "rope_theta"},
    {R"({"model_type": "llama", "rope_theta": 0})", kInvalid, "rope_theta"},
    {R"({"model_type": "llama", "rope_theta": -1e4})", kInvalid, "rope_theta"},
    {R"({"model_type": "llama", "rope_theta": 1e300})", kInvalid, "rope_theta"},
    {R"({"model_type": "llama", "rope_scaling": 3})", kInvalid, "rope_scaling"},
    {R"({"model_type": "llama", "rope_scaling": {"type": "linear"}})", kInvalid,
     "rope_scaling.factor"},
    {R"({"model_type": "llama", "rope_scaling": {"type": "linear",
         "factor": 0}})",
     kInvalid, "rope_scaling.factor"},
    {R"({"model_type": "llama", "rope_scaling": {"rope_type": "mrope"}})",
     kUnimplemented, "mrope"},
    {R"({"model_type": "llama", "rope_scaling": {"rope_type": 7}})", kInvalid,
     "rope_scaling.rope_type"},
    {R"({"model_type": "llama", "rope_parameters": {"rope_type": "llama3",
         "factor": 8.0, "low_freq_factor": 1.0}})",
     kInvalid, "rope_parameters.high_freq_factor"},
    {R"({"model_type": "llama", "rope_parameters": {"rope_type": "llama3",
         "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}})",
     kInvalid, "rope_parameters.high_freq_factor"},
    {R"({"model_type": "llama", "rope_parameters": {"rope_type": "yarn"}})",
     kInvalid, "rope_parameters.factor"},
    {R"({"model_type": "llama", "rope_parameters": {"rope_type": "yarn",
         "factor": 4.0, "truncate": "yes"}})",
     kInvalid, "rope_parameters.truncate"},
    {R"({"model_type": "llama", "rope_parameters": {"rope_type": "yarn",
         "factor": 4.0, "rope_theta": 1}})",
     kInvalid, "rope_theta"},
    {R"({"model_type": "llama", "partial_rotary_factor": 0.5,
         "rope_scaling": {"type": "linear", "factor": 2}})",
     kUnimplemented, "partial_rotary_factor"},
    {R"({"model_type": "llama", "rope_scaling": {"rope_type": "longrope",
         "short_factor": [1, 2]}})",
     kInvalid, "short_factor"},
    {R"({"model_type": "stablelm", "partial_rotary_factor": 1.5})", kInvalid,
     "partial_rotary_factor"},
    {R"({"model_type": "stablelm", "rope_scaling":
         {"partial_rotary_factor": 1e300}})",
     kInvalid, "partial_rotary_factor"},
    {R"({"model_type": "stablelm", "partial_rotary_factor": 0.01})", kInvalid,
     "partial_rotary_factor"},
    {R"({"model_type": "phi3", "partial_rotary_factor": 0.27})", kInvalid,
     "head_dim times partial_rotary_factor"},
    {R"({"model_type": "granite", "logits_scaling": 0})", kInvalid,
     "logits_scaling"},
    {R"({"model_type": "mistral", "sliding_window": 0})", kInvalid,
     "sliding_window"},
    {R"({"model_type": "mistral", "sliding_window": -5})", kInvalid,
     "sliding_window"},
    {R"({"model_type": "qwen2", "use_sliding_window": true,
         "sliding_window": "all"})",
     kInvalid, "sliding_window"},
    {R"({"model_type": "qwen2", "num_hidden_layers": 2,
         "layer_types": ["full_attention"]})",
     kInvalid, "layer_types"},
    {R"({"model_type": "qwen2", "num_hidden_layers": 1,
         "layer_types": ["sliding_attention"]})",
     kInvalid, "layer_types"},
    {R"({"model_type": "qwen2", "num_hidden_layers": 1,
         "layer_types": ["linear_attention"]})",
     kUnimplemented, "linear_attention"},
    {R"({"model_type": "qwen2", "num_hidden_layers": 1, "layer_types": [3]})",
     kInvalid, "layer_types"},
    {R"({"model_type": "opt", "hidden_size": 770})", kInvalid, "hidden_size"},
    {R"({"model_type": "opt", "ffn_dim": "wide"})", kInvalid, "ffn_dim"},
    {R"({"model_type": "opt", "word_embed_proj_dim": -1})", kInvalid,
     "word_embed_proj_dim"},
    {R"({"model_type": "opt", "activation_function": "quick_gelu"})",
     kUnimplemented, "quick_gelu"},
};

TEST(DecoderSpec, BadConfigsAreErrorsThatNameTheKey) {
  for (const BadConfig& bad : kBadConfigs) {
    const auto spec = ParseDecoderSpec(bad.config);
    EXPECT_EQ(spec.status().code(), bad.code) << bad.config << "\n"
                                              << spec.status();
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(bad.names))
        << bad.config;
  }
}

TEST(DecoderSpec, ScalingStretchesPositions) {
  struct Case {
    const char* scaling;
    int32_t positions;
    const char* why;
  };
  const Case cases[] = {
      {R"({"rope_type": "default"})", 1000, "max_position_embeddings"},
      {R"({"type": "linear", "factor": 2.5})", 2500, "linear"},
      {R"({"type": "linear", "factor": 0.5})", 1000, "linear"},
      {R"({"rope_type": "yarn", "factor": 4.0})", 4000, "yarn"},
      {R"({"rope_type": "yarn", "factor": 4.0,
           "original_max_position_embeddings": 1000})",
       4000, "yarn"},
      // In these, max_position_embeddings is stretched already.
      {R"({"rope_type": "yarn", "factor": 4.0,
           "original_max_position_embeddings": 250})",
       1000, "yarn"},
      {R"({"rope_type": "yarn", "factor": 4.0,
           "original_max_position_embeddings": 100})",
       1000, "yarn"},
      {R"({"type": "linear", "factor": 1e30})", 1 << 30, "linear"},
      {R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 500})",
       1000, "max_position_embeddings"},
      {R"({"type": "dynamic", "factor": 4.0})", 1000, "\"dynamic\""},
  };
  for (const Case& c : cases) {
    const std::string config =
        absl::StrCat(R"({"model_type": "llama", "max_position_embeddings": 1000,
                         "rope_scaling": )",
                     c.scaling, "}");
    const auto spec = ParseDecoderSpec(config);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->max_positions, c.positions) << c.scaling;
    EXPECT_THAT(DescribePositions(*spec, config),
                testing::AllOf(HasSubstr(absl::StrCat("takes ", c.positions)),
                               HasSubstr(c.why)))
        << c.scaling;
  }
  const std::string config = R"({"model_type": "opt"})";
  const auto opt = ParseDecoderSpec(config);
  ASSERT_TRUE(opt.ok()) << opt.status();
  EXPECT_EQ(DescribePositions(*opt, config),
            "takes 2048 positions: its table of positions has no more");
}

// Checkpoints with linear scaling alone may mean the length before or after it.
TEST(DecoderSpec, UncertainStretchingIsNotTheDefault) {
  struct Case {
    const char* scaling;
    int32_t by_default;  // 0: max_positions
  };
  const Case cases[] = {
      {R"({"type": "linear", "factor": 4.0})", 1000},
      {R"({"type": "linear", "factor": 4.0,
           "original_max_position_embeddings": 1000})",
       0},
      {R"({"rope_type": "yarn", "factor": 4.0,
           "original_max_position_embeddings": 1000})",
       0},
      {R"({"rope_type": "yarn", "factor": 4.0})", 0},
  };
  for (const Case& c : cases) {
    const auto spec = ParseDecoderSpec(absl::StrCat(
        R"({"model_type": "llama", "max_position_embeddings": 1000,
            "rope_scaling": )",
        c.scaling, "}"));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->default_positions, c.by_default) << c.scaling;
    EXPECT_EQ(spec->max_positions, 4000) << c.scaling;
  }
}

TEST(DecoderSpec, DeepJsonIsAnErrorNotAnOverflow) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text = R"({"model_type": "llama", "x": )";
    for (int i = 0; i < 200000; ++i) text += open;
    EXPECT_EQ(ParseDecoderSpec(text).status().code(), kInvalid);
  }
  EXPECT_EQ(ParseDecoderSpec(std::string(1000, '\0')).status().code(),
            kInvalid);
  EXPECT_EQ(ParseDecoderSpec("{\"model_type\": \"\xff\"}").status().code(),
            kInvalid);
}

// Any bytes give a spec or an error.
TEST(DecoderSpec, MutatedConfigsNeverCrash) {
  const std::string config =
      R"({"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4,
          "num_key_value_heads": 2, "num_hidden_layers": 3,
          "rope_scaling": {"type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 32}, "eos_token_id": [1, 2],
          "use_sliding_window": true, "sliding_window": 4,
          "max_window_layers": 1, "torch_dtype": "bfloat16"})";
  uint64_t state = 1;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  constexpr absl::string_view kBytes = "0123456789-.,:[]{}\"eEn \\tf";
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = config;
    for (uint64_t n = 1 + random(3); n > 0; --n) {
      const size_t at = random(text.size());
      switch (random(3)) {
        case 0:
          text[at] = kBytes[random(kBytes.size())];
          break;
        case 1:
          text.erase(at, 1 + random(4));
          break;
        default:
          text.insert(at, 1, kBytes[random(kBytes.size())]);
      }
    }
    const auto spec = ParseDecoderSpec(text);
    accepted += spec.ok();
    if (!spec.ok()) continue;
    EXPECT_EQ(spec->num_heads % spec->num_kv_heads, 0) << text;
    EXPECT_EQ(spec->layers.size(), static_cast<size_t>(spec->num_layers));
    for (const RotarySpec& rotary : spec->rotaries) {
      EXPECT_EQ(rotary.inv_freq.size(), static_cast<size_t>(rotary.dim / 2));
    }
    EXPECT_FALSE(LayerTensors(*spec, 0).empty());
  }
  EXPECT_GT(accepted, 0);
}

TensorRef Find(const std::vector<TensorRef>& refs, TensorRole role) {
  for (const TensorRef& ref : refs) {
    if (ref.role == role) return ref;
  }
  ADD_FAILURE() << "no such role";
  return {};
}

TEST(TensorNames, FollowTheDescription) {
  const auto names = [](const std::vector<TensorRef>& refs) {
    std::vector<std::string> names;
    for (const TensorRef& ref : refs) names.push_back(ref.name);
    return names;
  };
  DecoderSpec spec = Parse(
      R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 24, "attention_bias": true,
          "mlp_bias": true, "intermediate_size": 96, "vocab_size": 50})");
  EXPECT_THAT(
      names(LayerTensors(spec, 3)),
      UnorderedElementsAre("model.layers.3.input_layernorm.weight",
                           "model.layers.3.self_attn.q_proj.weight",
                           "model.layers.3.self_attn.k_proj.weight",
                           "model.layers.3.self_attn.v_proj.weight",
                           "model.layers.3.self_attn.q_proj.bias",
                           "model.layers.3.self_attn.k_proj.bias",
                           "model.layers.3.self_attn.v_proj.bias",
                           "model.layers.3.self_attn.o_proj.weight",
                           "model.layers.3.self_attn.o_proj.bias",
                           "model.layers.3.post_attention_layernorm.weight",
                           "model.layers.3.mlp.gate_proj.weight",
                           "model.layers.3.mlp.gate_proj.bias",
                           "model.layers.3.mlp.up_proj.weight",
                           "model.layers.3.mlp.up_proj.bias",
                           "model.layers.3.mlp.down_proj.weight",
                           "model.layers.3.mlp.down_proj.bias"));
  EXPECT_THAT(Find(LayerTensors(spec, 0), TensorRole::kQWeight).shape,
              ElementsAre(96, 64));
  EXPECT_THAT(Find(LayerTensors(spec, 0), TensorRole::kKWeight).shape,
              ElementsAre(48, 64));
  EXPECT_THAT(names(EmbeddingTensors(spec)),
              ElementsAre("model.embed_tokens.weight"));
  EXPECT_THAT(names(HeadTensors(spec)),
              ElementsAre("model.norm.weight", "lm_head.weight"));
  spec.tied_embeddings = true;
  EXPECT_THAT(names(HeadTensors(spec)),
              ElementsAre("model.norm.weight", "model.embed_tokens.weight"));

  const DecoderSpec opt =
      Parse(R"({"model_type": "opt", "word_embed_proj_dim": 32})");
  EXPECT_THAT(names(EmbeddingTensors(opt)),
              ElementsAre("model.decoder.embed_tokens.weight",
                          "model.decoder.embed_positions.weight",
                          "model.decoder.project_in.weight"));
  EXPECT_THAT(EmbeddingTensors(opt)[1].shape, ElementsAre(2050, 768));
  EXPECT_THAT(names(HeadTensors(opt)),
              ElementsAre("model.decoder.final_layer_norm.weight",
                          "model.decoder.final_layer_norm.bias",
                          "model.decoder.project_out.weight",
                          "model.decoder.embed_tokens.weight"));
  EXPECT_EQ(LayerTensors(opt, 0).size(), 16u);
  const DecoderSpec bare = Parse(
      R"({"model_type": "opt", "layer_norm_elementwise_affine": false,
          "enable_bias": false, "do_layer_norm_before": false})");
  EXPECT_EQ(LayerTensors(bare, 0).size(), 6u);
  EXPECT_EQ(HeadTensors(bare).size(), 1u);
}

TEST(TensorNames, WeightsMayBeRowsOfATensor) {
  const DecoderSpec phi = Parse(
      R"({"model_type": "phi3", "hidden_size": 48, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 80})");
  const std::vector<TensorRef> tensors = LayerTensors(phi, 1);
  const TensorRef k = Find(tensors, TensorRole::kKWeight);
  EXPECT_EQ(k.name, "model.layers.1.self_attn.qkv_proj.weight");
  EXPECT_EQ(k.first_row, 48);
  EXPECT_THAT(k.shape, ElementsAre(24, 48));
  EXPECT_THAT(k.tensor_shape(), ElementsAre(96, 48));
  const TensorRef up = Find(tensors, TensorRole::kUpWeight);
  EXPECT_EQ(up.name, "model.layers.1.mlp.gate_up_proj.weight");
  EXPECT_EQ(up.first_row, 80);
  EXPECT_THAT(up.tensor_shape(), ElementsAre(160, 48));
}

TEST(TensorNames, FactorsOfAModelAreFactorsOfWeights) {
  const DecoderSpec granite = Parse(
      R"({"model_type": "granite", "tie_word_embeddings": true,
          "embedding_multiplier": 12, "residual_multiplier": 0.5,
          "logits_scaling": 8, "attention_multiplier": 0.125})");
  EXPECT_EQ(granite.attention_scale, 0.125f);
  EXPECT_EQ(Find(EmbeddingTensors(granite), TensorRole::kEmbedding).scale, 12);
  EXPECT_EQ(Find(HeadTensors(granite), TensorRole::kHead).scale, 0.125f);
  const std::vector<TensorRef> tensors = LayerTensors(granite, 0);
  EXPECT_EQ(Find(tensors, TensorRole::kOutWeight).scale, 0.5f);
  EXPECT_EQ(Find(tensors, TensorRole::kDownWeight).scale, 0.5f);
  EXPECT_EQ(Find(tensors, TensorRole::kUpWeight).scale, 1);
  // Packed weights of another factor are others.
  DecoderSpec other = granite;
  other.residual_scale = 0.25f;
  EXPECT_NE(BindingText(other), BindingText(granite));
}

TEST(DecoderSpec, Qwen3NormsItsHeads) {
  const DecoderSpec spec = Parse(R"({"model_type": "qwen3"})");
  EXPECT_EQ(spec.qk_norm, QkNorm::kEachHead);
  EXPECT_FALSE(spec.qkv_bias || spec.out_bias);
  EXPECT_EQ(spec.head_dim, 128);
  EXPECT_EQ(spec.num_kv_heads, 32);
  const std::vector<TensorRef> tensors = LayerTensors(spec, 2);
  const TensorRef k = Find(tensors, TensorRole::kKNormWeight);
  EXPECT_EQ(k.name, "model.layers.2.self_attn.k_norm.weight");
  EXPECT_THAT(k.shape, ElementsAre(128));
}

TEST(DecoderSpec, PartsOfHeadsAreRotated) {
  EXPECT_EQ(Parse(R"({"model_type": "stablelm"})").rotaries[0].dim, 20);
  EXPECT_EQ(Parse(R"({"model_type": "stablelm", "partial_rotary_factor": 0.5})")
                .rotaries[0]
                .dim,
            40);
  EXPECT_EQ(Parse(R"({"model_type": "phi3", "rope_parameters": {
                      "rope_type": "default", "rope_theta": 10000.0,
                      "partial_rotary_factor": 0.75}})")
                .rotaries[0]
                .dim,
            72);
}

TEST(DecoderSpec, LongRopeEndsWhereItsFactorsChange) {
  const DecoderSpec spec = Parse(
      R"({"model_type": "phi3", "hidden_size": 16, "num_attention_heads": 4,
          "num_key_value_heads": 4, "max_position_embeddings": 131072,
          "original_max_position_embeddings": 4096, "rope_scaling": {
          "type": "su", "short_factor": [1.0, 1.5], "long_factor": [2, 3]}})");
  EXPECT_EQ(spec.max_positions, 4096);
  EXPECT_FLOAT_EQ(spec.rotaries[0].inv_freq[0], 1);
  EXPECT_FLOAT_EQ(spec.rotaries[0].attention_factor,
                  std::sqrt(1 + std::log(32.0f) / std::log(4096.0f)));
}

}  // namespace
}  // namespace sluice
