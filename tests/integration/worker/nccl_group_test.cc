// Ranks that exchange by NCCL, over a stand-in for it (tests/nccl/fake_gpu.h).

#include "worker/link/nccl_group.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/nccl/nccl_testing.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<CollectiveGroup>> FakeGroup(int ranks) {
  NcclGroupOptions options = {.nccl_library = SLUICE_FAKE_GPU,
                              .cuda_library = SLUICE_FAKE_GPU};
  for (int rank = 0; rank < ranks; ++rank) options.devices.push_back(rank);
  return CreateNcclGroup(options);
}

class NcclGroupTest : public testing::Test {
 protected:
  void SetUp() override { setenv("SLUICE_FAKE_GPU_COUNT", "4", 1); }
  void TearDown() override { unsetenv("SLUICE_FAKE_GPU_COUNT"); }
  const FakeGpuGuard guard_;
};

template <typename Body>
void OnRanks(int ranks, const Body& body) {
  std::vector<Thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back("rank", [&, rank] { body(rank); });
  }
}

// Has the ranks exchange parts of rows, some times, and checks what they get.
void ExpectGathered(CollectiveGroup& group, const std::vector<size_t>& bounds,
                    int to_rank) {
  const int ranks = static_cast<int>(bounds.size()) - 1;
  constexpr int kRows = 3;
  const size_t width = bounds.back();
  OnRanks(ranks, [&](int rank) {
    ComputePool pool(1);
    std::vector<std::byte> all(kRows * width);
    for (int round = 0; round < 4; ++round) {
      const auto value = [&](int row, size_t i) {
        return static_cast<std::byte>(round * 31 + row * 7 + i);
      };
      std::fill(all.begin(), all.end(), std::byte{255});
      for (int row = 0; row < kRows; ++row) {
        for (size_t i = bounds[rank]; i < bounds[rank + 1]; ++i) {
          all[row * width + i] = value(row, i);
        }
      }
      const bool gets = to_rank < 0 || to_rank == rank;
      const absl::Status status = group.rank(rank).Gather(
          {all.data() + bounds[rank], width, gets ? all.data() : nullptr, width,
           kRows, bounds, to_rank},
          pool);
      ASSERT_TRUE(status.ok()) << status;
      for (int row = 0; gets && row < kRows; ++row) {
        for (size_t i = 0; i < width; ++i) {
          ASSERT_EQ(all[row * width + i], value(row, i)) << rank << " " << row;
        }
      }
    }
  });
}

TEST_F(NcclGroupTest, EachRankGetsAllColumns) {
  for (const std::vector<size_t>& bounds :
       {std::vector<size_t>{0, 8, 16}, {0, 64, 64, 200}, {0, 4, 8, 9, 100}}) {
    auto group = FakeGroup(static_cast<int>(bounds.size()) - 1);
    ASSERT_TRUE(group.ok()) << group.status();
    ExpectGathered(**group, bounds, ColumnGather::kAllRanks);
    ExpectGathered(**group, bounds, 0);
  }
}

TEST_F(NcclGroupTest, AbortEndsWhatOthersWaitFor) {
  for (const int ranks : {2, 4}) {
    auto group = FakeGroup(ranks);
    ASSERT_TRUE(group.ok()) << group.status();
    std::vector<size_t> bounds;
    for (int rank = 0; rank <= ranks; ++rank) bounds.push_back(4 * rank);
    ExpectGathered(**group, bounds, ColumnGather::kAllRanks);
    for (int round = 0; round < 3; ++round) {
      OnRanks(ranks, [&](int rank) {
        if (rank == 1) {
          (*group)->Abort(absl::DataLossError("the disk is broken"));
          return;
        }
        ComputePool pool(1);
        std::vector<std::byte> row(bounds.back());
        const absl::Status status =
            (*group)->rank(rank).Gather({row.data() + bounds[rank], row.size(),
                                         row.data(), row.size(), 1, bounds},
                                        pool);
        EXPECT_EQ(status, absl::DataLossError("the disk is broken"));
      });
      (*group)->Reset();
      ExpectGathered(**group, bounds, ColumnGather::kAllRanks);
    }
  }
}

TEST_F(NcclGroupTest, WhatIsMissingIsSaid) {
  NcclGroupOptions options = {.nccl_library = "/nowhere/libnccl.so",
                              .cuda_library = SLUICE_FAKE_GPU,
                              .devices = {0, 1}};
  EXPECT_TRUE(absl::IsNotFound(CreateNcclGroup(options).status()));
  options.nccl_library = SLUICE_FAKE_GPU;
  options.devices = {0, 9};
  const absl::Status status = CreateNcclGroup(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("no GPU 9"));
}

// Whole stages: the tokens and logits of one rank.
TEST_F(NcclGroupTest, StagesOfSeveralRanksHaveTheBitsOfOne) {
  const DecoderSpec spec = LlamaSpec(3, 96, 6, 2, 200, 301);
  std::vector<ChainRequest> requests;
  for (int i = 0; i < 4; ++i) {
    ChainRequest request;
    for (int t = 0; t < 5 + 20 * i; ++t) {
      request.prompt.push_back((31 * i + 7 * t) % spec.vocab_size);
    }
    request.new_tokens = 6;
    request.chunk = 16;
    requests.push_back(request);
  }
  for (const uint64_t device_bytes : {uint64_t{0}, uint64_t{64} << 20}) {
    StageChain::Options options;
    options.cuts = {1};
    options.policy.num_microbatches = 2;
    options.device = {BackendKind::kCpuDiscrete};
    options.device_bytes = device_bytes;
    auto one = StageChain::Create(spec, RandomSource(5), options);
    ASSERT_TRUE(one.ok()) << one.status();
    const auto expected = RunRequests(**one, requests, 2);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(ranks);
      const long before = fake_gpu_counts().gathers;
      options.ranks = ranks;
      options.exchange = [ranks] { return FakeGroup(ranks); };
      auto several = StageChain::Create(spec, RandomSource(5), options);
      ASSERT_TRUE(several.ok()) << several.status();
      const auto got = RunRequests(**several, requests, 2);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, *expected);
      EXPECT_EQ((*several)->logits(), (*one)->logits());
      EXPECT_GT(fake_gpu_counts().gathers, before);
    }
  }
}

}  // namespace
}  // namespace sluice
