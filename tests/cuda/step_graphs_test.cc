#include "runtime/kernels/cuda/step_graphs.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "runtime/kernels/cuda/rows.h"
#include "tests/cuda/support/device_array.h"
#ifdef SLUICE_CUDA_EMULATED
#include "tests/cuda/emulation/streams.h"
#endif

namespace sluice {
namespace {

class StepGraphsTest : public testing::Test {
 protected:
  StepGraphsTest() : sum_(std::vector<float>{0}), numbers_(Numbers()) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
    graphs_ = std::make_unique<StepGraphs>(stream_);
    Step(0);  // a kernel's code is loaded where it is launched first
  }
  ~StepGraphsTest() override {
    graphs_.reset();
#ifdef SLUICE_CUDA_EMULATED
    EXPECT_EQ(emulation::LiveGraphs(), 0);
#endif
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  // Returns the numbers from 0 to 100.
  static std::vector<float> Numbers() {
    std::vector<float> numbers(101);
    std::iota(numbers.begin(), numbers.end(), 0.0f);
    return numbers;
  }
  // Adds a number to the sum.
  void Step(int what) {
    EXPECT_TRUE(
        AddRows(numbers_.data() + what, nullptr, 1, 1, sum_.data(), stream_)
            .ok());
  }
  void Record(const StepGraphs::Key& key, int what) {
    ASSERT_TRUE(graphs_->Begin(key).ok());
    EXPECT_TRUE(graphs_->recording());
    Step(what);
    ASSERT_TRUE(graphs_->End().ok());
    EXPECT_FALSE(graphs_->recording());
  }
  float Sum() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return sum_.Read()[0];
  }

  cudaStream_t stream_ = nullptr;
  DeviceArray<float> sum_;
  const DeviceArray<float> numbers_;
  std::unique_ptr<StepGraphs> graphs_;
};

TEST_F(StepGraphsTest, LaunchesWhatWasRecorded) {
  EXPECT_FALSE(graphs_->Has({1}));
  Record({1}, 1);
  EXPECT_EQ(Sum(), 1) << "the recorded step is done, too";
  Record({2}, 10);
  ASSERT_TRUE(graphs_->Has({1}) && graphs_->Has({2}));
  EXPECT_TRUE(graphs_->Launch({1}).ok());
  EXPECT_TRUE(graphs_->Launch({2}).ok());
  EXPECT_TRUE(graphs_->Launch({1}).ok());
  EXPECT_EQ(Sum(), 23);
  Record({1}, 100);
  EXPECT_TRUE(graphs_->Launch({1}).ok());
  EXPECT_EQ(Sum(), 223);
}

TEST_F(StepGraphsTest, WantsWhatComesAgain) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(graphs_->Wants({5, 6}));
  EXPECT_FALSE(graphs_->Wants({5, 7}));
  EXPECT_TRUE(graphs_->Wants({5, 6}));
}

TEST_F(StepGraphsTest, ForgetsThoseThatWereNotUsedForLong) {
  Record({0}, 1);
  for (int i = 1; i < 40; ++i) {
    Record({i}, 1);
    EXPECT_TRUE(graphs_->Launch({0}).ok());
  }
  EXPECT_TRUE(graphs_->Has({0}));
  EXPECT_TRUE(graphs_->Has({39}));
  EXPECT_FALSE(graphs_->Has({1}));
#ifdef SLUICE_CUDA_EMULATED
  EXPECT_LE(emulation::LiveGraphs(), 32);
#endif
}

TEST_F(StepGraphsTest, ForgetsWhatBrokeOff) {
  ASSERT_TRUE(graphs_->Begin({1}).ok());
  Step(7);
  graphs_->Abort();
  EXPECT_FALSE(graphs_->Has({1}));
  EXPECT_EQ(Sum(), 0);
  // A recording during which somebody waited is forgotten, too.
  ASSERT_TRUE(graphs_->Begin({1}).ok());
  Step(7);
  cudaStreamSynchronize(stream_);
  EXPECT_FALSE(graphs_->End().ok());
  EXPECT_FALSE(graphs_->Has({1}));
  EXPECT_FALSE(graphs_->recording());
  Record({1}, 1);
  EXPECT_EQ(Sum(), 1);
}

}  // namespace
}  // namespace sluice
