#include "runtime/collective/shared_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/threads/thread.h"

namespace sluice {
namespace {

// Runs body(rank) on a thread for each rank.
template <typename Body>
void OnRanks(int ranks, const Body& body) {
  std::vector<Thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back("rank", [&, rank] { body(rank); });
  }
}

// The byte that a column of a row has in some round.
std::byte Value(int round, int row, size_t column) {
  return static_cast<std::byte>(round * 31 + row * 7 + column);
}

// Has the ranks exchange their parts of rows of `bounds.back()` bytes, in place
// or not, and returns what each then has.
void ExpectGathered(SharedGroup& group, const std::vector<size_t>& bounds,
                    int rows, bool in_place, int to_rank) {
  const int ranks = static_cast<int>(bounds.size()) - 1;
  const size_t width = bounds.back();
  OnRanks(ranks, [&](int rank) {
    ComputePool pool(2);
    const size_t own = bounds[rank + 1] - bounds[rank];
    const size_t stride = width + 3;
    std::vector<std::byte> all(rows * stride + 1), mine(rows * (own + 5) + 1);
    for (int round = 0; round < 20; ++round) {
      std::fill(all.begin(), all.end(), std::byte{255});
      std::byte* const from =
          in_place ? all.data() + bounds[rank] : mine.data();
      const size_t from_stride = in_place ? stride : own + 5;
      for (int row = 0; row < rows; ++row) {
        for (size_t i = 0; i < own; ++i) {
          from[row * from_stride + i] = Value(round, row, bounds[rank] + i);
        }
      }
      const bool gets = to_rank < 0 || to_rank == rank;
      const absl::Status status = group.rank(rank).Gather(
          {from, from_stride, gets ? all.data() : nullptr, stride, rows, bounds,
           to_rank},
          pool);
      ASSERT_TRUE(status.ok()) << status;
      for (int row = 0; gets && row < rows; ++row) {
        for (size_t i = 0; i < width; ++i) {
          ASSERT_EQ(all[row * stride + i], Value(round, row, i))
              << "rank " << rank << " row " << row << " byte " << i;
        }
        // What lies between rows is left alone.
        ASSERT_EQ(all[row * stride + width], std::byte{255});
      }
    }
  });
}

TEST(SharedGroupTest, EachRankGetsAllColumns) {
  const std::vector<std::vector<size_t>> all_bounds = {
      {0, 8, 16}, {0, 64, 64, 200, 256}, {0, 0, 7}, {0, 40000, 80001, 80001}};
  for (const auto& bounds : all_bounds) {
    for (const int rows : {0, 1, 5}) {
      SharedGroup group(static_cast<int>(bounds.size()) - 1);
      ExpectGathered(group, bounds, rows, true, ColumnGather::kAllRanks);
      ExpectGathered(group, bounds, rows, false, ColumnGather::kAllRanks);
      ExpectGathered(group, bounds, rows, false, 0);
    }
  }
}

TEST(SharedGroupTest, AbortEndsWhatOthersWaitFor) {
  constexpr int kRanks = 3;
  SharedGroup group(kRanks);
  const std::vector<size_t> bounds = {0, 4, 8, 12};
  for (int round = 0; round < 10; ++round) {
    OnRanks(kRanks, [&](int rank) {
      if (rank == 1) {
        group.Abort(absl::DataLossError("the disk is broken"));
        group.Abort(absl::InternalError("a later one"));
        return;
      }
      ComputePool pool(1);
      std::vector<std::byte> row(12);
      for (int call = 0; call < 2; ++call) {
        const absl::Status status = group.rank(rank).Gather(
            {row.data() + bounds[rank], 12, row.data(), 12, 1, bounds}, pool);
        EXPECT_EQ(status, absl::DataLossError("the disk is broken"));
      }
    });
    group.Reset();
    ExpectGathered(group, bounds, 2, true, ColumnGather::kAllRanks);
  }
}

TEST(SharedGroupTest, RanksThatDisagreeAreToldSo) {
  SharedGroup group(2);
  const std::vector<size_t> bounds = {0, 4, 8};
  OnRanks(2, [&](int rank) {
    ComputePool pool(1);
    std::vector<std::byte> rows(64);
    const absl::Status status = group.rank(rank).Gather(
        {rows.data() + bounds[rank], 8, rows.data(), 8, 1 + rank, bounds},
        pool);
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.message(), testing::HasSubstr("other rows"));
  });
  ComputePool pool(1);
  const std::vector<size_t> wrong = {0, 4};
  EXPECT_TRUE(absl::IsInternal(group.rank(0).Gather({.bounds = wrong}, pool)));
}

}  // namespace
}  // namespace sluice
