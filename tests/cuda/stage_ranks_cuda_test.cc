// Stages of several ranks on the CUDA backend, each rank with memory of its own
// on the emulated device: the tokens of one rank, and its logits but for the
// order in which cuBLASLt sums for matrices of other widths.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "runtime/collective/shared_collective.h"
#include "tests/cuda/emulation/steady_test.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

// Waits for a rank's stream before its rows are exchanged: the memory of the
// emulated device is the process's.
class StreamRank : public Collective {
 public:
  explicit StreamRank(Collective* shared) : shared_(*shared) {}
  int rank() const override { return shared_.rank(); }
  int ranks() const override { return shared_.ranks(); }
  absl::Status Gather(const ColumnGather& gather, ComputePool& pool) override {
    if (gather.stream == nullptr) {
      return absl::InternalError("an exchange without a stream");
    }
    // Each has room for what NCCL would want.
    size_t part = 0;
    for (size_t i = 1; i < gather.bounds.size(); ++i) {
      part = std::max(part, gather.bounds[i] - gather.bounds[i - 1]);
    }
    if (gather.staging_bytes < part * gather.rows * ranks()) {
      return absl::InternalError("no room for an exchange");
    }
    if (cudaStreamSynchronize(static_cast<cudaStream_t>(gather.stream)) !=
        cudaSuccess) {
      return absl::InternalError("a kernel failed");
    }
    return shared_.Gather(gather, pool);
  }

 private:
  Collective& shared_;
};

class StreamGroup : public CollectiveGroup {
 public:
  explicit StreamGroup(int ranks) : shared_(ranks) {
    for (int i = 0; i < ranks; ++i) {
      ranks_.push_back(std::make_unique<StreamRank>(&shared_.rank(i)));
    }
  }
  Collective& rank(int rank) override { return *ranks_[rank]; }
  void Abort(const absl::Status& why) override { shared_.Abort(why); }
  void Reset() override { shared_.Reset(); }

 private:
  SharedGroup shared_;
  std::vector<std::unique_ptr<StreamRank>> ranks_;
};

class StageRanksCudaTest : public testing::TestWithParam<bool> {
 protected:
  const emulation::SteadyTest emulation_;
};

TEST_P(StageRanksCudaTest, SameTokensByRanks) {
  const DecoderSpec spec = PlacementSpec(GetParam());
  TempDir dir = TempDir::OnDisk();
  std::vector<ChainRequest> requests = PlacementRequests(spec.vocab_size);
  requests.resize(5);
  for (const char* text :
       {"w=100/0/0 c=100/0/0 h=100/0/0", "w=40/30/30 c=40/30/30 h=50/50/0",
        "compress-weights=int8 w=100/0/0"}) {
    SCOPED_TRACE(text);
    StageChain::Options options;
    options.policy.max_step_tokens = 256;
    options.policy.num_microbatches = 2;
    ASSERT_TRUE(UpdatePolicy(text, &options.policy).ok());
    options.disk_dir = dir.path();
    options.device = {BackendKind::kCuda};
    options.device_bytes = uint64_t{64} << 20;
    options.max_model_len = 200;
    options.max_sequences = 12;
    options.cuts = {2};
    auto one = StageChain::Create(spec, RandomSource(3), options);
    ASSERT_TRUE(one.ok()) << one.status();
    const auto expected = RunRequests(**one, requests, 2);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(ranks);
      options.ranks = ranks;
      options.exchange =
          [ranks]() -> absl::StatusOr<std::unique_ptr<CollectiveGroup>> {
        return std::make_unique<StreamGroup>(ranks);
      };
      auto several = StageChain::Create(spec, RandomSource(3), options);
      ASSERT_TRUE(several.ok()) << several.status();
      const auto got = RunRequests(**several, requests, 2);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, *expected);
      for (const auto& [position, row] : (*one)->logits()) {
        const std::vector<float>& other = (*several)->logits()[position];
        ASSERT_EQ(other.size(), row.size());
        for (size_t i = 0; i < row.size(); ++i) {
          ASSERT_NEAR(other[i], row[i], 1e-3);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StageRanksCudaTest, testing::Bool(),
                         [](const auto& i) {
                           return i.param ? "opt" : "llama";
                         });

}  // namespace
}  // namespace sluice
