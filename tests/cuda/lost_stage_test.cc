// What a stage does when its GPU is lost: it says so, at whatever call it comes
// upon it, and leaves nothing behind that waits.

#include <memory>
#include <string>

#include "common/device_loss.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda/emulation/streams.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/unit/exec/placement_testing.h"
#include "tests/unit/exec/scratch_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class LostStageTest : public testing::TestWithParam<const char*> {
 protected:
  absl::StatusOr<std::unique_ptr<StageChain>> Load() {
    StageChain::Options options;
    options.policy.max_step_tokens = 256;
    options.policy.num_microbatches = 3;
    EXPECT_TRUE(UpdatePolicy(GetParam(), &options.policy).ok());
    options.disk_dir = dir_.path();
    options.device_bytes = uint64_t{64} << 20;
    options.device = {BackendKind::kCuda};
    options.max_model_len = 200;
    options.max_sequences = 12;
    return StageChain::Create(spec_, RandomSource(3), options);
  }
  absl::Status Run(StageChain& chain) {
    return RunRequests(chain, PlacementRequests(spec_.vocab_size), 3).status();
  }
  static void ExpectLoss(const absl::Status& status) {
    EXPECT_TRUE(IsDeviceLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("GPU 0"));
    EXPECT_THAT(status.message(), HasSubstr("uncorrectable ECC error"));
  }

  const DecoderSpec spec_ = PlacementSpec(false);
  ScratchDir dir_;
};

INSTANTIATE_TEST_SUITE_P(
    Placements, LostStageTest,
    testing::Values("w=100/0/0 c=100/0/0 h=100/0/0",
                    "w=0/100/0 c=0/100/0 h=0/100/0",
                    "w=0/50/50 c=0/50/50 h=0/100/0 attention-site=device",
                    "w=30/30/40 c=30/40/30 h=40/30/30"));

TEST_P(LostStageTest, SaysSoAndEnds) {
  auto chain = Load();
  ASSERT_TRUE(chain.ok()) << chain.status();
  EXPECT_TRUE(Run(**chain).ok());
  (*chain)->Reset();
  emulation::LoseDevice(cudaErrorECCUncorrectable);
  ExpectLoss(Run(**chain));
  (*chain)->Reset();
  ExpectLoss(Run(**chain));
  chain->reset();
  ExpectLoss(Load().status());
  emulation::LoseDevice(cudaSuccess);
}

}  // namespace
}  // namespace sluice
