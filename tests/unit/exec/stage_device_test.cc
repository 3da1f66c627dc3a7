// A stage on a device with memory of its own: wherever weights, KV cache and
// activations lie, and wherever attention runs, the tokens and logits are the
// bits of the CPU backend with all in memory. The discrete CPU backend refuses
// to compute with what was not copied to the device, so each run also shows
// that everything was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/unit/exec/placement_testing.h"
#include "tests/unit/exec/scratch_dir.h"

namespace sluice {
namespace {

constexpr uint64_t kRoomy = uint64_t{64} << 20;

class StageDeviceTest : public testing::TestWithParam<bool> {
 protected:
  static Policy Base() {
    Policy policy;
    policy.max_step_tokens = 256;
    policy.num_microbatches = 2;
    return policy;
  }
  static Policy With(const std::string& text) {
    Policy policy = Base();
    const absl::Status status = UpdatePolicy(text, &policy);
    EXPECT_TRUE(status.ok()) << status;
    return policy;
  }
  const DecoderSpec spec_ = PlacementSpec(GetParam());
  ScratchDir dir_;
};

TEST_P(StageDeviceTest, SameBitsWhereverThingsLie) {
  Outcome expected;
  RunPlacement(spec_, {.policy = Base()}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  for (const char* text : {
           // Corners.
           "",
           "w=100/0/0 c=100/0/0 h=100/0/0",
           "w=0/100/0 c=100/0/0 h=100/0/0",
           "w=0/0/100 c=100/0/0 h=100/0/0",
           "w=100/0/0 c=0/100/0 h=100/0/0",
           "w=100/0/0 c=0/0/100 h=100/0/0",
           "w=100/0/0 c=100/0/0 h=0/100/0",
           "w=0/100/0 c=0/100/0 h=0/100/0",
           "w=0/0/100 c=0/0/100 h=0/100/0",
           // Mixtures.
           "w=50/30/20 c=40/30/30 h=50/50/0",
           "w=33/67/0 c=50/50/0 h=40/60/0 num-microbatches=5",
           "w=20/20/60 c=10/45/45 h=0/100/0 num-microbatches=5",
           "w=90/0/10 c=30/70/0 num-microbatches=1",
           "w=1/98/1 c=50/0/50 h=50/50/0 overlap=off",
           "w=40/30/30 c=20/40/40 h=0/100/0 schedule=row",
           "w=0/50/50 c=0/50/50 h=100/0/0 schedule=row num-microbatches=3",
           "w=25/25/50 c=0/100/0 h=0/100/0 overlap=off schedule=row",
           // KV that goes to the device.
           "c=0/100/0 attention-site=device",
           "c=0/0/100 attention-site=device",
           "w=30/30/40 c=30/40/30 h=50/50/0 attention-site=device",
           "w=0/50/50 c=0/50/50 attention-site=device num-microbatches=5",
           "c=30/30/40 attention-site=device schedule=row num-microbatches=3",
           "c=20/40/40 attention-site=device overlap=off",
       }) {
    SCOPED_TRACE(text);
    const Policy policy = With(text);
    for (const std::vector<int>& cuts :
         {std::vector<int>{}, std::vector<int>{1, 3}}) {
      Outcome run;
      RunPlacement(spec_,
                   {.policy = policy,
                    .disk_dir = dir_.path(),
                    .cuts = cuts,
                    .device_bytes = kRoomy},
                   &run);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_TRUE(run.tokens == expected.tokens);
      EXPECT_TRUE(run.logits == expected.logits);
      // Weights and activations in, at least.
      EXPECT_GT(run.stats.h2d_bytes, 0u);
      EXPECT_EQ(run.stats.disk_read_bytes > 0,
                policy.weights.disk > 0 || policy.kv_cache.disk > 0);
      EXPECT_EQ(run.stats.disk_write_bytes > 0, policy.kv_cache.disk > 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StageDeviceTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "opt" : "llama";
                         });

}  // namespace
}  // namespace sluice
