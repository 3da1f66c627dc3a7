#include "runtime/exec/stage_memory.h"

#include <gtest/gtest.h>

#include "runtime/kv/batch_view.h"
#include "runtime/kv/sequence_pages.h"

namespace sluice {
namespace {

// A sequence lies in one tier: what is left of each, too little for another
// one, must not cost a policy's block a sequence.
TEST(StageMemoryTest, EverySequenceOfABlockFindsAPlace) {
  constexpr int64_t kSequences = 48, kLongest = 5;
  MemoryBudget memory(Tier::kHost, uint64_t{1} << 30);
  MemoryBudget disk(Tier::kDisk, uint64_t{1} << 30);
  StageNeeds needs;
  needs.layer_bytes = 1 << 20;
  needs.num_layers = 2;
  needs.part_bytes = 1 << 12;
  needs.layer_page_bytes = 1 << 12;
  needs.max_sequence_pages = kLongest;
  needs.sequences_per_batch = 8;
  for (const int64_t device_pages : {0, 1, 77}) {
    for (const double host : {0.0, 0.0164, 0.3, 0.5, 0.97, 1.0}) {
      needs.kv_pages = kSequences * kLongest - device_pages;
      needs.kv_on_device = device_pages > 0;
      Policy policy;
      policy.automatic_kv_cache = false;
      policy.kv_cache = {0, host, 1 - host};
      const auto plan = PlanStageMemory(needs, policy, true, &memory, &disk);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const PageTables tables(
          {device_pages, plan->host_pages, plan->disk_pages},
          kLongest * kPageTokens);
      EXPECT_GE(tables.num_pages(), kSequences * kLongest)
          << device_pages << " pages on a device, share " << host;
    }
  }
}

}  // namespace
}  // namespace sluice
