// Placement at the width of real models: two layers with the hidden sizes and
// numbers of heads of published ones. Wherever things lie, on one stage and on
// two, the tokens and logits are the same bits as with all in memory.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/parity/random_source.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

struct WideModel {
  const char* name;
  int32_t hidden;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;  // less than the model's where only width counts
  bool opt = false;
  bool qkv_bias = false;
};

DecoderSpec SpecOf(const WideModel& model) {
  constexpr int32_t kLayers = 2, kInner = 64, kVocab = 1003;
  DecoderSpec spec = LlamaSpec(kLayers, model.heads * model.head_dim,
                               model.heads, model.kv_heads, kInner, kVocab);
  spec.hidden_size = spec.embed_dim = model.hidden;
  spec.qkv_bias = model.qkv_bias;
  if (model.opt) {
    spec.model_type = "opt";
    spec.norm = NormKind::kLayerNorm;
    spec.gated_mlp = false;
    spec.activation = Activation::kRelu;
    spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
    spec.positions = PositionKind::kLearned;
    spec.rotaries.clear();
    spec.position_offset = 2;
    spec.max_positions = 400;
  }
  return spec;
}

class StageWideTest : public testing::TestWithParam<WideModel> {};

TEST_P(StageWideTest, SameBitsWhereverThingsLie) {
  const DecoderSpec spec = SpecOf(GetParam());
  TempDir dir = TempDir::OnDisk();
  Policy base;
  base.dtype = DType::kBFloat16;
  base.max_step_tokens = 256;
  base.num_microbatches = 2;
  Outcome expected;
  RunPlacement(spec, {.policy = base}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  struct Case {
    const char* policy;
    std::vector<int> cuts;
    bool discrete = false;
  };
  for (const Case& c : std::vector<Case>{
           {"w=0/0/100 c=0/0/100", {1}},
           {"h=0/50/50 num-microbatches=4 w=0/50/50 c=0/50/50", {}},
           {"w=30/30/40 c=30/30/40 h=50/50/0", {1}, true},
           {"w=0/100/0 c=0/100/0 attention-site=device", {}, true},
       }) {
    SCOPED_TRACE(c.policy);
    Policy policy = base;
    ASSERT_TRUE(UpdatePolicy(c.policy, &policy).ok());
    Outcome run;
    RunPlacement(
        spec,
        {.policy = policy,
         .disk_dir = dir.path(),
         .cuts = c.cuts,
         .device_bytes = c.discrete ? uint64_t{768} << 20 : uint64_t{0}},
        &run);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_TRUE(run.tokens == expected.tokens);
    EXPECT_TRUE(run.logits == expected.logits);
    EXPECT_EQ(run.stats.h2d_bytes > 0, c.discrete);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, StageWideTest,
    testing::Values(WideModel{"Llama3_8B", 4096, 32, 8, 128},
                    WideModel{"Llama3_70B", 8192, 64, 8, 16},
                    WideModel{"Qwen2_5_7B", 3584, 28, 4, 128, false, true},
                    WideModel{"Opt30B", 7168, 56, 56, 16, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice
