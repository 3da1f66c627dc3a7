#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "common/threads/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_metrics.h"
#include "worker/machine_share.h"
#include "worker/stage/step_intake.h"
#include "worker/usage_meter.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// A packed unit is charged again when it is used again, so its room counts as
// free.
TEST(MachineTest, TheDefaultDiskSpaceHasRoomForTheImagesThatAreThere) {
  const TempDir temp;
  const std::filesystem::path& dir = temp.path();
  constexpr uint64_t kPackedBytes = uint64_t{8} << 40;  // takes no room: a hole
  const std::filesystem::path packed = dir / "images" / "model" / "layer-0.img";
  std::filesystem::create_directories(packed.parent_path());
  std::ofstream(packed) << "image";
  std::filesystem::resize_file(packed, kPackedBytes);
  const absl::StatusOr<uint64_t> space = DefaultDiskSpace(dir.string());
  ASSERT_TRUE(space.ok()) << space.status();
  EXPECT_GE(*space, kPackedBytes / 10 * 9);
}

TEST(UsageMeterTest, TimeGoesToOneStateAtATime) {
  ManualClock clock;
  TestMetrics metrics;
  UsageMeter meter(&clock);
  clock.Advance(absl::Seconds(5));
  meter.SetCounters(metrics.GetCounter("busy", "", {}),
                    metrics.GetCounter("waiting", "", {}),
                    metrics.GetCounter("idle", "", {}));
  meter.Switch(UsageMeter::State::kBusy);
  clock.Advance(absl::Seconds(2));
  meter.Switch(UsageMeter::State::kWaiting);
  clock.Advance(absl::Seconds(3));
  meter.Switch(UsageMeter::State::kIdle);
  clock.Advance(absl::Seconds(1));
  const UsageTotals totals = meter.totals();
  EXPECT_EQ(totals.busy_seconds, 2);
  EXPECT_EQ(totals.waiting_seconds, 3);
  EXPECT_EQ(totals.idle_seconds, 6);
  EXPECT_EQ(metrics.Value("busy"), 2);
  EXPECT_EQ(metrics.Value("waiting"), 3);
  EXPECT_EQ(metrics.Value("idle"), 1);  // since it has counters
}

class StepIntakeTest : public ::testing::Test {
 protected:
  // Makes micro-batch k of a step whose micro-batches have 1, 2, ... tokens.
  ArrivedFrame Frame(int64_t step, int k, int batches = 2) {
    ActivationFrame frame;
    frame.step = step;
    frame.micro_batch = k;
    if (k == 0) {
      auto plan = std::make_shared<StepPlan>();
      plan->step = step;
      for (int i = 0; i < batches; ++i) {
        MicroBatch& batch = plan->micro_batches.emplace_back();
        batch.tokens.assign(i + 1, 7);
      }
      frame.plan = std::move(plan);
    }
    if (batches > 0) frame.hidden = pool_.Acquire(k + 1, 4);
    return {std::move(frame), OnceOnExit([this] { ++consumed_; })};
  }

  void ExpectRefused(ArrivedFrame frame, const std::string& why) {
    const absl::Status status = intake_.Add(std::move(frame));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(), HasSubstr(why));
  }

  void Add(ArrivedFrame frame) {
    const absl::Status status = intake_.Add(std::move(frame));
    ASSERT_TRUE(status.ok()) << status;
  }

  ActivationPool pool_;
  int consumed_ = 0;
  StepIntake intake_;
};

TEST_F(StepIntakeTest, AStepBeginsWithItsFirstFrame) {
  Add(Frame(1, 0));
  ASSERT_NE(intake_.plan(), nullptr);
  EXPECT_EQ(intake_.plan()->step, 1);
  EXPECT_EQ(intake_.arrived(), 1);
  EXPECT_EQ(intake_.Take(0)->rows(), 1);
  Add(Frame(1, 1));
  EXPECT_EQ(intake_.arrived(), 2);
  EXPECT_EQ(intake_.Take(1)->rows(), 2);
  EXPECT_EQ(consumed_, 0);
  intake_.End();
  EXPECT_EQ(intake_.plan(), nullptr);
  EXPECT_EQ(consumed_, 2);
  Add(Frame(2, 0));
}

TEST_F(StepIntakeTest, PlanAloneIsAStep) {
  Add(Frame(1, 0, 0));
  EXPECT_NE(intake_.plan(), nullptr);
  EXPECT_EQ(intake_.arrived(), 0);
}

TEST_F(StepIntakeTest, MissingFrames) {
  Add(Frame(1, 0));
  ExpectRefused(Frame(2, 0), "came before block 0 step 1 was complete");
}

TEST_F(StepIntakeTest, RepeatedAndReorderedFrames) {
  ExpectRefused(Frame(1, 1), "micro-batch 1 is repeated or out of order");
  Add(Frame(1, 0, 3));
  ExpectRefused(Frame(1, 2), "micro-batch 2 is repeated or out of order");
  ExpectRefused(Frame(2, 1), "block 0 step 2: micro-batch 1");
}

TEST_F(StepIntakeTest, AFrameMoreThanThePlanHas) {
  Add(Frame(1, 0, 1));
  ExpectRefused(Frame(1, 1), "one more than its plan has");
}

TEST_F(StepIntakeTest, RepeatedSteps) {
  Add(Frame(4, 0, 1));
  intake_.End();
  ExpectRefused(Frame(4, 0, 1), "came after step 4");
  ExpectRefused(Frame(3, 0, 1), "came after step 4");
  Add(Frame(6, 0, 1));
}

TEST_F(StepIntakeTest, NoActivations) {
  ArrivedFrame frame = Frame(1, 0, 1);
  frame.frame.hidden = nullptr;
  ExpectRefused(std::move(frame), "has no activations");
}

TEST_F(StepIntakeTest, StepsOfTheFirstStageAreOrderedToo) {
  auto plan = std::make_shared<StepPlan>();
  plan->step = 3;
  EXPECT_TRUE(intake_.Begin(plan).ok());
  intake_.End();
  EXPECT_FALSE(intake_.Begin(plan).ok());
  auto other = std::make_shared<StepPlan>();
  other->block = BlockId(1);
  EXPECT_TRUE(intake_.Begin(other).ok());
}

}  // namespace
}  // namespace sluice
