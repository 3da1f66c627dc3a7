// Tests what a stage does when its GPU is lost: it says so, at whatever call it
// comes upon it, and leaves nothing behind that waits.

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "common/device_loss.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#ifdef SLUICE_CUDA_EMULATED
#include "tests/cuda/emulation/streams.h"
#else
#include "runtime/kernels/cuda/rows.h"
#endif
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

#ifdef SLUICE_CUDA_EMULATED
constexpr char kLoss[] = "uncorrectable ECC error";
void LoseGpu() { emulation::LoseDevice(cudaErrorECCUncorrectable); }
void RepairGpu() { emulation::LoseDevice(cudaSuccess); }
#else
// Loses the GPU by a kernel that adds to where no memory is, and for good: what
// follows in this process can't have a GPU.
constexpr char kLoss[] = "illegal memory access";
void LoseGpu() {
  auto* const nowhere = reinterpret_cast<float*>(uintptr_t{256});
  EXPECT_TRUE(AddRows(nowhere, nullptr, 1, 32, nowhere, nullptr).ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}
void RepairGpu() {}
#endif

constexpr const char* kPlacements[] = {
    "w=100/0/0 c=100/0/0 h=100/0/0", "w=0/100/0 c=0/100/0 h=0/100/0",
    "w=0/50/50 c=0/50/50 h=0/100/0 attention-site=device",
    "w=30/30/40 c=30/40/30 h=40/30/30"};

class LostStageTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<StageChain>> Load(const char* placement) {
    StageChain::Options options;
    options.policy.max_step_tokens = 256;
    options.policy.num_microbatches = 3;
    EXPECT_TRUE(UpdatePolicy(placement, &options.policy).ok());
    options.disk_dir = dir_.path();
    options.device_bytes = uint64_t{64} << 20;
    // The device is the CPU in a GPU's memory, or a GPU.
    options.device = std::getenv("SLUICE_TEST_DEVICE") != nullptr
                         ? TestDevice()
                         : DeviceChoice{BackendKind::kCuda};
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
    EXPECT_THAT(status.message(), HasSubstr(kLoss));
  }

  const DecoderSpec spec_ = PlacementSpec(false);
  TempDir dir_ = TempDir::OnDisk();
};

TEST_F(LostStageTest, SaysSoAndEnds) {
  std::vector<std::unique_ptr<StageChain>> chains;
  for (const char* placement : kPlacements) {
    auto chain = Load(placement);
    ASSERT_TRUE(chain.ok()) << placement << ": " << chain.status();
    EXPECT_TRUE(Run(**chain).ok());
    (*chain)->Reset();
    chains.push_back(*std::move(chain));
  }
  LoseGpu();
  for (size_t i = 0; i < chains.size(); ++i) {
    SCOPED_TRACE(kPlacements[i]);
    ExpectLoss(Run(*chains[i]));
    chains[i]->Reset();
    ExpectLoss(Run(*chains[i]));
    chains[i].reset();
    ExpectLoss(Load(kPlacements[i]).status());
  }
  RepairGpu();
}

}  // namespace
}  // namespace sluice
