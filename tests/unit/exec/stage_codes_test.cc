// Weights that stay in the checkpoint's codes have the same bits as the numbers
// that these stand for, wherever they lie, on however many ranks.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/model/code_format.h"
#include "tests/parity/coded_source.h"
#include "tests/parity/random_source.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

const CodeFormat* Format(const char* name) {
  const CodeFormat* const format = FindCodeFormat(name);
  EXPECT_NE(format, nullptr) << name;
  return format;
}

// A llama of 256 and 512 inputs, whose layers have codes of several kinds: all
// alike; Q, K and V in three of them; gate and up in two, which are then
// numbers; some matrices that have numbers anyway.
DecoderSpec CodedSpec() {
  DecoderSpec spec = LlamaSpec(4, 256, 8, 2, 512, 301);
  const CodeFormat* const q4 = Format("Q4_K");
  const CodeFormat* const q6 = Format("Q6_K");
  const CodeFormat* const q8 = Format("Q8_0");
  const CodeFormat* const q5 = Format("Q5_1");
  const CodeFormat* const q3 = Format("Q3_K");
  spec.layers.resize(4);
  spec.layers[0].codes = {q4, q4, q4, q4, q4, q4, q4};
  spec.layers[1].codes = {q4, q8, q6, q5, q3, q3, q6};
  spec.layers[2].codes = {q4, q4, nullptr,         Format("MXFP4"),
                          q4, q5, Format("IQ4_NL")};
  spec.layers[3].codes = spec.layers[0].codes;
  spec.head_codes = q6;
  spec.embedding_codes = q5;
  return spec;
}

// The same of codes of safetensors files: FP8 with blocks and rows, integers
// with and without zero points, in groups in order and in any order.
DecoderSpec ScaledSpec() {
  DecoderSpec spec = LlamaSpec(4, 256, 8, 2, 512, 301);
  const CodeFormat* const fp8 = Format("E4M3_F32_B128");
  const CodeFormat* const rows = Format("E4M3_BF16");
  const CodeFormat* const gptq = Format("INT4_F16_G128_Z4");
  const CodeFormat* const any = Format("INT4_F16_G64_Z4_ANY");
  const CodeFormat* const packed = Format("INT4_BF16_G32");
  const CodeFormat* const int8 = Format("INT8_BF16");
  spec.layers.resize(4);
  spec.layers[0].codes = {fp8, fp8, fp8, fp8, fp8, fp8, fp8};
  spec.layers[1].codes = {
      gptq, any, packed, rows, int8, int8, Format("INT8_F16_G32_Z8")};
  spec.layers[2].codes = {any, any, any, any, any, any, any};
  spec.layers[3].codes = {rows, fp8, nullptr, packed, gptq, gptq, gptq};
  spec.head_codes = Format("INT4_BF16_G64_Z8");
  return spec;
}

DecoderSpec InNumbers(DecoderSpec spec) {
  for (LayerSpec& layer : spec.layers) layer.codes = {};
  spec.head_codes = spec.embedding_codes = nullptr;
  return spec;
}

struct Case {
  const char* policy;
  int ranks = 1;
  std::vector<int> cuts;
  uint64_t device_bytes = 0;
};

class StageCodesTest : public ::testing::TestWithParam<DecoderSpec (*)()> {};

TEST_P(StageCodesTest, SameBitsAsNumbers) {
  const DecoderSpec coded = GetParam()();
  const CodedSource source(coded, 3);
  const DecoderSpec plain = InNumbers(coded);
  TempDir dir = TempDir::OnDisk();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto policy = [&](const std::string& keys) {
      Policy made = With(keys);
      made.dtype = dtype;
      return made;
    };
    Outcome expected;
    RunPlacement(plain, {.policy = policy(""), .source = &source}, &expected);
    ASSERT_FALSE(HasFatalFailure());
    for (const Case& c : std::vector<Case>{
             {""},
             {"num-microbatches=1"},
             {"schedule=row"},
             {"", 1, {1, 3}},
             {"w=0/0/100"},
             {"w=0/0/100", 1, {2}},
             {"w=0/40/60 num-microbatches=1"},
             {"w=0/50/50 c=0/50/50 num-microbatches=5", 1, {1}},
             {"", 2},
             {"w=0/30/70 num-microbatches=1", 2, {2}},
             {"", 4},
             {"w=40/30/30", 1, {}, uint64_t{1} << 30},
         }) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << c.policy
                                      << ", " << c.ranks << " ranks");
      Outcome run;
      RunPlacement(coded,
                   {.policy = policy(c.policy),
                    .disk_dir = dir.path(),
                    .cuts = c.cuts,
                    .ranks = c.ranks,
                    .device_bytes = c.device_bytes,
                    .source = &source},
                   &run);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_TRUE(run.tokens == expected.tokens);
      EXPECT_TRUE(run.logits == expected.logits);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, StageCodesTest,
                         ::testing::Values(&CodedSpec, &ScaledSpec));

// The second rank's K and V begin within a strip of the whole matrix, whose
// rows share scales: they become numbers.
TEST(StageCodes, RanksMayBeginWithinAStrip) {
  DecoderSpec coded = LlamaSpec(1, 384, 48, 3, 256, 64);
  const CodeFormat* const fp8 = Format("E4M3_F32_B128");
  coded.layers.resize(1);
  coded.layers[0].codes = {fp8, fp8, fp8, fp8, fp8, fp8, fp8};
  const CodedSource source(coded, 3);
  Outcome expected, run;
  RunPlacement(InNumbers(coded), {.policy = With(""), .source = &source},
               &expected);
  ASSERT_FALSE(HasFatalFailure());
  RunPlacement(coded, {.policy = With(""), .ranks = 2, .source = &source},
               &run);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_TRUE(run.tokens == expected.tokens);
  EXPECT_TRUE(run.logits == expected.logits);
}

// What is in memory is what the checkpoint has, and little more.
TEST(StageCodes, TakeTheBytesOfTheCheckpoint) {
  const struct {
    const char* format;
    double bits;
  } cases[] = {{"Q4_K", 4.5},
               {"E4M3_F32_B128", 8},
               {"INT4_F16_G128_Z4", 4.15},
               {"INT4_F16_G128_Z4_ANY", 4.15}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.format);
    DecoderSpec spec = LlamaSpec(2, 1024, 8, 2, 2048, 512);
    spec.layers.resize(2);
    const CodeFormat* const format = Format(c.format);
    for (LayerSpec& layer : spec.layers) {
      layer.codes = {format, format, format, format, format, format, format};
    }
    const CodedSource source(spec, 3);
    Outcome run;
    Policy policy = With("");
    policy.dtype = DType::kBFloat16;
    RunPlacement(spec, {.policy = policy, .source = &source}, &run);
    ASSERT_FALSE(HasFatalFailure());
    const RealisedPlacement& p = run.placement;
    const double head = 2.0 * 512 * 1024;
    const double elements =
        2.0 * (1024.0 * (1024 + 2 * 256) + 1024.0 * 1024 + 3 * 1024.0 * 2048);
    const auto bytes = static_cast<double>(p.weight_bytes - p.embedding_bytes);
    EXPECT_LT(bytes - head, 1.02 * elements * c.bits / 8);
    EXPECT_GT(bytes - head, elements * c.bits / 8);
  }
}

}  // namespace
}  // namespace sluice
