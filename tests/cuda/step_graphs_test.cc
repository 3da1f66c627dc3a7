#include "runtime/kernels/cuda/step_graphs.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/kernels/cuda/launch.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/emulation/streams.h"

namespace sluice {
namespace {

__global__ void Add(int* to, int what) { *to += what; }

class StepGraphsTest : public testing::Test {
 protected:
  StepGraphsTest() : sum_(std::vector<int>{0}) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
    graphs_ = std::make_unique<StepGraphs>(stream_);
  }
  ~StepGraphsTest() override {
    graphs_.reset();
    EXPECT_EQ(emulation::LiveGraphs(), 0);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  void Step(int what) {
    EXPECT_TRUE(Launch(&Add, 1, 1, 0, stream_, sum_.data(), what).ok());
  }
  void Record(const StepGraphs::Key& key, int what) {
    ASSERT_TRUE(graphs_->Begin(key).ok());
    EXPECT_TRUE(graphs_->recording());
    Step(what);
    ASSERT_TRUE(graphs_->End().ok());
    EXPECT_FALSE(graphs_->recording());
  }
  int Sum() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return sum_.Read()[0];
  }

  cudaStream_t stream_ = nullptr;
  DeviceArray<int> sum_;
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
  EXPECT_LE(emulation::LiveGraphs(), 32);
}

TEST_F(StepGraphsTest, ForgetsWhatBrokeOff) {
  ASSERT_TRUE(graphs_->Begin({1}).ok());
  Step(7);
  graphs_->Abort();
  EXPECT_FALSE(graphs_->Has({1}));
  EXPECT_EQ(Sum(), 0);
  // And what somebody waited for meanwhile.
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
