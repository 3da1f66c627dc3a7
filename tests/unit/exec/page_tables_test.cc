#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "runtime/kv/kv_arena.h"
#include "runtime/kv/page_pool.h"
#include "runtime/kv/sequence_pages.h"
#include "tests/unit/memory/pinning_device.h"

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

// The tables of a stage whose layers keep all positions.
PageTables Tables(const TierPages& pages, int32_t longest) {
  return {{pages, {}}, longest, 0};
}

const std::vector<int32_t>& Pages(const SequencePages& table) {
  return table.groups[KvGroup::kAll].pages;
}

TierPages Host(int64_t pages) { return {0, pages, 0}; }

TEST(PagePoolTest, PrefersConsecutivePages) {
  PagePool pool(12);
  std::vector<int32_t> a, b, c, d;
  ASSERT_TRUE(pool.Take(3, &a).ok());
  ASSERT_TRUE(pool.Take(3, &b).ok());
  ASSERT_TRUE(pool.Take(2, &c).ok());
  pool.GiveBack(b);  // free: 3 to 5 and 8 to 11
  ASSERT_TRUE(pool.Take(4, &d).ok());
  EXPECT_EQ(d, (std::vector<int32_t>{8, 9, 10, 11}));
  pool.GiveBack(c);  // free: 3 to 7
  std::vector<int32_t> e;
  ASSERT_TRUE(pool.Take(5, &e).ok());
  EXPECT_EQ(e, (std::vector<int32_t>{3, 4, 5, 6, 7}));
  pool.GiveBack(a);
  pool.GiveBack(std::vector<int32_t>{4, 6});
  std::vector<int32_t> f;
  ASSERT_TRUE(pool.Take(5, &f).ok());
  EXPECT_EQ(f, (std::vector<int32_t>{0, 1, 2, 4, 6}));
  EXPECT_EQ(pool.num_free(), 0);
}

TierPages Disk(int64_t pages) { return {0, 0, pages}; }

TEST(PageTablesTest, TakesPagesByNeedInOneTier) {
  PageTables tables = Tables(Host(8), 100);
  EXPECT_TRUE(tables.by_need());
  EXPECT_EQ(tables.num_pages(KvGroup::kAll), 8);
  ASSERT_TRUE(tables.Admit(SequenceId(1), 3 * kPageTokens).ok());
  ASSERT_TRUE(tables.Admit(SequenceId(2), 8 * kPageTokens).ok());
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 0);
  SequencePages* one = tables.Find(SequenceId(1));
  ASSERT_TRUE(tables.Grow(one, 1).ok());
  EXPECT_EQ(Pages(*one).size(), 1u);
  const int32_t* at = Pages(*one).data();
  ASSERT_TRUE(tables.Grow(one, kPageTokens).ok());
  EXPECT_EQ(Pages(*one).size(), 1u);
  ASSERT_TRUE(tables.Grow(one, 3 * kPageTokens).ok());
  EXPECT_EQ(Pages(*one).size(), 3u);
  ASSERT_TRUE(tables.Grow(one, 5).ok());
  EXPECT_EQ(Pages(*one).size(), 3u) << "never shrinks";
  EXPECT_EQ(Pages(*one).data(), at) << "never moves";
  // The other sequence finds what is left, and no more.
  SequencePages* two = tables.Find(SequenceId(2));
  ASSERT_TRUE(tables.Grow(two, 5 * kPageTokens).ok());
  const absl::Status full = tables.Grow(two, 5 * kPageTokens + 1);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(Pages(*two).size(), 5u);
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 8);
  std::set<int32_t> all(Pages(*one).begin(), Pages(*one).end());
  all.insert(Pages(*two).begin(), Pages(*two).end());
  EXPECT_EQ(all.size(), 8u);
  ASSERT_TRUE(tables.Release(SequenceId(1)).ok());
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 5);
  ASSERT_TRUE(tables.Grow(tables.Find(SequenceId(2)), 8 * kPageTokens).ok());
  // The sequence wants more pages than there ever are.
  const absl::Status long_one = tables.Admit(SequenceId(3), 8 * 32 + 1);
  EXPECT_TRUE(absl::IsResourceExhausted(long_one)) << long_one;
  EXPECT_EQ(tables.Find(SequenceId(3)), nullptr);
  tables.Clear();
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 0);
}

TEST(PageTablesTest, OnlyOneTierOfMemoryGivesByNeed) {
  EXPECT_TRUE(Tables({8, 0, 0}, 100).by_need());
  EXPECT_TRUE(Tables({0, 8, 0}, 100).by_need());
  EXPECT_FALSE(Tables({0, 0, 8}, 100).by_need());
  EXPECT_FALSE(Tables({8, 8, 0}, 100).by_need());
  EXPECT_FALSE(Tables({0, 8, 8}, 100).by_need());
}

// Pages that are read together lie together on disk, however sequences take
// turns.
TEST(PageTablesTest, OnDiskPagesFollowEachOther) {
  PageTables tables = Tables(Disk(8), 4 * kPageTokens);
  EXPECT_EQ(tables.num_pages(KvGroup::kAll), 8);
  ASSERT_TRUE(tables.Admit(SequenceId(1), 4 * kPageTokens).ok());
  ASSERT_TRUE(tables.Admit(SequenceId(2), 4 * kPageTokens).ok());
  for (int32_t n = 1; n <= 4 * kPageTokens; ++n) {
    ASSERT_TRUE(tables.Grow(tables.Find(SequenceId(1)), n).ok());
    ASSERT_TRUE(tables.Grow(tables.Find(SequenceId(2)), n).ok());
  }
  EXPECT_EQ(Pages(*tables.Find(SequenceId(1))),
            (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Pages(*tables.Find(SequenceId(2))),
            (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_TRUE(absl::IsResourceExhausted(tables.Admit(SequenceId(3), 1)));
}

TEST(PageTablesTest, ReservesWholePages) {
  PageTables tables = Tables(Disk(8), 100);
  ASSERT_TRUE(tables.Admit(SequenceId(1), 1).ok());
  ASSERT_TRUE(tables.Admit(SequenceId(2), kPageTokens).ok());
  ASSERT_TRUE(tables.Admit(SequenceId(3), kPageTokens + 1).ok());
  EXPECT_EQ(Pages(*tables.Find(SequenceId(1))).size(), 1u);
  EXPECT_EQ(Pages(*tables.Find(SequenceId(2))).size(), 1u);
  EXPECT_EQ(Pages(*tables.Find(SequenceId(3))).size(), 2u);
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 4);
  EXPECT_EQ(tables.Find(SequenceId(4)), nullptr);
  ASSERT_TRUE(tables.Release(SequenceId(3)).ok());
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 2);
  EXPECT_EQ(tables.Find(SequenceId(3)), nullptr);
  tables.Clear();
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 0);
  EXPECT_EQ(tables.size(), 0u);
}

TEST(PageTablesTest, Errors) {
  PageTables tables = Tables(Disk(2), 100);
  ASSERT_TRUE(tables.Admit(SequenceId(1), 5).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(tables.Admit(SequenceId(1), 5)));
  EXPECT_TRUE(absl::IsInvalidArgument(tables.Release(SequenceId(2))));
  const absl::Status full = tables.Admit(SequenceId(2), 2 * kPageTokens);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(tables.Find(SequenceId(2)), nullptr);
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 1);
}

TEST(PageTablesTest, TiersFillEvenly) {
  // A quarter of the pages is on the device, half on the host, a quarter on
  // disk.
  PageTables tables = Tables({10, 20, 10}, 3 * kPageTokens);
  // Two pages may be left over in each tier but one.
  EXPECT_EQ(tables.num_pages(KvGroup::kAll), 36);
  int counts[3] = {};
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(tables.Admit(SequenceId(i), 3 * kPageTokens).ok()) << i;
    ++counts[static_cast<size_t>(
        tables.Find(SequenceId(i))->groups[KvGroup::kAll].tier)];
  }
  EXPECT_EQ(counts[0], 3);
  EXPECT_EQ(counts[1], 6);
  EXPECT_EQ(counts[2], 3);
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 36);
}

// The pages that num_pages(KvGroup::kAll) promises are there, whatever the
// sizes and the order.
TEST(PageTablesTest, PromisedPagesAreFound) {
  std::mt19937 random(5);
  PageTables tables = Tables({7, 11, 9}, 4 * kPageTokens);
  std::vector<int64_t> live;
  int64_t next = 0;
  for (int i = 0; i < 20000; ++i) {
    const int32_t pages = 1 + static_cast<int32_t>(random() % 4);
    if (tables.num_used(KvGroup::kAll) + pages <=
        tables.num_pages(KvGroup::kAll)) {
      ASSERT_TRUE(tables.Admit(SequenceId(next), pages * kPageTokens).ok());
      live.push_back(next++);
    } else {
      const size_t victim = random() % live.size();
      ASSERT_TRUE(tables.Release(SequenceId(live[victim])).ok());
      live.erase(live.begin() + static_cast<int64_t>(victim));
    }
    // Growing takes nothing more.
    if (live.empty()) continue;
    SequencePages* table =
        tables.Find(SequenceId(live[random() % live.size()]));
    const int64_t used = tables.num_used(KvGroup::kAll);
    ASSERT_TRUE(tables.Grow(table, table->capacity).ok());
    ASSERT_EQ(tables.num_used(KvGroup::kAll), used);
  }
}

// The promise holds by need, too: as long as the positions grown to need no
// more in all.
TEST(PageTablesTest, PromisedPagesAreFoundByNeed) {
  std::mt19937 random(6);
  PageTables tables = Tables(Host(23), 9 * kPageTokens);
  struct Live {
    int64_t id;
    int32_t positions;
  };
  const auto pages = [](int32_t positions) {
    return (positions + kPageTokens - 1) / kPageTokens;
  };
  std::vector<Live> live;
  int64_t next = 0, used = 0;
  for (int i = 0; i < 20000; ++i) {
    if (live.empty() || random() % 20 == 0) {
      ASSERT_TRUE(tables.Admit(SequenceId(next), 9 * kPageTokens).ok());
      live.push_back({next++, 0});
    }
    const size_t chosen = random() % live.size();
    Live& one = live[chosen];
    const int32_t to = std::min<int32_t>(
        9 * kPageTokens,
        one.positions + 1 + static_cast<int32_t>(random() % 40));
    if (used + pages(to) - pages(one.positions) <=
        tables.num_pages(KvGroup::kAll)) {
      ASSERT_TRUE(tables.Grow(tables.Find(SequenceId(one.id)), to).ok());
      used += pages(to) - pages(one.positions);
      one.positions = to;
    } else {
      ASSERT_TRUE(tables.Release(SequenceId(one.id)).ok());
      used -= pages(one.positions);
      live.erase(live.begin() + static_cast<int64_t>(chosen));
    }
    ASSERT_EQ(tables.num_used(KvGroup::kAll), used);
  }
}

// In a window a sequence takes a few pages, again and again.
TEST(PageTablesTest, AWindowTakesItsPagesInTurns) {
  for (const bool by_need : {true, false}) {
    const TierPages all = by_need ? Host(20) : Disk(20);
    const TierPages few = by_need ? Host(6) : Disk(6);
    PageTables tables({all, few}, 10 * kPageTokens, 3);
    EXPECT_EQ(tables.by_need(), by_need);
    EXPECT_EQ(tables.window_pages(), 3);
    EXPECT_EQ(tables.num_pages(KvGroup::kWindow), 6);
    ASSERT_TRUE(tables.Admit(SequenceId(1), 10 * kPageTokens).ok());
    ASSERT_TRUE(tables.Admit(SequenceId(2), 2 * kPageTokens).ok());
    EXPECT_EQ(tables.num_used(KvGroup::kWindow), by_need ? 0 : 5);
    SequencePages* const table = tables.Find(SequenceId(1));
    const std::vector<int32_t>& pages = table->groups[KvGroup::kWindow].pages;
    for (int32_t n = 1; n <= 10 * kPageTokens; ++n) {
      ASSERT_TRUE(tables.Grow(table, n).ok());
      ASSERT_GE(std::ssize(pages), PagesOf(n));
      ASSERT_EQ(std::set<int32_t>(pages.begin(), pages.end()).size(),
                by_need ? std::min<size_t>(3, PagesOf(n)) : 3u);
    }
    ASSERT_EQ(pages.size(), 10u);
    for (size_t page = 3; page < pages.size(); ++page) {
      EXPECT_EQ(pages[page], pages[page - 3]);
    }
    EXPECT_EQ(table->groups[KvGroup::kAll].pages.size(), 10u);
    ASSERT_TRUE(tables.Grow(tables.Find(SequenceId(2)), 2 * kPageTokens).ok());
    EXPECT_EQ(tables.num_used(KvGroup::kWindow), 5);
    EXPECT_EQ(tables.num_used(KvGroup::kAll), 12);
    ASSERT_TRUE(tables.Release(SequenceId(1)).ok());
    EXPECT_EQ(tables.num_used(KvGroup::kWindow), 2);
    EXPECT_EQ(tables.num_used(KvGroup::kAll), 2);
    tables.Clear();
    EXPECT_EQ(tables.num_used(KvGroup::kWindow), 0);
  }
}

// Where one group has no page left, the other keeps none either.
TEST(PageTablesTest, BothGroupsGiveOrNone) {
  PageTables by_need({Host(20), Host(3)}, 10 * kPageTokens, 3);
  ASSERT_TRUE(by_need.Admit(SequenceId(1), 5 * kPageTokens).ok());
  ASSERT_TRUE(by_need.Admit(SequenceId(2), 5 * kPageTokens).ok());
  ASSERT_TRUE(by_need.Grow(by_need.Find(SequenceId(1)), 2 * kPageTokens).ok());
  SequencePages* const table = by_need.Find(SequenceId(2));
  EXPECT_TRUE(absl::IsResourceExhausted(by_need.Grow(table, 2 * kPageTokens)));
  EXPECT_TRUE(Pages(*table).empty());
  EXPECT_EQ(by_need.num_used(KvGroup::kAll), 2);
  PageTables reserved({Disk(20), Disk(4)}, 10 * kPageTokens, 3);
  ASSERT_TRUE(reserved.Admit(SequenceId(1), 5 * kPageTokens).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      reserved.Admit(SequenceId(2), 5 * kPageTokens)));
  EXPECT_EQ(reserved.num_used(KvGroup::kAll), 5);
  EXPECT_EQ(reserved.num_used(KvGroup::kWindow), 3);
}

// What is written before it is attended, and what its first row sees, lies in a
// window's pages, wherever it begins; and it gets on by a quarter of the
// window.
TEST(KvGroupsTest, NothingIsWrittenWhereARowStillLooks) {
  for (int32_t window = 1; window < 400; ++window) {
    const KvGroups groups = {.window = window};
    for (int32_t start = 0; start < 512; ++start) {
      const int32_t tokens = groups.Together(KvGroup::kWindow, start, 5000);
      const int32_t first = groups.FirstPage(KvGroup::kWindow, start);
      ASSERT_LE(first * kPageTokens, std::max(0, start - window + 1));
      ASSERT_LE(PagesOf(start + tokens) - first, groups.window_pages());
      ASSERT_GE(tokens, std::max(kPageTokens, window / 4));
      ASSERT_EQ(groups.Together(KvGroup::kWindow, start, 7), 7);
      ASSERT_EQ(groups.Together(KvGroup::kAll, start, 5000), 5000);
    }
  }
  EXPECT_EQ(KvGroups::PagesOfWindow(512), 21);
  EXPECT_EQ(KvGroups::PagesOfWindow(4096), 161);
  EXPECT_EQ(KvGroups::PagesOfWindow(32768), 1057);
}

TEST(KvArenaTest, LayersFollowEachOther) {
  const KvLayout layout{3, 2, 5, KvFormat::kBFloat16};
  MemoryBudget budget(Tier::kHost, 1 << 20);
  auto arena = KvArena::Create(layout, 4, &budget);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(budget.used_bytes(),
            4 * layout.page_bytes() + KvLayout::kSlackBytes);
  const size_t layer_bytes = 4 * layout.layer_page_bytes();
  std::byte* base = (*arena)->LayerBase(0);
  EXPECT_EQ((*arena)->LayerBase(1), base + layer_bytes);
  EXPECT_EQ((*arena)->LayerBase(2), base + 2 * layer_bytes);
  // The whole arena may be written.
  std::memset(base, 1, 3 * layer_bytes + KvLayout::kSlackBytes);
}

TEST(KvArenaTest, TakesMemoryAsItIsNeededAndGivesItBack) {
  const KvLayout layout{2, 8, 128, KvFormat::kBFloat16};
  constexpr int64_t kPages = 1000;
  const size_t layer_bytes = kPages * layout.layer_page_bytes();
  MemoryBudget budget(Tier::kHost, uint64_t{1} << 30);
  auto arena = KvArena::Create(layout, kPages, &budget);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const auto backed = [&] {
    return BackedPages((*arena)->LayerBase(0), 2 * layer_bytes);
  };
  EXPECT_EQ(backed(), 0u);
  for (int layer = 0; layer < 2; ++layer) {
    std::memset((*arena)->LayerBase(layer), 1, 3 * layout.layer_page_bytes());
  }
  EXPECT_GT(backed(), 0u);
  EXPECT_LE(backed(), 4u * 512);  // of each layer, two huge pages at most
  EXPECT_EQ((*arena)->BytesOf(3), 3 * layout.page_bytes());
  (*arena)->Trim();
  EXPECT_EQ(backed(), 0u);
  EXPECT_EQ(*(*arena)->LayerBase(1), std::byte{0});
}

TEST(KvArenaTest, IsBackedByManyThreadsBeforeItIsPinned) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core";
  const KvLayout layout{2, 8, 128, KvFormat::kBFloat16};
  MemoryBudget budget(Tier::kHost, uint64_t{1} << 30);
  PinningDevice device;
  auto arena = KvArena::Create(layout, 700, &budget, &device);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_GE(device.backed, 700 * layout.page_bytes());
  (*arena)->Trim();  // which is for those that are not pinned
  EXPECT_EQ(BackedPages((*arena)->LayerBase(0), layout.page_bytes()),
            layout.page_bytes() / 4096);
}

TEST(PageTablesTest, KnowsWhichPagesNobodyTouched) {
  PageTables tables = Tables({0, 100, 0}, 64);
  const auto touched = [&] {
    return tables.pool(KvGroup::kAll, Tier::kHost).touched();
  };
  EXPECT_EQ(touched(), 0);
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(tables.Admit(SequenceId(i), 64).ok());
    ASSERT_TRUE(tables.Grow(tables.Find(SequenceId(i)), 64).ok());
  }
  EXPECT_EQ(touched(), 6);
  // Pages that are given back are taken again before any new ones are.
  ASSERT_TRUE(tables.Release(SequenceId(1)).ok());
  ASSERT_TRUE(tables.Admit(SequenceId(4), 64).ok());
  ASSERT_TRUE(tables.Grow(tables.Find(SequenceId(4)), 64).ok());
  EXPECT_EQ(touched(), 6);
  tables.Clear();
  EXPECT_EQ(touched(), 0);
}

TEST(KvArenaTest, BudgetTooSmall) {
  MemoryBudget budget(Tier::kHost, 100);
  auto arena = KvArena::Create({1, 1, 8, KvFormat::kFloat32}, 1, &budget);
  EXPECT_TRUE(absl::IsResourceExhausted(arena.status())) << arena.status();
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST(KvArenaTest, SizeBeyondAllMemory) {
  MemoryBudget budget(Tier::kHost, 100);
  for (const int64_t num_pages : {int64_t{1} << 60, int64_t{-1}}) {
    auto arena =
        KvArena::Create({1, 1, 64, KvFormat::kInt4}, num_pages, &budget);
    EXPECT_TRUE(absl::IsResourceExhausted(arena.status())) << arena.status();
  }
}

}  // namespace
}  // namespace sluice
