// Weights of quantized safetensors files stay in the files' codes, which stand
// for the very numbers that reading them as numbers gives.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/model/checkpoint/quantization/quantization_config.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/code_format.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/layer_weights.h"
#include "runtime/quant/scaled_strip.h"
#include "runtime/quant/strip_codec.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

constexpr int64_t kHidden = 256;
constexpr int64_t kInner = 384;

// Makes tensors of a module [rows, columns]; all bits of codes are random.
class Writer {
 public:
  std::vector<RawTensor> tensors;

  void Random(const std::string& name, const std::string& dtype,
              std::vector<int64_t> shape, size_t element, int mask = 0xff) {
    std::string data(Elements(shape) * element, '\0');
    if (dtype == "F8_E4M3") mask = 0xf7;  // no NaN
    for (char& byte : data) byte = static_cast<char>(random_() >> 7 & mask);
    tensors.push_back({name, dtype, std::move(shape), std::move(data)});
  }
  // Scales of about 2^-7: of 16 bits, or float32.
  void Scales(const std::string& name, const std::string& dtype,
              std::vector<int64_t> shape) {
    const size_t count = Elements(shape);
    std::string data;
    if (dtype == "F32") {
      std::vector<float> scales(count);
      for (float& scale : scales) {
        scale = 0.01f * (1 + static_cast<float>(random_() % 1000) / 1000);
      }
      data = BytesOf(scales);
    } else {
      std::vector<uint16_t> scales(count);
      for (uint16_t& scale : scales) {
        scale = static_cast<uint16_t>((dtype == "F16" ? 0x2000 : 0x3c00) +
                                      random_() % 256);
      }
      data = BytesOf(scales);
    }
    tensors.push_back({name, dtype, std::move(shape), std::move(data)});
  }
  void Integers(const std::string& name, const std::vector<int32_t>& values) {
    tensors.push_back(
        {name, "I32", {static_cast<int64_t>(values.size())}, BytesOf(values)});
  }

 private:
  static size_t Elements(const std::vector<int64_t>& shape) {
    size_t n = 1;
    for (const int64_t d : shape) n *= static_cast<size_t>(d);
    return n;
  }
  std::mt19937 random_{11};
};

using Write = std::function<void(Writer&, const std::string& module,
                                 int64_t rows, int64_t columns)>;

struct Method {
  std::string format;  // of all weights
  std::string config;
  Write write;
  friend void PrintTo(const Method& method, std::ostream* out) {
    *out << method.format;
  }
};

std::string OneGroup(const std::string& format, const std::string& weights) {
  return absl::StrCat(R"({"quant_method":"compressed-tensors","format":")",
                      format, R"(","config_groups":{"group_0":{"weights":{)",
                      weights, "}}}}");
}

Method Fp8(const std::string& format, const std::string& config,
           const std::string& dtype, int64_t block) {
  return {format, config,
          [=](Writer& to, const std::string& module, int64_t n, int64_t k) {
            to.Random(module + ".weight", "F8_E4M3", {n, k}, 1);
            if (block == 0) {
              to.Scales(module + ".weight_scale", dtype, {n, 1});
            } else if (block < 0) {
              to.Scales(module + ".weight_scale", dtype, {1});
            } else {
              to.Scales(module + ".weight_scale_inv", dtype,
                        {(n + block - 1) / block, k / block});
            }
          }};
}

Method Gptq(const std::string& format, const std::string& config, int bits,
            int64_t group, bool any_order) {
  return {format, config,
          [=](Writer& to, const std::string& module, int64_t n, int64_t k) {
            const int64_t groups = group > 0 ? k / group : 1;
            to.Random(module + ".qweight", "I32", {k * bits / 32, n}, 4);
            to.Random(module + ".qzeros", "I32", {groups, n * bits / 32}, 4);
            to.Scales(module + ".scales", "F16", {groups, n});
            // Weights of the same inputs have them in the same order.
            std::mt19937 random(static_cast<uint32_t>(k));
            std::vector<int32_t> order(k);
            for (int64_t i = 0; i < k; ++i) {
              order[i] = static_cast<int32_t>((any_order ? random() % k : i) /
                                              (k / groups));
            }
            to.Integers(module + ".g_idx", order);
          }};
}

Method Packed(const std::string& format, const std::string& weights,
              const std::string& scales, int bits, int64_t group,
              const std::string& zeros) {
  return {
      format, OneGroup("pack-quantized", weights),
      [=](Writer& to, const std::string& module, int64_t n, int64_t k) {
        const std::string name = module + ".weight";
        to.Random(name + "_packed", "I32", {n, k * bits / 32}, 4);
        to.Scales(name + "_scale", scales, {n, k / group});
        if (zeros == "I32") {
          to.Random(name + "_zero_point", "I32", {n * bits / 32, k / group}, 4);
        } else if (zeros == "I8") {
          to.Random(name + "_zero_point", "I8", {n, k / group}, 1);
        }
      }};
}

std::vector<Method> Methods() {
  const auto group = [](int bits, int size, bool symmetric) {
    return absl::StrCat(R"("num_bits":)", bits,
                        R"(,"type":"int","strategy":"group","group_size":)",
                        size, R"(,"symmetric":)", symmetric ? "true" : "false");
  };
  const auto gptq = [](int bits, int size, const char* more) {
    return absl::StrCat(R"({"quant_method":"gptq","bits":)", bits,
                        R"(,"group_size":)", size, more, "}");
  };
  return {
      Fp8("E4M3_F32_B128",
          R"({"quant_method":"fp8","weight_block_size":[128,128]})", "F32",
          128),
      Fp8("E4M3_F32_B128",
          R"({"quant_method":"fp8","weight_block_size":[128,128]})", "BF16",
          128),
      Fp8("E4M3_F32", R"({"quant_method":"fp8"})", "F32", 0),
      Fp8("E4M3_F32", R"({"quant_method":"fp8"})", "BF16", -1),
      Fp8("E4M3_BF16",
          OneGroup("float-quantized",
                   R"("num_bits":8,"type":"float","strategy":"channel")"),
          "BF16", 0),
      Gptq("INT4_F16_G128_Z4", gptq(4, 128, ""), 4, 128, false),
      Gptq("INT4_F16_G32_Z4", gptq(4, 32, R"(,"checkpoint_format":"gptq_v2")"),
           4, 32, false),
      Gptq("INT4_F16_G64_Z4_ANY", gptq(4, 64, R"(,"desc_act":true)"), 4, 64,
           true),
      Gptq("INT8_F16_G128_Z8", gptq(8, 128, ""), 8, 128, false),
      Gptq("INT8_F16_Z8", gptq(8, -1, ""), 8, -1, false),
      {"INT4_F16_G64_Z4",
       R"({"quant_method":"awq","bits":4,"group_size":64,"version":"gemm"})",
       [](Writer& to, const std::string& module, int64_t n, int64_t k) {
         to.Random(module + ".qweight", "I32", {k, n / 8}, 4);
         to.Random(module + ".qzeros", "I32", {k / 64, n / 8}, 4);
         to.Scales(module + ".scales", "F16", {k / 64, n});
       }},
      Packed("INT4_BF16_G128", group(4, 128, true), "BF16", 4, 128, ""),
      Packed("INT4_BF16_G32_Z4", group(4, 32, false), "BF16", 4, 32, "I32"),
      Packed("INT4_F32_G64_Z8", group(4, 64, false), "F32", 4, 64, "I8"),
      Packed("INT8_F16_G32", group(8, 32, true), "F16", 8, 32, ""),
      {"MXFP4",
       OneGroup("mxfp4-pack-quantized",
                R"("num_bits":4,"type":"float","group_size":32)"),
       [](Writer& to, const std::string& module, int64_t n, int64_t k) {
         to.Random(module + ".weight_packed", "U8", {n, k / 2}, 1);
         to.Random(module + ".weight_scale", "U8", {n, k / 32}, 1, 0x7f);
       }},
      {"INT8_BF16",
       OneGroup("int-quantized",
                R"("num_bits":8,"type":"int","strategy":"channel")"),
       [](Writer& to, const std::string& module, int64_t n, int64_t k) {
         to.Random(module + ".weight", "I8", {n, k}, 1);
         to.Scales(module + ".weight_scale", "BF16", {n, 1});
       }},
  };
}

// A layer, its heads of 32, as `family` stores it.
std::string ConfigOf(const std::string& family, const std::string& method) {
  return absl::StrCat(
      R"({"model_type":")", family,
      R"(","hidden_size":256,"intermediate_size":384,"num_hidden_layers":1,)",
      R"("num_attention_heads":8,"num_key_value_heads":2,"vocab_size":40,)",
      R"("max_position_embeddings":64,"rms_norm_eps":1e-5,)",
      R"("pad_token_id":0,"hidden_act":"silu","tie_word_embeddings":false,)",
      R"("torch_dtype":"bfloat16","quantization_config":)", method, "}");
}

std::vector<float> Decoded(const CodeFormat& format, const std::byte* rows,
                           int64_t n, int32_t k) {
  std::vector<float> numbers(n * k);
  std::vector<std::byte> strip(StripBytes(format, k));
  const std::byte* const groups = GroupsOfRow(format, rows, k);
  for (int64_t row = 0; row < n; row += kStripColumns) {
    const auto count =
        static_cast<int32_t>(std::min<int64_t>(kStripColumns, n - row));
    const absl::Status status =
        EncodeStrip(format, rows + row * format.row_bytes(k), count, k,
                    strip.data(), groups);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<float> panel(static_cast<size_t>(kStripColumns) * k);
    DecodeStrip(format, strip.data(), k, DType::kFloat32, {kStripColumns, 1, k},
                0, count, panel.data(), groups);
    for (int32_t column = 0; column < count; ++column) {
      for (int32_t i = 0; i < k; ++i) {
        numbers[(row + column) * k + i] = panel[i * kStripColumns + column];
      }
    }
  }
  return numbers;
}

class KeptCodesTest : public ::testing::Test {
 protected:
  // Writes the model and sets `spec` to what it is.
  std::unique_ptr<SafetensorsSource> Open(const Method& method,
                                          const std::string& family,
                                          DecoderSpec* spec) {
    Writer writer;
    const std::string layer = "model.layers.0.";
    const auto matrix = [&](const std::string& name, int64_t n, int64_t k) {
      method.write(writer, layer + name, n, k);
    };
    if (family == "phi3") {
      matrix("self_attn.qkv_proj", kHidden + 128, kHidden);
      matrix("mlp.gate_up_proj", 2 * kInner, kHidden);
    } else {
      matrix("self_attn.q_proj", kHidden, kHidden);
      matrix("self_attn.k_proj", 64, kHidden);
      matrix("self_attn.v_proj", 64, kHidden);
      matrix("mlp.gate_proj", kInner, kHidden);
      matrix("mlp.up_proj", kInner, kHidden);
    }
    matrix("self_attn.o_proj", kHidden, kHidden);
    matrix("mlp.down_proj", kHidden, kInner);
    method.write(writer, "lm_head", 40, kHidden);
    writer.Scales("model.embed_tokens.weight", "BF16", {40, kHidden});
    WriteFile(dir_ / "model.safetensors", SafetensorsOf(writer.tensors));
    const std::string config = ConfigOf(family, method.config);
    auto parsed = ParseDecoderSpec(config);
    auto quantization = ParseQuantizationText(config);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE(quantization.ok()) << quantization.status();
    if (!parsed.ok() || !quantization.ok()) return nullptr;
    auto source = SafetensorsSource::Open(dir_.path(), {}, *quantization);
    EXPECT_TRUE(source.ok()) << source.status();
    if (!source.ok()) return nullptr;
    *spec = *parsed;
    (*source)->SetCodes(spec);
    return *std::move(source);
  }

  TempDir dir_;
};

class KeptCodesOfMethodTest : public KeptCodesTest,
                              public ::testing::WithParamInterface<Method> {};

TEST_P(KeptCodesOfMethodTest, StandForTheNumbers) {
  for (const char* family : {"llama", "phi3"}) {
    SCOPED_TRACE(family);
    DecoderSpec spec;
    const std::unique_ptr<SafetensorsSource> source =
        Open(GetParam(), family, &spec);
    ASSERT_NE(source, nullptr);
    std::vector<TensorRef> refs = LayerTensors(spec, 0);
    for (const TensorRef& ref : HeadTensors(spec)) refs.push_back(ref);
    int coded = 0;
    for (const TensorRef& ref : refs) {
      if (ref.shape.size() != 2) continue;
      SCOPED_TRACE(ref.name);
      const CodeFormat* const format =
          ref.role == TensorRole::kHead
              ? spec.head_codes
              : CodesOf(spec.layer(0).codes, ref.role);
      ASSERT_NE(format, nullptr);
      EXPECT_EQ(format->name, GetParam().format);
      const int64_t n = ref.shape[0];
      const auto k = static_cast<int32_t>(ref.shape[1]);
      std::vector<float> numbers(n * k);
      ASSERT_TRUE(source->ReadRows(ref, 0, n, numbers.data()).ok());
      std::vector<std::byte> rows(n * format->row_bytes(k));
      // In two runs, of which one begins within a strip.
      const int64_t cut = n / 2 - 3;
      ASSERT_TRUE(source->ReadCodes(ref, *format, 0, cut, rows.data()).ok());
      ASSERT_TRUE(source
                      ->ReadCodes(ref, *format, cut, n,
                                  rows.data() + cut * format->row_bytes(k))
                      .ok());
      EXPECT_EQ(BytesOf(Decoded(*format, rows.data(), n, k)), BytesOf(numbers));
      ++coded;
    }
    EXPECT_EQ(coded, 8);
    EXPECT_EQ(spec.embedding_codes, nullptr);
    const std::map<std::string, uint64_t> bytes = source->BytesByType(&spec);
    EXPECT_EQ(bytes.size(), 2U);
    EXPECT_EQ(bytes.at("BF16"), 40U * kHidden * 2);
    EXPECT_GT(bytes.at(GetParam().format), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, KeptCodesOfMethodTest,
                         ::testing::ValuesIn(Methods()));

// A matrix has one order of inputs for all its parts.
TEST_F(KeptCodesTest, PartsWithOrdersOfTheirOwnAreReadAsNumbers) {
  const Method same = Gptq(
      "", R"({"quant_method":"gptq","bits":4,"group_size":64,"desc_act":true})",
      4, 64, true);
  Method other = same;
  other.write = [&](Writer& to, const std::string& module, int64_t n,
                    int64_t k) {
    same.write(to, module, n, k);
    if (module.ends_with("v_proj") || module.ends_with("o_proj") ||
        module.ends_with("up_proj")) {
      to.tensors.back().data[0] ^= 1;
    }
  };
  DecoderSpec spec;
  ASSERT_NE(Open(other, "llama", &spec), nullptr);
  const LayerCodes& codes = spec.layer(0).codes;
  EXPECT_NE(codes.q, nullptr);
  EXPECT_NE(codes.k, nullptr);
  EXPECT_EQ(codes.v, nullptr);
  EXPECT_NE(codes.out, nullptr);
  EXPECT_NE(codes.gate, nullptr);
  EXPECT_EQ(codes.up, nullptr);
  EXPECT_NE(codes.down, nullptr);
}

}  // namespace
}  // namespace sluice
