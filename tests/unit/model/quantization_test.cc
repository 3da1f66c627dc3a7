// Quantized checkpoints: each method's weights by hand, and what is wrong with
// files that are not what config.json says.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/model/checkpoint/quantization/quantization_config.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/checkpoint/weight_remarks.h"
#include "runtime/model/decoder_spec.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::string Config(const std::string& quantization) {
  return absl::StrCat(R"({"model_type":"llama","quantization_config":)",
                      quantization, "}");
}

constexpr char kFp8Blocks[] =
    R"({"quant_method":"fp8","weight_block_size":[2,4]})";
constexpr char kFp8Rows[] = R"({"quant_method":"fp8"})";
constexpr char kGptq4[] = R"({"quant_method":"gptq","bits":4,"group_size":8})";
constexpr char kGptq4V2[] =
    R"({"quant_method":"gptq","bits":4,"group_size":8,
        "checkpoint_format":"gptq_v2"})";
constexpr char kGptq8[] =
    R"({"quant_method":"gptq","bits":8,"group_size":-1,"sym":true})";
constexpr char kAwq[] =
    R"({"quant_method":"awq","bits":4,"group_size":2,"version":"gemm"})";

// One config group of compressed-tensors.
std::string Compressed(const std::string& format, const std::string& weights) {
  return absl::StrCat(R"({"quant_method":"compressed-tensors","format":")",
                      format,
                      R"(","config_groups":{"group_0":{"targets":["Linear"],)",
                      R"("weights":{)", weights, "}}}}");
}

std::string Packed4() {
  return Compressed("pack-quantized",
                    R"("num_bits":4,"type":"int","strategy":"group",
                       "group_size":4,"symmetric":true)");
}
std::string Packed4Zeros() {
  return Compressed("pack-quantized",
                    R"("num_bits":4,"type":"int","strategy":"group",
                       "group_size":4,"symmetric":false)");
}
std::string Int8() {
  return Compressed("int-quantized",
                    R"("num_bits":8,"type":"int","strategy":"channel")");
}

TensorRef Ref(int64_t rows, int64_t columns) {
  TensorRef ref;
  ref.name = "w.weight";
  ref.shape = {rows, columns};
  return ref;
}

// Packs codes of 4 or 8 bits, the first in the lowest bits.
std::vector<int32_t> Words(const std::vector<uint32_t>& codes, int bits) {
  std::vector<int32_t> words(codes.size() * bits / 32);
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t bit = i * bits;
    words[bit / 32] |= static_cast<int32_t>(codes[i] << bit % 32);
  }
  return words;
}

class QuantizationTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsSource>> Open(
      const std::string& quantization, const std::vector<RawTensor>& tensors) {
    WriteFile(dir_ / "model.safetensors", SafetensorsOf(tensors));
    auto config = ParseQuantizationText(Config(quantization));
    if (!config.ok()) return config.status();
    return SafetensorsSource::Open(dir_.path(), {}, *config);
  }

  // Returns the weight, which is also read a row at a time.
  std::vector<float> Read(const std::string& quantization,
                          const std::vector<RawTensor>& tensors,
                          const TensorRef& ref) {
    auto source = Open(quantization, tensors);
    EXPECT_TRUE(source.ok()) << source.status();
    if (!source.ok()) return {};
    EXPECT_TRUE((*source)->Check(ref).ok()) << (*source)->Check(ref);
    const int64_t rows = ref.shape[0], columns = ref.shape[1];
    std::vector<float> all(rows * columns), rowwise(rows * columns);
    const absl::Status status = (*source)->ReadRows(ref, 0, rows, all.data());
    EXPECT_TRUE(status.ok()) << status;
    for (int64_t row = 0; row < rows; ++row) {
      EXPECT_TRUE(
          (*source)
              ->ReadRows(ref, row, row + 1, rowwise.data() + row * columns)
              .ok());
    }
    EXPECT_EQ(BytesOf(all), BytesOf(rowwise));
    return all;
  }

  // Returns the error of checking and, if there is none, of reading.
  std::string Error(const std::string& quantization,
                    const std::vector<RawTensor>& tensors,
                    const TensorRef& ref) {
    auto source = Open(quantization, tensors);
    if (!source.ok()) return std::string(source.status().message());
    absl::Status status = (*source)->Check(ref);
    if (status.ok()) {
      std::vector<float> out(ref.shape[0] * ref.shape[1]);
      status = (*source)->ReadRows(ref, 0, ref.shape[0], out.data());
    }
    EXPECT_EQ(status.code(), absl::IsNotFound(status)
                                 ? absl::StatusCode::kNotFound
                                 : absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  TempDir dir_;
};

std::vector<RawTensor> Fp8Weight(const std::vector<uint8_t>& codes,
                                 std::vector<int64_t> shape, RawTensor scale) {
  return {{"w.weight", "F8_E4M3", std::move(shape), BytesOf(codes)},
          std::move(scale)};
}

TEST_F(QuantizationTest, Float8HasItsNumbers) {
  // 1, -1, the largest, the least, the least normal one, 0, -0, NaN.
  const std::vector<float> values =
      Read(kFp8Rows,
           Fp8Weight({0x38, 0xb8, 0x7e, 0x01, 0x08, 0x00, 0x80, 0x7f}, {1, 8},
                     {"w.weight_scale", "F32", {1}, BytesOf<float>({1})}),
           Ref(1, 8));
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], -1);
  EXPECT_EQ(values[2], 448);
  EXPECT_EQ(values[3], std::ldexp(1.0F, -9));
  EXPECT_EQ(values[4], std::ldexp(1.0F, -6));
  EXPECT_EQ(values[5], 0);
  EXPECT_TRUE(std::signbit(values[6]));
  EXPECT_TRUE(std::isnan(values[7]));
}

// Blocks of 2 x 4 over 3 x 6: the last ones are cut.
TEST_F(QuantizationTest, Float8BlocksMayBeCut) {
  const std::vector<RawTensor> tensors = Fp8Weight(
      std::vector<uint8_t>(18, 0x38), {3, 6},
      {"w.weight_scale_inv", "F32", {2, 2}, BytesOf<float>({2, 3, 0.1F, 7})});
  EXPECT_THAT(Read(kFp8Blocks, tensors, Ref(3, 6)),
              ElementsAre(2, 2, 2, 2, 3, 3,  //
                          2, 2, 2, 2, 3, 3,  //
                          0.1F, 0.1F, 0.1F, 0.1F, 7, 7));
  // Rows of a tensor that holds more, times a factor.
  TensorRef part = Ref(1, 6);
  part.first_row = 2;
  part.tensor_rows = 3;
  part.scale = 2;
  EXPECT_THAT(Read(kFp8Blocks, tensors, part),
              ElementsAre(0.2F, 0.2F, 0.2F, 0.2F, 14, 14));
}

TEST_F(QuantizationTest, Float8ScalesAreOfRowsOrOfAll) {
  const std::vector<uint8_t> codes = {0x38, 0x40, 0x38, 0xc0};
  EXPECT_THAT(
      Read(kFp8Rows,
           Fp8Weight(codes, {2, 2},
                     {"w.weight_scale", "F32", {2, 1}, BytesOf<float>({3, 5})}),
           Ref(2, 2)),
      ElementsAre(3, 6, 5, -10));
  EXPECT_THAT(
      Read(kFp8Rows,
           Fp8Weight(codes, {2, 2},
                     {"w.weight_scale_inv", "F32", {}, BytesOf<float>({0.5F})}),
           Ref(2, 2)),
      ElementsAre(0.5F, 1, 0.5F, -1));
  // E8M0: 2^(127 - 127), 2^(129 - 127).
  EXPECT_THAT(
      Read(
          kFp8Rows,
          Fp8Weight(
              codes, {2, 2},
              {"w.weight_scale", "F8_E8M0", {2}, BytesOf<uint8_t>({127, 129})}),
          Ref(2, 2)),
      ElementsAre(1, 2, 4, -8));
}

// The product stays float32: 3 * 0.1 is no bfloat16.
TEST_F(QuantizationTest, Float8IsNotRounded) {
  EXPECT_THAT(
      Read(kFp8Rows,
           Fp8Weight({0x44}, {1, 1},
                     {"w.weight_scale", "F32", {1}, BytesOf<float>({0.1F})}),
           Ref(1, 1)),
      ElementsAre(3 * 0.1F));
}

// A weight that is stored plainly is one, whatever the lists say.
TEST_F(QuantizationTest, PlainWeightsStayPlain) {
  for (const std::string& quantization :
       {std::string(kFp8Blocks), std::string(kGptq4), std::string(kAwq),
        Packed4()}) {
    EXPECT_THAT(
        Read(quantization,
             {{"w.weight", "F32", {1, 2}, BytesOf<float>({1, 2})}}, Ref(1, 2)),
        ElementsAre(1, 2));
  }
}

// A weight [8, 16] in groups of 8 columns: code of row r and column c is
// (r + c) % 16; the stored zero points are 7 and 6 (+ row % 2), scales 1/4 and
// 1/2.
std::vector<RawTensor> GptqWeight() {
  std::vector<uint32_t> zeros;
  std::vector<int32_t> qweight;
  for (int word = 0; word < 2; ++word) {
    for (int r = 0; r < 8; ++r) {
      uint32_t bits = 0;
      for (int i = 0; i < 8; ++i) {
        bits |= static_cast<uint32_t>((r + 8 * word + i) % 16) << 4 * i;
      }
      qweight.push_back(static_cast<int32_t>(bits));
    }
  }
  for (int group = 0; group < 2; ++group) {
    for (int r = 0; r < 8; ++r) zeros.push_back(7 - group + r % 2);
  }
  std::vector<uint16_t> scales(8, 0x3400);  // 1/4
  scales.resize(16, 0x3800);                // 1/2
  return {{"w.qweight", "I32", {2, 8}, BytesOf(qweight)},
          {"w.qzeros", "I32", {2, 1}, BytesOf(Words(zeros, 4))},
          {"w.scales", "F16", {2, 8}, BytesOf(scales)}};
}

std::vector<float> GptqExpected(int add) {
  std::vector<float> expected;
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 16; ++c) {
      const int zero = 7 - c / 8 + r % 2 + add;
      expected.push_back((c < 8 ? 0.25F : 0.5F) *
                         static_cast<float>((r + c) % 16 - zero));
    }
  }
  return expected;
}

TEST_F(QuantizationTest, GptqIsReadByColumns) {
  EXPECT_THAT(Read(kGptq4V2, GptqWeight(), Ref(8, 16)),
              ElementsAreArray(GptqExpected(0)));
  EXPECT_THAT(Read(kGptq4, GptqWeight(), Ref(8, 16)),
              ElementsAreArray(GptqExpected(1)));
  // A family that has [inputs, outputs] itself makes no difference.
  TensorRef ref = Ref(8, 16);
  ref.transposed = true;
  EXPECT_THAT(Read(kGptq4, GptqWeight(), ref),
              ElementsAreArray(GptqExpected(1)));
}

TEST_F(QuantizationTest, GptqColumnsMayBeInAnyGroup) {
  std::vector<RawTensor> tensors = GptqWeight();
  std::vector<int32_t> order(16);
  for (int c = 0; c < 16; ++c) order[c] = c % 2;
  tensors.push_back({"w.g_idx", "I32", {16}, BytesOf(order)});
  const std::vector<float> values = Read(kGptq4V2, tensors, Ref(8, 16));
  ASSERT_EQ(values.size(), 128U);
  EXPECT_EQ(values[0], 0.25F * (0 - 7));
  EXPECT_EQ(values[1], 0.5F * (1 - 6));
  EXPECT_EQ(values[16 + 15], 0.5F * (0 - 7));
  // The usual order says what its absence says.
  for (int c = 0; c < 16; ++c) order[c] = c / 8;
  tensors.back().data = BytesOf(order);
  EXPECT_THAT(Read(kGptq4V2, tensors, Ref(8, 16)),
              ElementsAreArray(GptqExpected(0)));
}

// 1 is added to whole words, so that a zero point of 15 carries.
TEST_F(QuantizationTest, GptqZeroPointsCarry) {
  std::vector<RawTensor> tensors = GptqWeight();
  tensors[1].data = BytesOf<int32_t>({0x0000000f, 0});
  const std::vector<float> values = Read(kGptq4, tensors, Ref(8, 16));
  ASSERT_EQ(values.size(), 128U);
  EXPECT_EQ(values[0], 0.25F * (0 - 0));
  EXPECT_EQ(values[16], 0.25F * (1 - 2));
  EXPECT_EQ(values[32], 0.25F * (2 - 1));
}

// 8 bits, one group, products rounded to float16: 0.1 as float16 is 0x2e66;
// times 100 it is 9.99755859375, which is between 9.9921875 and 10.
TEST_F(QuantizationTest, GptqRoundsToTheScalesType) {
  const std::vector<RawTensor> tensors = {
      {"w.qweight",
       "I32",
       {1, 4},
       BytesOf(Words(
           {228, 128, 0, 255, 129, 127, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 8))},
      {"w.qzeros", "I32", {1, 1}, BytesOf(Words({127, 127, 127, 127}, 8))},
      {"w.scales",
       "F16",
       {1, 4},
       BytesOf<uint16_t>({0x2e66, 0x3c00, 0x3c00, 0x3c00})}};
  const std::vector<float> values = Read(kGptq8, tensors, Ref(4, 4));
  ASSERT_EQ(values.size(), 16U);
  EXPECT_EQ(values[0], 10);
  EXPECT_EQ(values[1], 0);
  EXPECT_EQ(values[4], 1);
  EXPECT_EQ(values[5], -1);
  EXPECT_EQ(values[15], 10 - 128);
}

// A word has the codes of rows 0, 2, 4, 6, 1, 3, 5, 7.
TEST_F(QuantizationTest, AwqRowsAreInterleaved) {
  const std::vector<RawTensor> tensors = {
      {"w.qweight",
       "I32",
       {4, 1},
       BytesOf<int32_t>({0x75316420, 0x00000001, 0x00010000, 0x10000000})},
      {"w.qzeros", "I32", {2, 1}, BytesOf<int32_t>({0x00000000, 0x11111111})},
      {"w.scales", "F16", {2, 8}, BytesOf(std::vector<uint16_t>(16, 0x3c00))}};
  std::vector<float> expected;
  for (int r = 0; r < 8; ++r) {
    for (const float value : {r * 1.0F, r == 0 ? 1.0F : 0.0F,
                              r == 1 ? 0.0F : -1.0F, r == 7 ? 0.0F : -1.0F}) {
      expected.push_back(value);
    }
  }
  EXPECT_THAT(Read(kAwq, tensors, Ref(8, 4)), ElementsAreArray(expected));
}

std::vector<RawTensor> PackedWeight() {
  // Rows of 6 of 8 columns' codes, signed -8 to 7 and stored with 8 added.
  return {{"w.weight_packed",
           "I32",
           {2, 1},
           BytesOf(Words({8, 9, 7, 0, 15, 8, 8, 8,  //
                          8, 8, 8, 8, 9, 10, 11, 12},
                         4))},
          {"w.weight_scale",
           "BF16",
           {2, 2},
           BytesOf<uint16_t>({0x3f80, 0x4000, 0x3f80, 0x4040})},
          {"w.weight_shape", "I64", {2}, BytesOf<int64_t>({2, 8})}};
}

TEST_F(QuantizationTest, PackedIntegersHaveGroups) {
  EXPECT_THAT(Read(Packed4(), PackedWeight(), Ref(2, 8)),
              ElementsAre(0, 1, -1, -8, 14, 0, 0, 0,  //
                          0, 0, 0, 0, 3, 6, 9, 12));
  // Zero points are packed along the rows: 1 and -8 of group 0, 0 and 2 of 1.
  std::vector<RawTensor> tensors = PackedWeight();
  tensors.push_back(
      {"w.weight_zero_point", "I32", {1, 2}, BytesOf<int32_t>({0x09, 0xa8})});
  EXPECT_THAT(Read(Packed4Zeros(), tensors, Ref(2, 8)),
              ElementsAre(-1, 0, -2, -9, 14, 0, 0, 0,  //
                          8, 8, 8, 8, -3, 0, 3, 6));
  // They may also be plain, and columns in another order.
  tensors.back() = {
      "w.weight_zero_point", "I8", {2, 2}, BytesOf<int8_t>({1, 0, -8, 2})};
  tensors.push_back({"w.weight_g_idx",
                     "I32",
                     {8},
                     BytesOf<int32_t>({1, 0, 0, 0, 0, 1, 1, 1})});
  EXPECT_THAT(Read(Packed4Zeros(), tensors, Ref(2, 8)),
              ElementsAre(0, 0, -2, -9, 6, 0, 0, 0,  //
                          -6, 8, 8, 8, 9, 0, 3, 6));
  // An order that was never set is none.
  tensors.back().data = BytesOf<int32_t>({-1, -1, -1, -1, -1, -1, -1, -1});
  EXPECT_THAT(Read(Packed4Zeros(), tensors, Ref(2, 8)),
              ElementsAre(-1, 0, -2, -9, 14, 0, 0, 0,  //
                          8, 8, 8, 8, -3, 0, 3, 6));
}

// 3 * 1.0078125 (0x3f81) is 3.0234375, halfway between two bfloat16 numbers.
TEST_F(QuantizationTest, SignedIntegersHaveAScaleEachRow) {
  const std::vector<RawTensor> tensors = {
      {"w.weight", "I8", {2, 2}, BytesOf<int8_t>({3, -128, 127, 1})},
      {"w.weight_scale", "BF16", {2, 1}, BytesOf<uint16_t>({0x3f81, 0x3f00})}};
  EXPECT_THAT(Read(Int8(), tensors, Ref(2, 2)),
              ElementsAre(3.03125F, -129, 63.5F, 0.5F));
}

TEST_F(QuantizationTest, Float8OfCompressedTensorsIsRounded) {
  const std::string config = Compressed(
      "float-quantized", R"("num_bits":8,"type":"float","strategy":"tensor")");
  EXPECT_THAT(
      Read(config,
           Fp8Weight(
               {0x44}, {1, 1},
               {"w.weight_scale", "BF16", {1}, BytesOf<uint16_t>({0x3f81})}),
           Ref(1, 1)),
      ElementsAre(3.03125F));
}

// Two codes a byte, of which the first is in the lower half: 0.5 and 6, -1 and
// -0; exponents of 2^1, 2^-127 and NaN.
TEST_F(QuantizationTest, MxFp4HasItsNumbers) {
  const std::string config =
      Compressed("mxfp4-pack-quantized",
                 R"("num_bits":4,"type":"float","strategy":"group",
                    "group_size":32)");
  std::vector<uint8_t> codes(48);
  codes[0] = 0x71;
  codes[15] = 0x8a;
  codes[16] = 0x02;
  const std::vector<float> values =
      Read(config,
           {{"w.weight_packed", "U8", {1, 48}, BytesOf(codes)},
            {"w.weight_scale", "U8", {1, 3}, BytesOf<uint8_t>({128, 0, 255})}},
           Ref(1, 96));
  ASSERT_EQ(values.size(), 96U);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 12);
  EXPECT_EQ(values[30], -2);
  EXPECT_FALSE(std::signbit(values[31]));
  EXPECT_EQ(values[32], std::ldexp(1.0F, -127));
  EXPECT_TRUE(std::isnan(values[64]));
}

// gpt-oss's experts: a stack in which rows of gate and up take turns. What is
// by inputs in files of numbers is by outputs here.
TEST_F(QuantizationTest, MxFp4OfExpertsLiesInStacks) {
  const std::string config = R"({"quant_method":"mxfp4"})";
  constexpr int64_t kExperts = 3, kRows = 4, kInputs = 64;
  std::vector<uint8_t> codes(kExperts * kRows * kInputs / 2);
  std::vector<uint8_t> scales(kExperts * kRows * kInputs / 32);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = i * 37 + i / 16;
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 120 + i;
  const std::vector<RawTensor> stored = {
      {"e.up_blocks", "U8", {kExperts, kRows, 2, 16}, BytesOf(codes)},
      {"e.up_scales", "U8", {kExperts, kRows, 2}, BytesOf(scales)}};
  constexpr float kNumbers[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    TensorRef ref = Ref(kRows / 2, kInputs);
    ref.name = "e.up";
    ref.transposed = true;
    ref.stack = kExperts;
    ref.in_stack = expert;
    ref.tensor_rows = kRows;
    ref.first_row = 1;
    ref.block_rows = 1;
    ref.block_stride = 2;
    const std::vector<float> values = Read(config, stored, ref);
    ASSERT_EQ(values.size(), static_cast<size_t>(kRows / 2 * kInputs));
    for (int64_t i = 0; i < kRows / 2 * kInputs; ++i) {
      const int64_t at =
          (expert * kRows + 1 + i / kInputs * 2) * kInputs + i % kInputs;
      const int code = codes[at / 2] >> at % 2 * 4 & 15;
      EXPECT_EQ(values[i],
                std::ldexp(kNumbers[code & 7], scales[at / 32] - 127) *
                    (code > 8 ? -1.0F : 1.0F))
          << expert << " " << i;
    }
  }
}

// Of several config groups, the one that fits is a weight's.
TEST_F(QuantizationTest, GroupsAreToldByWhatIsStored) {
  const std::string config =
      R"({"quant_method":"compressed-tensors","format":"mixed-precision",
          "config_groups":{
            "a":{"targets":["re:.*down_proj"],
                 "weights":{"num_bits":8,"type":"int","strategy":"channel"}},
            "b":{"targets":["Linear"],
                 "weights":{"num_bits":4,"type":"int","strategy":"group",
                            "group_size":4}}}})";
  EXPECT_EQ(Read(config, PackedWeight(), Ref(2, 8))[1], 1);
  EXPECT_THAT(Read(config,
                   {{"w.weight", "I8", {1, 2}, BytesOf<int8_t>({3, -1})},
                    {"w.weight_scale", "F32", {1, 1}, BytesOf<float>({2})}},
                   Ref(1, 2)),
              ElementsAre(6, -2));
}

// A stage fetches all that its weights are made of.
TEST_F(QuantizationTest, AWeightIsWhereAllItsTensorsAre) {
  std::vector<RawTensor> tensors = GptqWeight();
  tensors.push_back({"w.g_idx", "I32", {16}, std::string(64, '\0')});
  tensors.push_back({"w.other", "F32", {1}, std::string(4, '\0')});
  auto source = Open(kGptq4, tensors);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto extents = (*source)->Locate(Ref(8, 16));
  ASSERT_TRUE(extents.ok()) << extents.status();
  std::vector<uint64_t> sizes;
  for (const auto& extent : *extents)
    sizes.push_back(extent.end - extent.begin);
  EXPECT_THAT(sizes, ElementsAre(64, 8, 32, 64));
}

// The same bytes are other weights if config.json says so.
TEST_F(QuantizationTest, TheContentsIdTellsFormatsApart) {
  std::vector<std::string> ids;
  for (const char* config : {kGptq4, kGptq4V2, kGptq4}) {
    auto source = Open(config, GptqWeight());
    ASSERT_TRUE(source.ok()) << source.status();
    const auto id =
        (*source)->ContentId("", [](uint64_t) { return absl::OkStatus(); });
    ASSERT_TRUE(id.ok()) << id.status();
    ids.push_back(*id);
  }
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[2]);
}

// Of a tied pair, a head that is quantized is meant.
TEST_F(QuantizationTest, AQuantizedHeadIsNotTied) {
  std::vector<RawTensor> tensors = GptqWeight();
  for (RawTensor& tensor : tensors) tensor.name.replace(0, 1, "lm_head");
  DecoderSpec spec = *ParseDecoderSpec(R"({"model_type":"llama"})");
  spec.tied_embeddings = true;
  auto without = Open(kGptq4, {{"model.embed_tokens.weight", "F32", {0}, ""}});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_TRUE((*without)->HeadAsFound(spec)->tied_embeddings);
  tensors.push_back({"model.embed_tokens.weight", "F32", {0}, ""});
  auto with = Open(kGptq4, tensors);
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_FALSE((*with)->HeadAsFound(spec)->tied_embeddings);
}

TEST_F(QuantizationTest, WhatIsNotDoneIsRemarkedUpon) {
  const DecoderSpec spec = *ParseDecoderSpec(R"({"model_type":"llama"})");
  auto source = Open(kFp8Blocks, {{"w.k_scale", "F32", {0}, ""}});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(WeightRemarks(spec, **source),
              ElementsAre(HasSubstr("rounds activations"),
                          HasSubstr("quantized KV cache are not used")));
  source = Open(kGptq4, {{"w", "F32", {0}, ""}});
  EXPECT_THAT(WeightRemarks(spec, **source), ::testing::IsEmpty());
}

// Replaces a tensor of the list, or removes it if it has no name.
std::vector<RawTensor> With(std::vector<RawTensor> tensors, size_t i,
                            RawTensor tensor) {
  if (tensor.name.empty()) {
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
  } else {
    tensors[i] = std::move(tensor);
  }
  return tensors;
}

TEST_F(QuantizationTest, WhatIsWrongNamesTheTensor) {
  const std::vector<RawTensor> fp8 =
      Fp8Weight(std::vector<uint8_t>(18, 0x38), {3, 6},
                {"w.weight_scale_inv", "F32", {2, 2}, std::string(16, '\0')});
  const std::vector<RawTensor> gptq = GptqWeight();
  std::vector<RawTensor> ordered = gptq;
  std::vector<int32_t> order(16);
  order[5] = 2;
  ordered.push_back({"w.g_idx", "I32", {16}, BytesOf(order)});
  std::vector<RawTensor> negative = ordered;
  order[5] = -1;
  negative.back().data = BytesOf(order);
  const std::vector<RawTensor> packed = PackedWeight();
  std::vector<RawTensor> packed_order = packed;
  packed_order.push_back({"w.weight_g_idx",
                          "I32",
                          {8},
                          BytesOf<int32_t>({0, 0, 0, 0, 0, 0, 0, 2})});
  const RawTensor none;
  const struct {
    std::string config;
    std::vector<RawTensor> tensors;
    TensorRef ref;
    std::string error;
  } cases[] = {
      {kFp8Blocks, With(fp8, 1, none), Ref(3, 6),
       "no tensor w.weight_scale_inv, which the quantized weight w of shape "
       "[3, 6] needs"},
      {kFp8Blocks,
       With(fp8, 1,
            {"w.weight_scale_inv", "F32", {2, 1}, std::string(8, '\0')}),
       Ref(3, 6),
       "w.weight_scale_inv has shape [2, 1], but config.json asks "
       "for [2, 2]"},
      {kFp8Blocks,
       With(fp8, 1,
            {"w.weight_scale_inv", "I32", {2, 2}, std::string(16, '\0')}),
       Ref(3, 6), "w.weight_scale_inv has dtype I32, but must have F32 or"},
      {kFp8Blocks, With(fp8, 1, {"w.weight_scale_inv", "F32", {0, 2}, ""}),
       Ref(3, 6), "w.weight_scale_inv has shape [0, 2]"},
      {kFp8Blocks,
       With(fp8, 0, {"w.weight", "F8_E5M2", {3, 6}, std::string(18, '\0')}),
       Ref(3, 6), "w.weight has dtype F8_E5M2, but must have F8_E4M3"},
      {kFp8Blocks, fp8, Ref(4, 6), "w.weight has shape [3, 6], but"},
      {kFp8Rows, With(fp8, 1, none), Ref(3, 6), "no tensor w.weight_scale,"},
      {kFp8Blocks,
       With(fp8, 0, {"w.weight", "I8", {3, 6}, std::string(18, '\0')}),
       Ref(3, 6), "w.weight has dtype I8; F32, F16 and BF16 are supported"},
      {kGptq4, With(gptq, 0, none), Ref(8, 16),
       "no tensor w.weight, plain or quantized"},
      {kGptq4, With(gptq, 1, none), Ref(8, 16), "no tensor w.qzeros,"},
      {kGptq4, With(gptq, 2, none), Ref(8, 16), "no tensor w.scales,"},
      {kGptq4,
       With(gptq, 2, {"w.scales", "F16", {8, 2}, std::string(32, '\0')}),
       Ref(8, 16),
       "w.scales has shape [8, 2], but config.json asks for [2, 8]"},
      {kGptq4,
       With(gptq, 0, {"w.qweight", "F32", {2, 8}, std::string(64, '\0')}),
       Ref(8, 16), "w.qweight has dtype F32, but must have I32"},
      {kGptq8, gptq, Ref(8, 16),
       "w.qweight has shape [2, 8], but config.json "
       "asks for [4, 8]"},
      {kGptq4, gptq, Ref(8, 12), "w.qweight packs 8 codes in a word"},
      {kGptq4, gptq, Ref(int64_t{1} << 24, int64_t{1} << 20),
       "w.qweight has shape [2, 8], but config.json asks for [131072, "
       "16777216]"},
      {R"({"quant_method":"gptq","bits":4,"group_size":9})", gptq, Ref(8, 16),
       "w.qweight has 16 inputs, which groups of 9 do not divide"},
      {kGptq4, ordered, Ref(8, 16),
       "w.g_idx has group 2 at 5, but there are 2 groups"},
      {kGptq4, negative, Ref(8, 16), "w.g_idx has group -1 at 5"},
      {kAwq, gptq, Ref(8, 16),
       "w.qweight has shape [2, 8], but config.json "
       "asks for [16, 1]"},
      {kAwq, gptq, Ref(8, 15), "w.qweight has 15 inputs, which groups of 2"},
      {kAwq, gptq, Ref(12, 16), "w.qweight packs 8 codes in a word"},
      {Packed4(), With(packed, 1, none), Ref(2, 8),
       "no tensor w.weight_scale,"},
      {Packed4(),
       With(packed, 2,
            {"w.weight_shape", "I64", {2}, BytesOf<int64_t>({2, 7})}),
       Ref(2, 8),
       "w.weight_shape says [2, 7], but config.json asks for "
       "[2, 8]"},
      {Packed4(),
       With(packed, 2, {"w.weight_shape", "I64", {1}, BytesOf<int64_t>({2})}),
       Ref(2, 8), "w.weight_shape has shape [1]"},
      {Packed4(), packed, Ref(2, 6), "w has 6 inputs, which groups of 4"},
      {Packed4Zeros(), packed, Ref(2, 8), "no tensor w.weight_zero_point,"},
      {Packed4(), packed_order, Ref(2, 8),
       "w.weight_g_idx has group 2 at 7, but there are 2 groups"},
      {Int8(), packed, Ref(2, 8), "w.weight_packed has shape [2, 1]"},
      {Int8(), fp8, Ref(3, 6),
       "w.weight has dtype F8_E4M3, which no group of "
       "quantization_config.config_groups has"},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT(Error(bad.config, bad.tensors, bad.ref), HasSubstr(bad.error));
  }
}

TEST(QuantizationConfigTest, SaysWhatItIs) {
  const auto description = [](const std::string& quantization) {
    const auto config = ParseQuantizationText(Config(quantization));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->Description() : "";
  };
  EXPECT_EQ(description("null"), "");
  EXPECT_EQ(description(kFp8Blocks), "FP8, 2 x 4 blocks");
  EXPECT_EQ(description(kFp8Rows), "FP8, a scale each row or tensor");
  EXPECT_EQ(description(kGptq4), "GPTQ, 4 bits, groups of 8");
  EXPECT_EQ(description(kGptq8), "GPTQ, 8 bits, a scale each row");
  EXPECT_EQ(description(kAwq), "AWQ, 4 bits, groups of 2");
  EXPECT_EQ(description(Packed4()), "compressed-tensors, 4 bits, groups of 4");
  EXPECT_EQ(
      description(Compressed("mxfp4-pack-quantized",
                             R"("num_bits":4,"type":"float","group_size":32)")),
      "compressed-tensors, MXFP4, groups of 32");
  EXPECT_EQ(description(Int8()),
            "compressed-tensors, 8 bits, a scale each row");
}

TEST(QuantizationConfigTest, RefusesWhatItCannotRead) {
  const struct {
    std::string config;
    absl::StatusCode code;
    std::string error;
  } cases[] = {
      {"3", absl::StatusCode::kInvalidArgument,
       "quantization_config must be an object"},
      {R"({"bits": 4})", absl::StatusCode::kInvalidArgument,
       "quantization_config.quant_method is missing"},
      {R"({"quant_method": "bitsandbytes"})", absl::StatusCode::kUnimplemented,
       "quantization_config.quant_method \"bitsandbytes\" is not supported"},
      {R"({"quant_method": "exl2"})", absl::StatusCode::kUnimplemented,
       "\"exl2\" is not supported"},
      {R"({"quant_method": "hqq"})", absl::StatusCode::kUnimplemented,
       "\"hqq\" is not supported"},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})",
       absl::StatusCode::kInvalidArgument,
       "quantization_config.weight_block_size must be two integers"},
      {R"({"quant_method": "fp8", "weight_block_size": [128, 0]})",
       absl::StatusCode::kInvalidArgument, "weight_block_size must be two"},
      {R"({"quant_method": "fp8", "fmt": "e5m2"})",
       absl::StatusCode::kUnimplemented,
       "quantization_config.fmt \"e5m2\" is not supported"},
      {R"({"quant_method": "gptq"})", absl::StatusCode::kInvalidArgument,
       "quantization_config.bits is missing"},
      {R"({"quant_method": "gptq", "bits": 3})",
       absl::StatusCode::kUnimplemented,
       "quantization_config.bits 3 (4 and 8 are) is not supported"},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 0})",
       absl::StatusCode::kInvalidArgument,
       "quantization_config.group_size must be -1 or positive, but is 0"},
      {R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})",
       absl::StatusCode::kUnimplemented,
       "checkpoint_format \"marlin\" is not supported"},
      {R"({"quant_method": "gptq", "bits": 4,
           "dynamic": {"+:.*down.*": {"bits": 8}}})",
       absl::StatusCode::kUnimplemented, "dynamic with settings of some"},
      {R"({"quant_method": "awq", "bits": 4, "version": "gemv"})",
       absl::StatusCode::kUnimplemented, "version \"gemv\" is not supported"},
      {R"({"quant_method": "awq", "bits": 8})",
       absl::StatusCode::kUnimplemented, "bits 8 (4 is) is not supported"},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
       absl::StatusCode::kInvalidArgument, "config_groups is missing"},
      {R"({"quant_method": "compressed-tensors", "format": "marlin-24",
           "config_groups": {}})",
       absl::StatusCode::kUnimplemented, "format \"marlin-24\""},
      {R"({"quant_method": "compressed-tensors", "format": "int-quantized",
           "config_groups": {}})",
       absl::StatusCode::kInvalidArgument, "config_groups must have 1 to"},
      {Compressed("pack-quantized", R"("num_bits":3,"type":"int")"),
       absl::StatusCode::kUnimplemented,
       "quantization_config.config_groups.group_0.weights.num_bits 3"},
      {Compressed("nvfp4-pack-quantized", R"("num_bits":4,"type":"float")"),
       absl::StatusCode::kUnimplemented, "format \"nvfp4-pack-quantized\""},
      {Compressed("mxfp4-pack-quantized",
                  R"("num_bits":4,"type":"float","group_size":16)"),
       absl::StatusCode::kUnimplemented, "groups of 32 (MXFP4)"},
      {Compressed("int-quantized", R"("strategy":"token")"),
       absl::StatusCode::kUnimplemented, "strategy \"token\""},
      {Compressed("float-quantized", R"("type":"float","strategy":"block")"),
       absl::StatusCode::kInvalidArgument, "block_structure must be two"},
  };
  for (const auto& bad : cases) {
    const auto config = ParseQuantizationText(Config(bad.config));
    EXPECT_EQ(config.status().code(), bad.code) << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(bad.error));
    EXPECT_EQ(ParseDecoderSpec(Config(bad.config)).status(), config.status());
  }
}

// Old files call it compression_config, those of models that take images may
// have it in the text's part.
TEST(QuantizationConfigTest, IsFoundWhereverItStands) {
  for (const std::string& text :
       {absl::StrCat(R"({"compression_config":)", Packed4(), "}"),
        absl::StrCat(R"({"text_config":{"quantization_config":)", Packed4(),
                     "}}")}) {
    EXPECT_EQ(ParseQuantizationText(text)->Description(),
              "compressed-tensors, 4 bits, groups of 4");
  }
}

}  // namespace
}  // namespace sluice
