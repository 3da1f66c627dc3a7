// Models in GGUF files: those that llama.cpp's converter made of the random
// models (tests/golden/make_gguf.py), and small wrong ones.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/float16.h"
#include "runtime/model/checkpoint/model_digests.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/checkpoint/weight_remarks.h"
#include "runtime/model/model_dir.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using W = GgufWriter;

std::vector<TensorRef> AllTensors(const DecoderSpec& spec) {
  std::vector<TensorRef> all = EmbeddingTensors(spec);
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    for (TensorRef& ref : LayerTensors(spec, layer)) all.push_back(ref);
  }
  for (TensorRef& ref : HeadTensors(spec)) all.push_back(ref);
  return all;
}

std::vector<float> ReadAll(const TensorSource& source, const TensorRef& ref) {
  const int64_t rows = ref.shape.size() < 2 ? 1 : ref.shape[0];
  std::vector<float> values(static_cast<size_t>(rows * ref.shape.back()));
  // In two parts, of which the first is a single row.
  const int64_t first = rows > 1 ? 1 : 0;
  absl::Status status = source.ReadRows(ref, 0, first, values.data());
  if (status.ok()) {
    status = source.ReadRows(ref, first, rows,
                             values.data() + first * ref.shape.back());
  }
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

void ExpectSameSpec(const DecoderSpec& a, const DecoderSpec& b) {
  EXPECT_EQ(a.model_type, b.model_type);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.num_heads, b.num_heads);
  EXPECT_EQ(a.num_kv_heads, b.num_kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.intermediate_size, b.intermediate_size);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(a.norm_bias, b.norm_bias);
  EXPECT_EQ(a.norm_eps, b.norm_eps);
  EXPECT_EQ(a.norm_place, b.norm_place);
  EXPECT_EQ(a.parallel, b.parallel);
  EXPECT_EQ(a.shared_norm, b.shared_norm);
  EXPECT_EQ(a.embed_norm, b.embed_norm);
  EXPECT_EQ(a.activation, b.activation);
  EXPECT_EQ(a.gated_mlp, b.gated_mlp);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.position_offset, b.position_offset);
  EXPECT_EQ(a.attention_cap, b.attention_cap);
  EXPECT_EQ(a.logit_cap, b.logit_cap);
  EXPECT_EQ(a.embedding_scale, b.embedding_scale);
  EXPECT_EQ(a.residual_scale, b.residual_scale);
  EXPECT_EQ(a.logit_scale, b.logit_scale);
  EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
  EXPECT_EQ(a.mixture, b.mixture);
  EXPECT_EQ(a.attention_sinks, b.attention_sinks);
  EXPECT_EQ(a.gate_limit, b.gate_limit);
  EXPECT_EQ(a.gate_slope, b.gate_slope);
  // GGUF tells neither Gemma's scale of attention nor, of Gemma 3, which layers
  // have a window: they are those of the published models.
  if (absl::StartsWith(a.model_type, "gemma")) return;
  EXPECT_EQ(a.attention_scale, b.attention_scale);
  EXPECT_EQ(a.layers, b.layers);
  ASSERT_EQ(a.rotaries.size(), b.rotaries.size());
  for (size_t i = 0; i < a.rotaries.size(); ++i) {
    EXPECT_EQ(a.rotaries[i].dim, b.rotaries[i].dim);
    EXPECT_FLOAT_EQ(a.rotaries[i].attention_factor,
                    b.rotaries[i].attention_factor);
    ASSERT_EQ(a.rotaries[i].inv_freq.size(), b.rotaries[i].inv_freq.size());
    for (size_t k = 0; k < a.rotaries[i].inv_freq.size(); ++k) {
      EXPECT_NEAR(a.rotaries[i].inv_freq[k] / b.rotaries[i].inv_freq[k], 1,
                  1e-6);
    }
  }
}

class GgufFamilyTest : public testing::TestWithParam<const char*> {};

// The description and every weight are those of the model's own files.
TEST_P(GgufFamilyTest, IsTheModelThatItWasMadeOf) {
  const std::filesystem::path golden =
      std::filesystem::path(TestsDir()) / "golden";
  const auto own = ModelDir::Open(golden / "models" / GetParam());
  ASSERT_TRUE(own.ok()) << own.status();
  const auto gguf =
      ModelDir::Open(golden / "gguf" / (std::string(GetParam()) + ".gguf"));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const DecoderSpec& spec = (*own)->spec();
  ExpectSameSpec((*gguf)->spec(), spec);
  const auto tensors = (*own)->OpenTensors();
  const auto stored = (*gguf)->OpenTensors();
  ASSERT_TRUE(tensors.ok() && stored.ok());
  ASSERT_TRUE(CheckTensors((*gguf)->spec(), **stored).ok())
      << CheckTensors((*gguf)->spec(), **stored);
  for (const TensorRef& ref : AllTensors(spec)) {
    TensorRef plain = ref;
    plain.scale = 1;
    const std::vector<float> expected = ReadAll(**tensors, plain);
    const std::vector<float> found = ReadAll(**stored, plain);
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      // Matrices are float16 there, but for a few.
      const bool rounded = ref.shape.size() > 1 && found[i] != expected[i];
      ASSERT_EQ(found[i], rounded ? Float16ToFloat(FloatToFloat16(expected[i]))
                                  : expected[i])
          << ref.name << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, GgufFamilyTest,
    testing::Values("bloom-base", "cohere-qk-norm", "cohere2-base",
                    "falcon-one-norm", "gemma-base", "gemma2-base",
                    "gemma3-base", "glm4-base", "glm4-moe-base",
                    "gpt-neox-base", "gpt-oss-mxfp4", "gpt2-base",
                    "granite-base", "granitemoe-base", "granitemoe-shared",
                    "llama-base", "llama-llama3-rope-biases", "mixtral-base",
                    "olmo2-base", "olmo3-base", "olmoe-bias", "phi3-longrope",
                    "qwen2-base", "qwen2-moe-base", "qwen3-base",
                    "qwen3-moe-base", "smollm3-base", "stablelm-base",
                    "starcoder2-base"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name) {
        if (c == '-') c = '_';
      }
      return name;
    });

// A llama of one layer, hidden size 32, two heads and four tokens.
W SmallLlama(uint32_t type = 0) {
  W writer;
  writer.String("general.architecture", "llama")
      .Int("llama.block_count", 1)
      .Int("llama.context_length", 64)
      .Int("llama.embedding_length", 32)
      .Int("llama.feed_forward_length", 32)
      .Int("llama.attention.head_count", 2)
      .Float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::vector<float> norm(32, 1), square(1024, 0.5f), embed(128, 0.25f);
  writer.Floats("token_embd.weight", {32, 4}, embed)
      .Floats("output_norm.weight", {32}, norm)
      .Floats("blk.0.attn_norm.weight", {32}, norm)
      .Floats("blk.0.ffn_norm.weight", {32}, norm);
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output",
                           "ffn_gate", "ffn_up", "ffn_down"}) {
    const std::string tensor = "blk.0." + std::string(name) + ".weight";
    if (type == 0) {
      writer.Floats(tensor, {32, 32}, square);
    } else {
      // Blocks of IQ2_XXS have 256 elements.
      writer.Tensor(tensor, {256, 4}, type, std::string(4 * 66, '\0'));
    }
  }
  return writer;
}

absl::Status OpenStatus(const std::string& path) {
  const auto model = ModelDir::Open(path);
  if (!model.ok()) return model.status();
  const auto tensors = (*model)->OpenTensors();
  if (!tensors.ok()) return tensors.status();
  return CheckTensors((*model)->spec(), **tensors);
}

TEST(GgufModelTest, DescribesItself) {
  TempDir dir;
  const std::string file = dir.Write("small.gguf", SmallLlama().Bytes());
  EXPECT_TRUE(OpenStatus(file).ok()) << OpenStatus(file);
  const auto model = ModelDir::Open(file);
  EXPECT_TRUE((*model)->spec().tied_embeddings);
  EXPECT_EQ((*model)->spec().vocab_size, 4);
  EXPECT_EQ((*model)->spec().native_dtype, DType::kFloat32);
  EXPECT_TRUE((*model)->Remarks().empty());
  const auto tensors = (*model)->OpenTensors();
  EXPECT_EQ((*tensors)->Parameters(), 128 + 3 * 32 + 7 * 1024);
  EXPECT_EQ((*tensors)->BytesByType().at("F32"),
            4u * (128 + 3 * 32 + 7 * 1024));
  const auto digests = ModelDigests(**model, /*dummy=*/false);
  ASSERT_TRUE(digests.ok()) << digests.status();
  EXPECT_EQ(digests->size(), 1u);
}

TEST(GgufModelTest, RefusesByName) {
  struct Case {
    std::string bytes;
    std::string error;
  };
  W no_architecture;
  no_architecture.Int("x", 1);
  W mamba;
  mamba.String("general.architecture", "mamba");
  W experts;
  experts.String("general.architecture", "qwen2")
      .Int("qwen2.embedding_length", 32)
      .Int("qwen2.attention.head_count", 2)
      .Int("qwen2.block_count", 1)
      .Int("qwen2.context_length", 1)
      .Int("qwen2.feed_forward_length", 1)
      .Int("qwen2.expert_count", 8)
      .Floats("token_embd.weight", {32, 4}, std::vector<float>(128));
  W heads = SmallLlama();
  heads.Int("llama.attention.key_length", 16)
      .Int("llama.attention.value_length", 32);
  W scaled = SmallLlama();
  scaled.String("llama.rope.scaling.type", "unheard");
  W no_embedding;
  no_embedding.String("general.architecture", "llama");
  W no_width;
  no_width.String("general.architecture", "llama")
      .Floats("token_embd.weight", {32, 4}, std::vector<float>(128));
  W zero_heads;
  zero_heads.String("general.architecture", "llama")
      .Int("llama.embedding_length", 32)
      .Int("llama.attention.head_count", 0)
      .Int("llama.block_count", 1)
      .Int("llama.context_length", 1)
      .Int("llama.feed_forward_length", 1)
      .Floats("token_embd.weight", {32, 4}, std::vector<float>(128));
  W layers_differ;
  layers_differ.String("general.architecture", "llama")
      .Int("llama.embedding_length", 32)
      .List<uint32_t>("llama.attention.head_count", W::kUint32, {2, 4})
      .Floats("token_embd.weight", {32, 4}, std::vector<float>(128));
  W shape = SmallLlama();
  W part = SmallLlama();
  part.Int("split.count", 2).Int("split.no", 0);
  const Case cases[] = {
      {"GGUX", "does not begin with GGUF"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n",
       "a Git LFS pointer"},
      {no_architecture.Bytes(), "metadata \"general.architecture\" is missing"},
      {mamba.Bytes(), "architecture \"mamba\" is not supported; of GGUF files"},
      {experts.Bytes(),
       "models of this architecture with experts are not supported"},
      {heads.Bytes(), "is not llama.attention.value_length"},
      {scaled.Bytes(), "is \"unheard\", which is not supported"},
      {no_embedding.Bytes(), "no tensor token_embd.weight"},
      {no_width.Bytes(), "metadata \"llama.embedding_length\" is missing"},
      {zero_heads.Bytes(), "num_attention_heads must be in [1, 65536]"},
      {layers_differ.Bytes(), "has layers of different sizes"},
      {SmallLlama(16).Bytes(),
       "blk.0.attn_q.weight has type IQ2_XXS, which is not supported"},
      {part.Bytes(),
       "says that it is part 1 of 2, but is opened as part 1 of "
       "1"},
  };
  TempDir dir;
  for (const Case& wrong : cases) {
    const std::string file = dir.Write("wrong.gguf", wrong.bytes);
    const absl::Status status = OpenStatus(file);
    EXPECT_FALSE(status.ok()) << wrong.error;
    EXPECT_TRUE(absl::StrContains(status.message(), wrong.error))
        << status << "\nexpected: " << wrong.error;
    EXPECT_TRUE(absl::StrContains(status.message(), file)) << status;
  }
}

TEST(GgufModelTest, PartsAreOneModel) {
  const std::vector<float> norm(32, 1), square(1024, 0.5f), embed(128, 0.25f);
  const auto part = [](uint32_t number, uint32_t count) {
    W writer;
    writer.Int("split.no", number).Int("split.count", count);
    return writer;
  };
  W first = part(0, 2), second = part(1, 2);
  first.String("general.architecture", "llama")
      .Int("split.tensors.count", 11)
      .Int("llama.block_count", 1)
      .Int("llama.context_length", 64)
      .Int("llama.embedding_length", 32)
      .Int("llama.feed_forward_length", 32)
      .Int("llama.attention.head_count", 2)
      .Floats("token_embd.weight", {32, 4}, embed)
      .Floats("output_norm.weight", {32}, norm)
      .Floats("blk.0.attn_norm.weight", {32}, norm);
  second.Floats("blk.0.ffn_norm.weight", {32}, norm);
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output",
                           "ffn_gate", "ffn_up", "ffn_down"}) {
    second.Floats("blk.0." + std::string(name) + ".weight", {32, 32}, square);
  }
  TempDir dir;
  const std::string one = dir.Write("m-00001-of-00002.gguf", first.Bytes());
  const std::string two = dir.Write("m-00002-of-00002.gguf", second.Bytes());
  EXPECT_TRUE(OpenStatus(one).ok()) << OpenStatus(one);
  EXPECT_TRUE(OpenStatus(two).ok()) << OpenStatus(two);

  // A part of another place, and a tensor too few.
  dir.Write("m-00002-of-00002.gguf", part(0, 2).Bytes());
  EXPECT_TRUE(absl::StrContains(OpenStatus(one).message(),
                                "says that it is part 1 of 2, but is opened as "
                                "part 2 of 2"))
      << OpenStatus(one);
  dir.Write("m-00002-of-00002.gguf", part(1, 2).Bytes());
  EXPECT_TRUE(absl::StrContains(
      OpenStatus(one).message(),
      "says that the model has 11 tensors, but its parts have 3"))
      << OpenStatus(one);
}

TEST(GgufModelTest, ATensorOfAnotherShapeIsNamed) {
  W writer = SmallLlama();
  const std::string good = writer.Bytes();
  W wrong;
  wrong.String("general.architecture", "llama")
      .Int("llama.block_count", 1)
      .Int("llama.context_length", 64)
      .Int("llama.embedding_length", 64)
      .Int("llama.feed_forward_length", 32)
      .Int("llama.attention.head_count", 2)
      .Floats("token_embd.weight", {32, 4}, std::vector<float>(128));
  TempDir dir;
  const absl::Status status = OpenStatus(dir.Write("w.gguf", wrong.Bytes()));
  EXPECT_TRUE(absl::StrContains(
      status.message(),
      "token_embd.weight has shape [4, 32], but the metadata asks for [4, 64]"))
      << status;
}

}  // namespace
}  // namespace sluice
