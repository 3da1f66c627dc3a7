#include "tests/cuda/emulation/streams.h"

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <vector>

#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/kernels/cuda/device/launch.h"
#include "tests/cuda/support/device_array.h"

// Tests that streams of the emulation keep what CUDA promises of order, and
// show who relies on more.

namespace sluice {
namespace {

using emulation::LoseDevice;
using emulation::SetDeviceCount;
using emulation::SetPinLimit;
using emulation::SetTiming;
using emulation::Timing;
using testing::ElementsAre;
using testing::HasSubstr;

__global__ void AddOne(int* data) { ++data[threadIdx.x]; }

__global__ void Diverge(int* data) {
  if (threadIdx.x == 0) __syncthreads();
  data[threadIdx.x] = 1;
}

class StreamsTest : public testing::Test {
 protected:
  StreamsTest() {
    for (cudaStream_t* stream : {&compute_, &copies_}) {
      EXPECT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                cudaSuccess);
    }
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDefault), cudaSuccess);
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host_), 12, 0),
              cudaSuccess);
    host_[0] = host_[1] = host_[2] = 0;
  }
  ~StreamsTest() override {
    SetTiming(Timing::kAtOnce);
    LoseDevice(cudaSuccess);
    EXPECT_EQ(cudaFreeHost(host_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(compute_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(copies_), cudaSuccess);
  }
  void Add() {
    EXPECT_TRUE(Launch(&AddOne, 1, 3, 0, compute_, data_.data()).ok());
  }
  void CopyOut() {
    EXPECT_EQ(cudaMemcpyAsync(host_, data_.data(), 12, cudaMemcpyDeviceToHost,
                              copies_),
              cudaSuccess);
  }
  void CopyIn() {
    EXPECT_EQ(cudaMemcpyAsync(data_.data(), host_, 12, cudaMemcpyHostToDevice,
                              copies_),
              cudaSuccess);
  }

  cudaStream_t compute_ = nullptr;
  cudaStream_t copies_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int* host_ = nullptr;
  DeviceArray<int> data_{std::vector<int>{5, 6, 7}};
};

TEST_F(StreamsTest, ALateKernelIsMissedByWhoDoesNotWait) {
  SetTiming(Timing::kLateKernels);
  Add();
  CopyOut();
  EXPECT_EQ(cudaStreamSynchronize(copies_), cudaSuccess);
  EXPECT_EQ(host_[0], 5);
  EXPECT_EQ(cudaStreamSynchronize(compute_), cudaSuccess);
  CopyOut();
  EXPECT_EQ(host_[0], 6) << "copies of pinned memory come at once here";
}

TEST_F(StreamsTest, EventsOrderStreams) {
  for (const Timing timing :
       {Timing::kAtOnce, Timing::kLateKernels, Timing::kLateCopies}) {
    SetTiming(timing);
    const std::vector<int> before = data_.Read();
    Add();
    Add();
    EXPECT_EQ(cudaEventRecord(event_, compute_), cudaSuccess);
    Add();
    EXPECT_EQ(cudaStreamWaitEvent(copies_, event_, 0), cudaSuccess);
    CopyOut();
    EXPECT_EQ(cudaStreamSynchronize(copies_), cudaSuccess);
    if (timing == Timing::kLateKernels) {
      EXPECT_EQ(host_[2], before[2] + 2);
      EXPECT_EQ(cudaStreamQuery(compute_), cudaSuccess) << "asking moves it on";
    } else {
      EXPECT_EQ(host_[2], before[2] + 3);
    }
    EXPECT_EQ(cudaStreamSynchronize(compute_), cudaSuccess);
  }
}

TEST_F(StreamsTest, ALateCopyIsMissedByWhoDoesNotWait) {
  SetTiming(Timing::kLateCopies);
  host_[0] = host_[1] = host_[2] = 40;
  CopyIn();
  EXPECT_EQ(cudaEventRecord(event_, copies_), cudaSuccess);
  Add();
  EXPECT_THAT(data_.Read(), ElementsAre(6, 7, 8));
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  Add();
  EXPECT_THAT(data_.Read(), ElementsAre(41, 41, 41));
}

TEST_F(StreamsTest, PageableMemoryIsTakenAtOnce) {
  SetTiming(Timing::kLateCopies);
  std::vector<int> pageable = {1, 2, 3};
  EXPECT_EQ(cudaMemcpyAsync(data_.data(), pageable.data(), 12,
                            cudaMemcpyHostToDevice, copies_),
            cudaSuccess);
  pageable = {0, 0, 0};
  EXPECT_EQ(cudaMemcpyAsync(pageable.data(), data_.data(), 12,
                            cudaMemcpyDeviceToHost, copies_),
            cudaSuccess);
  EXPECT_THAT(pageable, ElementsAre(1, 2, 3));
}

TEST_F(StreamsTest, EventsTellTheTimeBetweenThem) {
  SetTiming(Timing::kLateCopies);
  cudaEvent_t end = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&end, cudaEventDefault), cudaSuccess);
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, event_, end),
            cudaErrorInvalidResourceHandle)
      << "never recorded";
  EXPECT_EQ(cudaEventRecord(event_, copies_), cudaSuccess);
  CopyIn();
  EXPECT_EQ(cudaEventRecord(end, copies_), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, event_, end), cudaErrorNotReady);
  int asked = 0;
  while (cudaEventQuery(end) == cudaErrorNotReady) ++asked;
  EXPECT_GT(asked, 0);
  EXPECT_EQ(cudaEventElapsedTime(&ms, event_, end), cudaSuccess);
  EXPECT_GT(ms, 0);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

TEST_F(StreamsTest, AKernelThatFailsLateTakesTheDeviceWithIt) {
  SetTiming(Timing::kLateKernels);
  EXPECT_TRUE(Launch(&Diverge, 1, 3, 0, compute_, data_.data()).ok());
  CopyOut();
  const absl::Status status =
      CudaStatus(cudaStreamSynchronize(compute_), "waiting");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("__syncthreads"));
  EXPECT_EQ(cudaStreamSynchronize(copies_), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure) << "it stays";
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 4), cudaErrorLaunchFailure);
}

TEST_F(StreamsTest, DevicesRefuseEachOthersStreams) {
  SetDeviceCount(2);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, compute_), cudaErrorInvalidResourceHandle);
  EXPECT_FALSE(Launch(&AddOne, 1, 3, 0, compute_, data_.data()).ok());
  EXPECT_EQ(cudaEventRecord(event_, compute_), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  Add();
  SetDeviceCount(1);
}

TEST_F(StreamsTest, HostMemoryIsPinnedOnce) {
  void* page = nullptr;
  ASSERT_EQ(posix_memalign(&page, 4096, 3 * 4096), 0);
  char* const data = static_cast<char*>(page);
  EXPECT_EQ(cudaHostRegister(data, 5000, cudaHostRegisterPortable),
            cudaSuccess);
  EXPECT_EQ(cudaHostRegister(data + 6000, 100, cudaHostRegisterPortable),
            cudaErrorHostMemoryAlreadyRegistered)
      << "the same page";
  EXPECT_EQ(cudaHostRegister(data + 8192, 4096, cudaHostRegisterPortable),
            cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(data + 1), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaHostUnregister(data + 8192), cudaSuccess);
  SetPinLimit(8192);
  EXPECT_EQ(cudaHostRegister(data + 8192, 4096, cudaHostRegisterPortable),
            cudaErrorMemoryAllocation);
  SetPinLimit(size_t{1} << 40);
  EXPECT_EQ(cudaHostUnregister(data), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  std::free(page);
}

// --- Graphs

TEST_F(StreamsTest, GraphsDoWhatWasCaptured) {
  for (const Timing timing : {Timing::kAtOnce, Timing::kLateKernels}) {
    SetTiming(timing);
    data_.Write({1, 2, 3});
    ASSERT_EQ(
        cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal),
        cudaSuccess);
    Add();
    Add();
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(compute_, &graph), cudaSuccess);
    EXPECT_THAT(data_.Read(), ElementsAre(1, 2, 3)) << "nothing was done";
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    emulation::TakeGraphLaunches();
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(cudaGraphLaunch(exec, compute_), cudaSuccess);
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(compute_), cudaSuccess);
    EXPECT_THAT(data_.Read(), ElementsAre(5, 6, 7));
    EXPECT_EQ(emulation::TakeGraphLaunches(), 2);
    EXPECT_EQ(emulation::LiveGraphs(), 0);
  }
}

TEST_F(StreamsTest, WaitingBreaksACapture) {
  void* memory = nullptr;
  const std::vector<std::function<void()>> waits = {
      [&] { cudaStreamSynchronize(compute_); },
      [&] { cudaStreamQuery(compute_); },
      [&] { cudaDeviceSynchronize(); },
      [&] { cudaMalloc(&memory, 4); },
      [&] { cudaEventRecord(event_, compute_); },
      [&] {
        int pageable = 0;
        cudaMemcpyAsync(&pageable, data_.data(), 4, cudaMemcpyDeviceToHost,
                        compute_);
      }};
  for (const auto& wait : waits) {
    ASSERT_EQ(
        cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal),
        cudaSuccess);
    Add();
    wait();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(compute_, &graph),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    (void)cudaGetLastError();
  }
  // Other streams, and other threads, do what they like.
  ASSERT_EQ(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(copies_), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal),
            cudaErrorIllegalState);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(compute_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(compute_, &graph), cudaErrorIllegalState);
  (void)cudaGetLastError();
}

}  // namespace
}  // namespace sluice
