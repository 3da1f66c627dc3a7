#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/kv/page_pool.h"
#include "runtime/kv/sequence_pages.h"

// Pages that several sequences own.

namespace sluice {
namespace {

using ::testing::HasSubstr;

PageTables TablesOf(const TierPages& pages) { return {{pages, {}}, 1024, 0}; }
TierPages InHost(int64_t pages) { return {0, pages, 0}; }

const std::vector<int32_t>& PagesIn(PageTables& tables, int64_t id) {
  return tables.Find(SequenceId(id))->groups[KvGroup::kAll].pages;
}

void Compute(PageTables& tables, int64_t id, int32_t positions) {
  SequencePages* const table = tables.Find(SequenceId(id));
  ASSERT_TRUE(tables.Grow(table, positions).ok());
  table->length = positions;
}

TEST(SharedPagesTest, APageIsFreeWhenItsLastOwnerGoes) {
  PagePool pool(10);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.Take(6, &pages).ok());
  pool.Share(std::vector<int32_t>{1, 2, 4});
  pool.Share(std::vector<int32_t>{2});
  EXPECT_TRUE(pool.shared(1) && pool.shared(2) && !pool.shared(3));
  pool.GiveBack(pages);
  EXPECT_EQ(pool.num_used(), 3);
  EXPECT_FALSE(pool.shared(1));
  EXPECT_TRUE(pool.shared(2));
  pool.GiveBack(std::vector<int32_t>{1, 2, 4});
  EXPECT_EQ(pool.num_used(), 1);
  pool.GiveBack(std::vector<int32_t>{2});
  EXPECT_EQ(pool.num_used(), 0);
  std::vector<int32_t> all;
  ASSERT_TRUE(pool.Take(10, &all).ok());
  EXPECT_EQ(all, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

// Random owners, against a count of each page.
TEST(SharedPagesTest, CountsAreExact) {
  std::mt19937 random(7);
  PagePool pool(64);
  std::map<int32_t, int> owners;
  std::vector<std::vector<int32_t>> held;
  for (int turn = 0; turn < 20000; ++turn) {
    if (random() % 2 == 0) {
      std::vector<int32_t> pages;
      if (!held.empty() && random() % 2 == 0) {
        pages = held[random() % held.size()];
        pages.resize(random() % (pages.size() + 1));
        pool.Share(pages);
      }
      if (!pool.Take(random() % 8, &pages).ok()) {
        pool.GiveBack(pages);
        continue;
      }
      for (const int32_t page : pages) ++owners[page];
      held.push_back(pages);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      pool.GiveBack(held.back());
      for (const int32_t page : held.back()) {
        if (--owners[page] == 0) owners.erase(page);
      }
      held.pop_back();
    }
    ASSERT_EQ(pool.num_used(), static_cast<int64_t>(owners.size()));
    for (const auto& [page, count] : owners) {
      ASSERT_EQ(pool.shared(page), count > 1) << page;
    }
  }
}

TEST(SharedPagesTest, APrefixOutlivesItsSource) {
  PageTables tables = TablesOf(InHost(10));
  ASSERT_TRUE(tables.can_share());
  ASSERT_TRUE(tables.Admit(SequenceId(1), 128).ok());
  Compute(tables, 1, 70);
  ASSERT_TRUE(tables.Keep(SequenceId(-1), {SequenceId(1), 64}).ok());
  EXPECT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables.kept(), 1);
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 3);
  ASSERT_TRUE(tables.Release(SequenceId(1)).ok());
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 2);
  ASSERT_TRUE(tables.Admit(SequenceId(2), 96, {SequenceId(-1), 64}).ok());
  EXPECT_EQ(tables.Find(SequenceId(2))->length, 64);
  EXPECT_EQ(PagesIn(tables, 2), PagesIn(tables, -1));
  Compute(tables, 2, 65);
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 3);
  // A shorter one of the prefix.
  ASSERT_TRUE(tables.Keep(SequenceId(-2), {SequenceId(-1), 32}).ok());
  ASSERT_TRUE(tables.Release(SequenceId(-1)).ok());
  ASSERT_TRUE(tables.Release(SequenceId(2)).ok());
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 1);
  ASSERT_TRUE(tables.Release(SequenceId(-2)).ok());
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 0);
  EXPECT_EQ(tables.kept(), 0);
}

TEST(SharedPagesTest, OnDiskTheRestIsReserved) {
  PageTables tables = TablesOf({0, 0, 10});
  ASSERT_TRUE(tables.can_share());
  ASSERT_TRUE(tables.Admit(SequenceId(1), 128).ok());
  Compute(tables, 1, 64);
  ASSERT_TRUE(tables.Admit(SequenceId(2), 256, {SequenceId(1), 64}).ok());
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 10);
  EXPECT_EQ(PagesIn(tables, 2).size(), 8u);
  EXPECT_TRUE(absl::IsResourceExhausted(
      tables.Admit(SequenceId(3), 96, {SequenceId(1), 64})));
  EXPECT_EQ(tables.num_used(KvGroup::kAll), 10);
}

TEST(SharedPagesTest, WhatCannotBeSharedIsRefused) {
  PageTables tables = TablesOf(InHost(10));
  ASSERT_TRUE(tables.Admit(SequenceId(1), 128).ok());
  Compute(tables, 1, 70);
  const auto refused = [&](int64_t source, int32_t positions, int32_t max,
                           const char* why) {
    const absl::Status status =
        tables.Admit(SequenceId(2), max, {SequenceId(source), positions});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(tables.num_used(KvGroup::kAll), 3);
  };
  refused(7, 32, 128, "of sequence 7");
  refused(1, 33, 128, "whole pages of 32");
  refused(1, 96, 128, "70 are computed");
  refused(1, -32, 128, "whole pages");
  refused(1, 64, 64, "none is left to be computed");
  EXPECT_TRUE(
      absl::IsInvalidArgument(tables.Keep(SequenceId(1), {SequenceId(1), 32})));
  EXPECT_TRUE(absl::IsInvalidArgument(
      tables.Keep(SequenceId(-1), {SequenceId(1), 40})));
  // A page that others own is never written to: not even if lengths say so.
  ASSERT_TRUE(tables.Keep(SequenceId(-1), {SequenceId(1), 64}).ok());
  tables.Find(SequenceId(1))->length = 40;
  EXPECT_EQ(tables.Grow(tables.Find(SequenceId(1)), 80).code(),
            absl::StatusCode::kInternal);
  // Several tiers, and windows.
  PageTables tiers = TablesOf({10, 10, 0});
  EXPECT_FALSE(tiers.can_share());
  ASSERT_TRUE(tiers.Admit(SequenceId(1), 64).ok());
  tiers.Find(SequenceId(1))->length = 64;
  EXPECT_TRUE(
      absl::IsInvalidArgument(tiers.Keep(SequenceId(-1), {SequenceId(1), 32})));
  const PageTables windows({InHost(10), InHost(10)}, 1024, 4);
  EXPECT_FALSE(windows.can_share());
}

}  // namespace
}  // namespace sluice
