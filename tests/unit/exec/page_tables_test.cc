#include <gtest/gtest.h>

#include <set>

#include "runtime/kv/kv_arena.h"
#include "runtime/kv/page_pool.h"
#include "runtime/kv/sequence_pages.h"

namespace sluice {
namespace {

TEST(PagePoolTest, HandsOutEachPageOnce) {
  PagePool pool(10);
  std::vector<int32_t> a, b;
  ASSERT_TRUE(pool.Take(4, &a).ok());
  ASSERT_TRUE(pool.Take(6, &b).ok());
  std::set<int32_t> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all.size(), 10u);
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(*all.rbegin(), 9);
  EXPECT_EQ(pool.num_used(), 10);
  pool.GiveBack(a);
  EXPECT_EQ(pool.num_used(), 6);
  std::vector<int32_t> again;
  ASSERT_TRUE(pool.Take(4, &again).ok());
  EXPECT_EQ(again, a);
}

TEST(PagePoolTest, TakesAllOrNothing) {
  PagePool pool(3);
  std::vector<int32_t> pages;
  const absl::Status status = pool.Take(4, &pages);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.num_used(), 0);
}

TEST(PageTablesTest, ReservesWholePages) {
  PageTables tables(8);
  ASSERT_TRUE(tables.Admit(SequenceId(1), 1).ok());
  ASSERT_TRUE(tables.Admit(SequenceId(2), kPageTokens).ok());
  ASSERT_TRUE(tables.Admit(SequenceId(3), kPageTokens + 1).ok());
  EXPECT_EQ(tables.Find(SequenceId(1))->pages.size(), 1u);
  EXPECT_EQ(tables.Find(SequenceId(2))->pages.size(), 1u);
  EXPECT_EQ(tables.Find(SequenceId(3))->pages.size(), 2u);
  EXPECT_EQ(tables.pool().num_used(), 4);
  EXPECT_EQ(tables.Find(SequenceId(4)), nullptr);
  ASSERT_TRUE(tables.Release(SequenceId(3)).ok());
  EXPECT_EQ(tables.pool().num_used(), 2);
  EXPECT_EQ(tables.Find(SequenceId(3)), nullptr);
  tables.Clear();
  EXPECT_EQ(tables.pool().num_used(), 0);
  EXPECT_EQ(tables.size(), 0u);
}

TEST(PageTablesTest, Errors) {
  PageTables tables(2);
  ASSERT_TRUE(tables.Admit(SequenceId(1), 5).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(tables.Admit(SequenceId(1), 5)));
  EXPECT_TRUE(absl::IsInvalidArgument(tables.Release(SequenceId(2))));
  const absl::Status full = tables.Admit(SequenceId(2), 2 * kPageTokens);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(tables.Find(SequenceId(2)), nullptr);
  EXPECT_EQ(tables.pool().num_used(), 1);
}

TEST(KvArenaTest, BlocksDoNotOverlapAndFillThePage) {
  const KvLayout layout{3, 2, 5, DType::kBFloat16};
  EXPECT_EQ(layout.block_elements(), size_t{5} * kPageTokens);
  EXPECT_EQ(layout.layer_page_bytes(), size_t{2} * 2 * 5 * kPageTokens * 2);
  EXPECT_EQ(layout.page_bytes(), 3 * layout.layer_page_bytes());
  MemoryBudget budget(Tier::kHost, 1 << 20);
  auto arena = KvArena::Create(layout, 4, &budget);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(budget.used_bytes(),
            4 * layout.page_bytes() + KvArena::kSlackBytes);
  const size_t block = layout.block_elements() * layout.element_bytes();
  std::set<std::byte*> starts;
  for (int layer = 0; layer < 3; ++layer) {
    for (int page = 0; page < 4; ++page) {
      for (int head = 0; head < 2; ++head) {
        auto* k = static_cast<std::byte*>((*arena)->K(layer, page, head));
        starts.insert(k);
        starts.insert(k + block);
      }
    }
  }
  ASSERT_EQ(starts.size(), 48u);
  std::byte* previous = nullptr;
  for (std::byte* start : starts) {
    if (previous != nullptr) {
      EXPECT_EQ(start, previous + block);
    }
    previous = start;
  }
}

TEST(KvArenaTest, BudgetTooSmall) {
  MemoryBudget budget(Tier::kHost, 100);
  auto arena = KvArena::Create({1, 1, 8, DType::kFloat32}, 1, &budget);
  EXPECT_TRUE(absl::IsResourceExhausted(arena.status())) << arena.status();
  EXPECT_EQ(budget.used_bytes(), 0u);
}

}  // namespace
}  // namespace sluice
