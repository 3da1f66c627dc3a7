#include "runtime/placement/stage_sizes.h"

#include <gtest/gtest.h>

#include "tests/parity/random_source.h"

namespace sluice {
namespace {

// Each pass of the head's input costs a read of the head's weights.
TEST(StageSizesTest, TheHeadTakesABlocksRowsAtOnce) {
  const DecoderSpec spec = LlamaSpec(2, 64, 4, 2, 128, 300);
  StageShape shape = {.model = &spec,
                      .layers = {0, 2},
                      .max_model_len = 64,
                      .max_sequences = 576};
  const auto rows = [&](int32_t gbs, int32_t batches, int32_t step_tokens) {
    shape.policy.gbs = gbs;
    shape.policy.num_microbatches = batches;
    shape.policy.max_step_tokens = step_tokens;
    return StageSizes(shape).head_rows;
  };
  EXPECT_EQ(rows(16, 12, 256), 192);
  EXPECT_EQ(rows(96, 2, 512), 192);
  // The input is in a buffer of a micro-batch's rows.
  EXPECT_EQ(rows(16, 12, 64), 64);
  // Not for many more rows than share the cost of a read well.
  EXPECT_EQ(rows(512, 4, 2048), 512);
  // Prompts that are scored have more rows than a small block samples.
  EXPECT_EQ(rows(2, 2, 256), 128);
  shape.max_sequences = 100;
  EXPECT_EQ(rows(96, 2, 512), 100);
  shape.max_sequences = 4;
  EXPECT_EQ(rows(2, 2, 256), 32);
}

}  // namespace
}  // namespace sluice
