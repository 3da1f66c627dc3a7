#include "runtime/placement/stage_sizes.h"

#include <gtest/gtest.h>

#include "runtime/placement/stage_placement.h"
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

// A layer with a window has KV for its window and a turn of new positions,
// wherever it lies, and the others for all positions.
TEST(StageSizesTest, LayersWithAWindowHaveKvOfTheirWindow) {
  constexpr int32_t kSequences = 12, kPages = 128, kWindow = 64;
  // 64 - 1 positions in sight and a turn of 32 touch four pages at most.
  constexpr int32_t kWindowPages = 4;
  DecoderSpec spec = LlamaSpec(6, 64, 4, 2, 128, 300);
  for (int layer = 0; layer < 6; ++layer) {
    spec.layers.push_back({.window = layer % 3 == 2 ? 0 : kWindow});
  }
  StageShape shape = {.model = &spec,
                      .layers = {1, 6},
                      .max_model_len = kPages * kPageTokens,
                      .max_sequences = kSequences,
                      .may_use_disk = true};
  const StageSizes sizes(shape);
  EXPECT_EQ(sizes.kv_groups.sizes[KvGroup::kAll], 2);
  EXPECT_EQ(sizes.kv_groups.sizes[KvGroup::kWindow], 3);
  EXPECT_EQ(sizes.kv_groups.window_pages(), kWindowPages);
  const uint64_t page = sizes.kv.layer_page_bytes();
  const uint64_t all = kSequences * (2 * kPages + 3 * kWindowPages) * page;
  EXPECT_EQ(sizes.KvBytes(sizes.kv_pages), all);
  const TierLimits limits = {0, uint64_t{1} << 32, uint64_t{1} << 32};
  for (const double host : {1.0, 0.0}) {
    Policy policy = shape.policy;
    policy.automatic_kv_cache = false;
    policy.kv_cache = {0, host, 1 - host};
    const StagePlacement placed = Place(sizes, policy, limits);
    uint64_t bytes = 0;
    for (const TierUse::Item& item :
         placed.use(host > 0 ? Tier::kHost : Tier::kDisk).items()) {
      if (item.name == "kv cache") bytes = item.bytes;
    }
    EXPECT_EQ(bytes, host > 0 ? all + 2 * KvLayout::kSlackBytes : all);
  }
  // What memory has room for is shared as the groups need it.
  Policy automatic = shape.policy;
  for (const int share : {2, 3, 7}) {
    TierLimits few = limits;
    const StagePlacement whole = Place(sizes, automatic, limits);
    few[1] = whole.use(Tier::kHost).held_bytes() - all + all / share;
    automatic.automatic_weights = false;
    automatic.weights = {0, 1, 0};
    const StagePlacement placed = Place(sizes, automatic, few);
    const int64_t pages = placed.pages[KvGroup::kAll][1];
    EXPECT_NEAR(pages, sizes.kv_pages / share, 2);
    EXPECT_NEAR(placed.pages[KvGroup::kWindow][1], sizes.window_pages / share,
                2);
    EXPECT_LE(placed.use(Tier::kHost).held_bytes(), few[1]);
    EXPECT_GE(placed.use(Tier::kHost).held_bytes() + 3 * sizes.KvBytes(1),
              few[1]);
  }
  // A window as long as the sequences saves nothing.
  shape.max_model_len = kWindowPages * kPageTokens;
  EXPECT_EQ(StageSizes(shape).kv_groups.sizes[KvGroup::kWindow], 0);
  // A short job's sequences take no more pages than their positions need.
  shape.max_model_len = kPages * kPageTokens;
  shape.kv_positions = 2 * kPageTokens;
  const StageSizes short_ones(shape);
  EXPECT_EQ(short_ones.KvBytes(short_ones.kv_pages), kSequences * 5 * 2 * page);
  // With windows only, pages of all positions cost nothing.
  shape.kv_positions = 0;
  shape.layers = {0, 2};
  const StageSizes windows(shape);
  EXPECT_EQ(windows.kv_groups.sizes[KvGroup::kAll], 0);
  EXPECT_EQ(windows.kv_pages, kSequences * kPages);
  EXPECT_EQ(windows.KvBytes(windows.kv_pages),
            kSequences * 2 * kWindowPages * page);
}

}  // namespace
}  // namespace sluice
