#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "runtime/kernels/cpu/attention.h"
#include "tests/unit/kernels/attention_cache.h"
#include "tests/unit/kernels/targets.h"

namespace sluice {
namespace {

using Rows = AttentionCache::Rows;

TEST(SparseCountTest, RoundsUpButNotThroughRounding) {
  EXPECT_EQ(SparseCount(0.1f, 1), 1);
  EXPECT_EQ(SparseCount(0.1f, 10), 1);
  EXPECT_EQ(SparseCount(0.1f, 11), 2);
  EXPECT_EQ(SparseCount(0.1f, 30), 3);
  EXPECT_EQ(SparseCount(0.1f, 4096), 410);
  EXPECT_EQ(SparseCount(1e-9f, 4096), 1);
  EXPECT_EQ(SparseCount(0.999f, 3), 3);
  EXPECT_EQ(SparseCount(1.0f, 77), 77);
}

class SparseAttentionTest : public testing::TestWithParam<KvFormat> {};

// Positions that stay, by sorting.
std::vector<int> Largest(const std::vector<double>& scores, int begin,
                         int count) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(count);
  for (int& j : order) j += begin;
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int> Positions(const std::vector<uint32_t>& masks) {
  std::vector<int> positions;
  for (size_t p = 0; p < masks.size(); ++p) {
    for (int j = 0; j < kPageTokens; ++j) {
      if (masks[p] >> j & 1) positions.push_back(p * kPageTokens + j);
    }
  }
  return positions;
}

TEST_P(SparseAttentionTest, MatchesSorting) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    for (const int head_dim : {1, 10, 16, 40, 63, 64, 80, 96, 128}) {
      AttentionCache cache(GetParam(), head_dim, 131);
      for (const float sparsity : {0.001f, 0.1f, 0.37f, 0.9f, 0.999f}) {
        for (const int begin : {0, 45}) {
          Rows rows;
          for (int r = 0; r < 11; ++r) rows.Add(r, begin, 130);
          const auto out = cache.Attend(rows, sparsity);
          for (int r = 0; r < 11; ++r) {
            // The masks tell which positions it kept, from K alone.
            std::vector<uint32_t> masks;
            cache.Attend(rows.Part(r, r + 1), sparsity, nullptr, &masks);
            const std::vector<int> kept = Positions(masks);
            const auto scores = cache.Scores(r, begin, 130);
            const int count = SparseCount(sparsity, 130 - begin);
            ASSERT_EQ(kept.size(), static_cast<size_t>(count));
            // These positions are the right ones, but for scores that rounding
            // may exchange.
            double worst = 1e300;
            std::set<int> chosen(kept.begin(), kept.end());
            for (const int j : kept) {
              worst = std::min(worst, scores[j - begin]);
            }
            for (const int j : Largest(scores, begin, count)) {
              if (chosen.contains(j)) continue;
              ASSERT_NEAR(scores[j - begin], worst, 1e-4);
            }
            const auto want = cache.Reference(r, kept);
            for (int i = 0; i < head_dim; ++i) {
              ASSERT_NEAR(out[r][i], want[i], cache.Tolerance())
                  << "head_dim " << head_dim << " row " << r << " element "
                  << i;
            }
          }
        }
      }
    }
  });
}

// The first of positions with equal scores stay: K repeats itself exactly.
TEST_P(SparseAttentionTest, TiesGoToTheFirst) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    constexpr int kLength = 70;
    AttentionCache cache(GetParam(), 16, kLength);
    const std::vector<float> q = cache.Query(0);
    for (int j = 0; j < kLength; ++j) {
      // Three kinds of position; the third is best, the first worst.
      std::vector<float> k = q;
      for (float& x : k) x *= static_cast<float>(j % 3);
      cache.Store(j, k, std::vector<float>(16, static_cast<float>(j)));
    }
    Rows rows;
    rows.Add(0, 5, kLength);
    for (const int count : {1, 4, 21, 22, 30, 44, 60}) {
      const float sparsity = (count - 0.5f) / (kLength - 5);
      ASSERT_EQ(SparseCount(sparsity, kLength - 5), count);
      std::vector<uint32_t> masks;
      cache.Attend(rows, sparsity, nullptr, &masks);
      std::vector<double> kinds;
      for (int j = 5; j < kLength; ++j) kinds.push_back(j % 3);
      EXPECT_EQ(Positions(masks), Largest(kinds, 5, count)) << count;
    }
  });
}

TEST_P(SparseAttentionTest, RowsDoNotDependOnEachOther) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    for (const int head_dim : {20, 64, 80}) {
      AttentionCache cache(GetParam(), head_dim, 150);
      Rows rows;
      for (int r = 0; r < 32; ++r) rows.Add(r, 7, 149);
      const auto together = cache.Attend(rows, 0.2f);
      for (int first = 0; first < 32; first += 3) {
        for (const int n : {1, 2, 5, 8, 11}) {
          const auto some = cache.Attend(rows.Part(first, first + n), 0.2f);
          for (size_t r = 0; r < some.size(); ++r) {
            ASSERT_EQ(some[r], together[first + r]);
          }
        }
      }
    }
  });
}

// A row counts once, however many heads keep it; and the masks say which.
TEST_P(SparseAttentionTest, ReadsOnlyWhatItSays) {
  AttentionCache cache(GetParam(), 64, 1000);
  Rows rows;
  for (int r = 0; r < 8; ++r) rows.Add(r, 100, 1000);
  std::vector<uint32_t> masks;
  cache.Attend(rows, 0.1f, nullptr, &masks);
  uint64_t kept = 0;
  for (const uint32_t mask : masks) kept += std::popcount(mask);
  EXPECT_GE(kept, 90u);
  EXPECT_LE(kept, 8u * 90);
  EXPECT_GE(Positions(masks).front(), 100);
  uint64_t bytes = 0;
  cache.Attend(rows, 0.1f, &bytes);
  EXPECT_EQ(bytes, kept * cache.layout().v_position_bytes());

  // Positions that it does not read do not matter.
  const auto before = cache.Attend(rows, 0.1f);
  std::vector<int> read = Positions(masks);
  const std::set<int> chosen(read.begin(), read.end());
  ASSERT_GT(1000u, chosen.size());
  for (int j = 0; j < 1000; ++j) {
    if (!chosen.contains(j)) cache.StoreV(j, std::vector<float>(64, 1e30f));
  }
  EXPECT_EQ(cache.Attend(rows, 0.1f), before);
}

TEST_P(SparseAttentionTest, AllOfThemIsAlmostDense) {
  AttentionCache cache(GetParam(), 64, 77);
  Rows rows;
  for (int r = 0; r < 9; ++r) rows.Add(r, 0, 77);
  // The count is rounded up, so that all are kept.
  const auto sparse = cache.Attend(rows, 0.9999f);
  const auto dense = cache.Attend(rows, 1.0f);
  for (int r = 0; r < 9; ++r) {
    for (int i = 0; i < 64; ++i) {
      EXPECT_NEAR(sparse[r][i], dense[r][i], cache.Tolerance());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, SparseAttentionTest,
    testing::Values(KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16,
                    KvFormat::kInt8, KvFormat::kInt4),
    [](const auto& i) { return std::string(KvFormatName(i.param)); });

}  // namespace
}  // namespace sluice
