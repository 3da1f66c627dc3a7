#include <gtest/gtest.h>

#include "runtime/kv/sequence_pages.h"
#include "runtime/placement/stage_placement.h"
#include "tests/parity/random_source.h"

namespace sluice {
namespace {

// A sequence lies in one tier: what is left of each, too little for another
// one, must not cost a policy's block a sequence.
TEST(PagePlacementTest, EverySequenceOfABlockFindsAPlace) {
  constexpr int64_t kSequences = 48, kLongest = 5;
  DecoderSpec spec = LlamaSpec(2, 64, 4, 2, 128, 300);
  // One layer has a window, of three pages a sequence.
  spec.layers = {{}, {.window = 20}};
  StageShape shape = {.model = &spec,
                      .layers = {0, 2},
                      .max_model_len = kLongest * kPageTokens,
                      .max_sequences = kSequences,
                      .may_use_disk = true};
  shape.policy.gbs = 8;
  for (const int64_t device_pages : {0, 1, 77}) {
    shape.device =
        device_pages > 0 ? BackendKind::kCpuDiscrete : BackendKind::kCpu;
    const StageSizes sizes(shape);
    for (const double host : {0.0, 0.0164, 0.3, 0.5, 0.97, 1.0}) {
      Policy policy = shape.policy;
      policy.automatic_kv_cache = false;
      const double device =
          static_cast<double>(device_pages) / (kSequences * kLongest);
      policy.kv_cache = {device, (1 - device) * host,
                         (1 - device) * (1 - host)};
      const TierLimits limits = {uint64_t{1} << 30, uint64_t{1} << 30,
                                 uint64_t{1} << 30};
      const StagePlacement placed = Place(sizes, policy, limits);
      EXPECT_TRUE(placed.Fits(limits));
      // A tier that has any has them for a sequence.
      EXPECT_EQ(placed.pages[KvGroup::kAll][0],
                device_pages == 1 ? kLongest : device_pages);
      const PageTables tables(placed.pages, kLongest * kPageTokens,
                              sizes.kv_groups.window_pages());
      EXPECT_GE(tables.num_pages(KvGroup::kWindow), kSequences * 3);
      EXPECT_GE(tables.num_pages(KvGroup::kAll), kSequences * kLongest)
          << device_pages << " pages on a device, share " << host;
    }
  }
}

}  // namespace
}  // namespace sluice
