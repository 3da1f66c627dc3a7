#include "runtime/kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/kernels/attention_cache.h"
#include "tests/unit/kernels/targets.h"

namespace sluice {
namespace {

using Rows = AttentionCache::Rows;

class AttentionTest : public testing::TestWithParam<KvFormat> {
 protected:
  void ExpectReference(AttentionCache& cache, const Rows& rows) {
    const auto out = cache.Attend(rows);
    for (size_t r = 0; r < out.size(); ++r) {
      const auto want =
          cache.Reference(rows.ids[r], rows.begin[r], rows.end[r]);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(out[r][i], want[i], cache.Tolerance())
            << "head_dim " << want.size() << " row " << r << " of "
            << out.size() << " element " << i;
      }
    }
  }
};

TEST_P(AttentionTest, MatchesTheDefinition) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    for (const int head_dim :
         {1, 5, 10, 15, 16, 20, 32, 40, 63, 64, 66, 80, 96, 100, 128, 160}) {
      AttentionCache cache(GetParam(), head_dim, 131);
      for (const int rows : {1, 2, 3, 4, 7, 8, 9, 32}) {
        Rows all;
        for (int r = 0; r < rows; ++r) all.Add(r, 0, 131 - rows + 1 + r);
        ASSERT_NO_FATAL_FAILURE(ExpectReference(cache, all));
      }
    }
  });
}

TEST_P(AttentionTest, ScoresWithCapsOrDistances) {
  ForEachTarget([&](const char* target) {
    for (const int kind : {0, 1, 2}) {
      SCOPED_TRACE(target);
      AttentionCache cache(GetParam(), 40, 131);
      if (kind == 0) cache.CapScores(0.7F);
      if (kind == 1) cache.AddDistances(0.02F);
      if (kind == 2) cache.AddRoundedDistances(0.71F, 0.1F);
      for (const int rows : {1, 2, 9}) {
        Rows all;
        for (int r = 0; r < rows; ++r) all.Add(r, 3, 131 - rows + 1 + r);
        ASSERT_NO_FATAL_FAILURE(ExpectReference(cache, all));
      }
      // Sparse attention keeps all here, and caps, too.
      Rows one;
      one.Add(0, 0, 131);
      const auto sparse = cache.Attend(one, 0.999F);
      const auto want = cache.Reference(0, 0, 131);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(sparse[0][i], want[i], cache.Tolerance()) << i;
      }
    }
  });
}

// A sink takes a part of each row's weights, be it small, large, or all.
TEST_P(AttentionTest, SinksJoinTheSoftmax) {
  ForEachTarget([&](const char* target) {
    for (const float sink : {-200.0F, -3.0F, 0.5F, 6.0F, 200.0F}) {
      SCOPED_TRACE(testing::Message() << target << ", sink " << sink);
      AttentionCache cache(GetParam(), 40, 131);
      cache.AddSink(sink);
      for (const int rows : {1, 2, 9}) {
        Rows all, windows;
        for (int r = 0; r < rows; ++r) {
          all.Add(r, 0, 131 - rows + 1 + r);
          windows.Add(r, 60 + r, 100 + r);
        }
        ASSERT_NO_FATAL_FAILURE(ExpectReference(cache, all));
        ASSERT_NO_FATAL_FAILURE(ExpectReference(cache, windows));
      }
      Rows one;
      one.Add(0, 0, 131);
      const auto sparse = cache.Attend(one, 0.999F);
      const auto want = cache.Reference(0, 0, 131);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(sparse[0][i], want[i], cache.Tolerance()) << i;
      }
    }
  });
}

// One that is minus infinity is none, and one that is no number shows.
TEST_P(AttentionTest, SinksThatAreNoNumbers) {
  Rows rows;
  for (int r = 0; r < 3; ++r) rows.Add(r, 0, 70);
  AttentionCache cache(GetParam(), 16, 70);
  const auto without = cache.Attend(rows);
  const auto sparse = cache.Attend(rows, 0.5F);
  cache.AddSink(-std::numeric_limits<float>::infinity());
  EXPECT_EQ(cache.Attend(rows), without);
  EXPECT_EQ(cache.Attend(rows, 0.5F), sparse);
  cache.AddSink(std::nanf(""));
  EXPECT_TRUE(std::isnan(cache.Attend(rows)[1][3]));
  EXPECT_TRUE(std::isnan(cache.Attend(rows, 0.5F)[1][3]));
}

TEST_P(AttentionTest, ContextsOfAnyLength) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    for (const int length : {1, 2, 15, 16, 17, 31, 32, 33, 64, 100}) {
      AttentionCache cache(GetParam(), 48, length);
      Rows rows;
      for (int r = 0; r < 5; ++r) rows.Add(r, 0, length);
      ASSERT_NO_FATAL_FAILURE(ExpectReference(cache, rows));
    }
  });
}

TEST_P(AttentionTest, Windows) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    AttentionCache cache(GetParam(), 20, 200);
    for (const int window : {1, 2, 31, 32, 33, 64, 100}) {
      Rows rows;
      for (int r = 0; r < 32; ++r) {
        const int position = 5 + 6 * r;
        rows.Add(r, std::max(0, position + 1 - window), position + 1);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectReference(cache, rows));
    }
  });
}

// A row has the same bits alone and in all sorts of company.
TEST_P(AttentionTest, RowsDoNotDependOnEachOther) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    for (const int head_dim : {12, 20, 64, 80}) {
      AttentionCache cache(GetParam(), head_dim, 150);
      if (head_dim == 20) cache.AddSink(0.25F);
      Rows rows;
      for (int r = 0; r < 32; ++r) {
        // Some rows have ranges that are alike, as the heads of a group have;
        // some have one after the other.
        const int end = r < 16 ? 90 + r : 120 + r / 5;
        rows.Add(r, r % 3 == 0 ? std::max(0, end - 40) : 0, end);
      }
      const auto together = cache.Attend(rows);
      for (int r = 0; r < 32; ++r) {
        ASSERT_EQ(cache.Attend(rows.Part(r, r + 1))[0], together[r])
            << "row " << r;
      }
      for (int first = 0; first < 32; first += 5) {
        const auto some = cache.Attend(rows.Part(first, first + 11));
        for (size_t r = 0; r < some.size(); ++r) {
          ASSERT_EQ(some[r], together[first + r]);
        }
      }
    }
  });
}

// Positions behind a row's range do not touch it: the last ones of a longer
// sequence, or those that an earlier one left.
TEST_P(AttentionTest, LaterPositionsDoNotMatter) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    AttentionCache cache(GetParam(), 24, 60);
    Rows rows;
    for (int r = 0; r < 9; ++r) rows.Add(r, 3, 41);
    const auto before = cache.Attend(rows);
    for (const float x : {1e4f, -1e-20f, std::nanf(""), kInfinity}) {
      for (const int position : {1, 2, 41, 50}) {
        cache.Store(position, std::vector<float>(24, x),
                    std::vector<float>(24, -x));
      }
      EXPECT_EQ(cache.Attend(rows), before) << x;
    }
  });
}

// A NaN or an infinity in the middle of V is not hidden, and one in K breaks
// nothing: a position whose score is no number has no weight.
TEST_P(AttentionTest, NonFiniteNumbersShow) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float x : {std::nanf(""), kInfinity, -kInfinity}) {
      for (const bool in_k : {true, false}) {
        AttentionCache cache(GetParam(), 24, 60);
        std::vector<float> good(24, 0.5f), bad(24, 0.5f);
        bad[7] = x;
        cache.Store(30, in_k ? bad : good, in_k ? good : bad);
        Rows rows;
        for (int r = 0; r < 9; ++r) rows.Add(r, 0, 60);
        const auto dense = cache.Attend(rows);
        const auto sparse = cache.Attend(rows, 0.999f);
        for (int r = 0; r < 9 && !in_k; ++r) {
          EXPECT_FALSE(std::isfinite(dense[r][7]));
          EXPECT_FALSE(std::isfinite(sparse[r][7]));
        }
        cache.Attend(rows, 0.3f);
      }
    }
  });
}

// One position is far above all others, or far below, so that weights
// underflow.
TEST_P(AttentionTest, ExtremeScores) {
  ForEachTarget([&](const char* target) {
    SCOPED_TRACE(target);
    for (const int position : {0, 40, 99}) {
      for (const float scale : {300.0f, -300.0f}) {
        AttentionCache cache(GetParam(), 16, 100);
        std::vector<float> k = cache.Query(0), v(16, 0.25f);
        for (float& x : k) x *= scale;
        cache.Store(position, k, v);
        Rows rows;
        for (int r = 0; r < 3; ++r) rows.Add(r, 0, 100);
        const auto out = cache.Attend(rows);
        for (int r = 0; r < 3; ++r) {
          const auto want = cache.Reference(r, 0, 100);
          for (int i = 0; i < 16; ++i) {
            // Scores of hundreds have errors of their own.
            ASSERT_NEAR(out[r][i], want[i], 100 * cache.Tolerance());
          }
        }
      }
    }
  });
}

TEST_P(AttentionTest, CountsTheBytesOfV) {
  AttentionCache cache(GetParam(), 40, 100);
  Rows rows;
  for (int r = 0; r < 4; ++r) rows.Add(r, 10, 80 + r);
  uint64_t bytes = 5;
  cache.Attend(rows, 1, &bytes);
  const uint64_t row = GetParam() == KvFormat::kFloat32    ? 160
                       : GetParam() == KvFormat::kBFloat16 ? 80
                       : GetParam() == KvFormat::kFloat16  ? 80
                       : GetParam() == KvFormat::kInt8     ? 40 + 4
                                                           : 20 + 4;
  EXPECT_EQ(bytes, 5 + 73 * row);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, AttentionTest,
    testing::Values(KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16,
                    KvFormat::kInt8, KvFormat::kInt4),
    [](const auto& i) { return std::string(KvFormatName(i.param)); });

}  // namespace
}  // namespace sluice
