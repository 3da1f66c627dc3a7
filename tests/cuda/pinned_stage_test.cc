// Tests that a stage copies only pinned memory to and from a device, step after
// step, wherever its data lies.

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class PinnedStageTest : public testing::Test {
 protected:
  // Returns how many bytes RunRequests copied from and to memory that is not
  // pinned.
  size_t PageableBytes(const std::string& text) {
    const DecoderSpec spec = PlacementSpec(false);
    StageChain::Options options;
    options.policy.max_step_tokens = 256;
    options.policy.num_microbatches = 3;
    EXPECT_TRUE(UpdatePolicy(text, &options.policy).ok());
    options.disk_dir = dir_.path();
    options.cuts = {2};
    options.device_bytes = uint64_t{64} << 20;
    options.device = TestDevice();
    options.max_model_len = 200;
    options.max_sequences = 12;
    auto chain = StageChain::Create(spec, RandomSource(3), options);
    EXPECT_TRUE(chain.ok()) << chain.status();
    if (!chain.ok()) return 0;
    const size_t before = emulation::PageableBytes();
    const auto tokens =
        RunRequests(**chain, PlacementRequests(spec.vocab_size), 3);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return emulation::PageableBytes() - before;
  }
  TempDir dir_ = TempDir::OnDisk();
};

TEST_F(PinnedStageTest, NothingElseIsCopied) {
  for (const char* text :
       {"", "w=100/0/0 c=100/0/0 h=100/0/0", "w=0/100/0 c=0/100/0 h=0/100/0",
        "w=30/30/40 c=30/40/30 h=40/30/30",
        "w=30/30/40 c=30/40/30 h=40/30/30 attention-site=device",
        "w=0/100/0 c=0/100/0 h=0/100/0 attention-site=device",
        "w=0/0/100 c=0/0/100 h=0/0/100"}) {
    EXPECT_EQ(PageableBytes(text), 0u) << text;
  }
}

TEST_F(PinnedStageTest, ItGoesWithoutPinnedMemory) {
  emulation::SetPinLimit(100'000);
  testing::internal::CaptureStderr();
  const size_t bytes = PageableBytes("w=30/30/40 c=30/40/30 h=40/30/30");
  const std::string log = testing::internal::GetCapturedStderr();
  emulation::SetPinLimit(size_t{1} << 40);
  EXPECT_GT(bytes, 0u);
  EXPECT_THAT(log, HasSubstr("some host memory stays unpinned"));
}

}  // namespace
}  // namespace sluice
