#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/device_loss.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/kernels/cuda/device/launch.h"
#include "tests/cuda/support/device_array.h"

// Tests that the emulation does what CUDA's documentation says, and sees what
// it promises to see.

namespace sluice {
namespace {

using emulation::Order;
using emulation::SetOrder;
using testing::HasSubstr;

constexpr unsigned kAll = 0xffffffffu;

// --- Threads -----------------------------------------------------------------

__global__ void NumberThreads(int* out) {
  const int block =
      blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread =
      threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  atomicAdd(&out[block * threads + thread], block * threads + thread + 1);
}

TEST(EmulationTest, EveryThreadOfEveryBlockRunsOnce) {
  const DeviceArray<int> out(std::vector<int>(2 * 3 * 2 * 60, 0));
  ASSERT_TRUE(Launch(&NumberThreads, dim3(2, 3, 2), dim3(5, 4, 3), 0, nullptr,
                     out.data())
                  .ok());
  const std::vector<int> numbers = out.Read();
  for (size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(numbers[i], static_cast<int>(i) + 1);
  }
}

// Each round reads what the neighbour wrote in the one before.
__global__ void PassAround(int rounds, int* out) {
  SLUICE_DYNAMIC_SHARED(int, values);
  const int n = static_cast<int>(blockDim.x);
  const int me = static_cast<int>(threadIdx.x);
  values[me] = me;
  for (int i = 0; i < rounds; ++i) {
    __syncthreads();
    const int next = values[(me + 1) % n];
    __syncthreads();
    values[me] = next;
  }
  out[me] = values[me];
}

TEST(EmulationTest, BarriersOrderSharedMemory) {
  for (const Order order :
       {Order::kForward, Order::kBackward, Order::kShuffled}) {
    SetOrder(order);
    for (const int n : {1, 31, 32, 33, 300, 1024}) {
      const DeviceArray<int> out(n);
      ASSERT_TRUE(
          Launch(&PassAround, 1, n, n * sizeof(int), nullptr, 7, out.data())
              .ok());
      const std::vector<int> values = out.Read();
      for (int i = 0; i < n; ++i) ASSERT_EQ(values[i], (i + 7) % n);
    }
  }
  SetOrder(Order::kForward);
}

__global__ void CountVotes(int* out) {
  const int me = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(me % 3 == 0);
  const int all = __syncthreads_and(me >= 0);
  const int not_all = __syncthreads_and(me != 7);
  const int any = __syncthreads_or(me == 7);
  const int none = __syncthreads_or(me < 0);
  out[me] = count * 16 + all * 8 + not_all * 4 + any * 2 + none;
}

TEST(EmulationTest, BarriersCount) {
  const DeviceArray<int> out(70);
  ASSERT_TRUE(Launch(&CountVotes, 1, 70, 0, nullptr, out.data()).ok());
  EXPECT_THAT(out.Read(), testing::Each(24 * 16 + 8 + 2));
}

// --- Warps
// ----------------------------------------------------------------------

__global__ void ShuffleAll(int width, int by, float* out) {
  const int me = static_cast<int>(threadIdx.x);
  const float mine = 100.0f + static_cast<float>(me);
  float* to = out + me * 4;
  to[0] = __shfl_sync(kAll, mine, by, width);
  to[1] = __shfl_up_sync(kAll, mine, by, width);
  to[2] = __shfl_down_sync(kAll, mine, by, width);
  to[3] = __shfl_xor_sync(kAll, mine, by, width);
}

TEST(EmulationTest, ShufflesTakeWhatTheDocumentationSays) {
  for (const int width : {1, 2, 4, 8, 16, 32}) {
    for (int by = 0; by < width; ++by) {
      const DeviceArray<float> out(64 * 4);
      ASSERT_TRUE(
          Launch(&ShuffleAll, 1, 64, 0, nullptr, width, by, out.data()).ok());
      const std::vector<float> got = out.Read();
      for (int i = 0; i < 64; ++i) {
        const int first = i / width * width;
        const int in = i % width;
        const int want[] = {first + by, in >= by ? i - by : i,
                            in + by < width ? i + by : i, i ^ by};
        for (int j = 0; j < 4; ++j) {
          ASSERT_EQ(got[i * 4 + j], 100.0f + static_cast<float>(want[j]))
              << width << " " << by << " " << i << " " << j;
        }
      }
    }
  }
}

__global__ void Votes(unsigned* out) {
  const int me = static_cast<int>(threadIdx.x);
  // The two halves of the warp vote each by itself.
  const unsigned half = me < 16 ? 0xffffu : 0xffff0000u;
  unsigned value = __ballot_sync(half, me % 2);
  if (me < 16) value ^= __ballot_sync(half, me == 3) << 16;
  __syncwarp();
  value += __any_sync(kAll, me == 31) != 0 && __all_sync(kAll, me < 32) != 0 &&
           __any_sync(kAll, me == 32) == 0 && __all_sync(kAll, me < 31) == 0;
  out[me] = value;
}

TEST(EmulationTest, WarpsVote) {
  const DeviceArray<unsigned> out(32);
  ASSERT_TRUE(Launch(&Votes, 1, 32, 0, nullptr, out.data()).ok());
  const std::vector<unsigned> votes = out.Read();
  for (int i = 0; i < 32; ++i) {
    ASSERT_EQ(votes[i], (i < 16 ? 0x0008aaaau : 0xaaaa0000u) + 1);
  }
}

// --- Errors ------------------------------------------------------------------

std::string FaultOf(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  return std::string(status.message());
}

__global__ void SkipBarrier(int who) {
  if (static_cast<int>(threadIdx.x) == who) return;
  __syncthreads();
}

TEST(EmulationTest, ABarrierThatAThreadNeverReaches) {
  EXPECT_THAT(
      FaultOf(Launch(&SkipBarrier, 3, 64, 0, nullptr, 40)),
      HasSubstr("block (0,0,0), nothing can go on: 1 of 64 threads have "
                "returned, thread (0,0,0) waits at __syncthreads"));
  // The failure does no harm to the next launch.
  EXPECT_TRUE(Launch(&SkipBarrier, 3, 64, 0, nullptr, 64).ok());
}

__global__ void MixBarriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads_or(1);
  }
}

TEST(EmulationTest, BarriersThatAreNotTheSame) {
  EXPECT_THAT(FaultOf(Launch(&MixBarriers, 1, 64, 0, nullptr)),
              HasSubstr("thread (32,0,0): comes to __syncthreads_or where "
                        "others came to __syncthreads"));
}

__global__ void SkipShuffle(int who, bool wait) {
  const int me = static_cast<int>(threadIdx.x);
  if (me == who) {
    if (wait) __syncthreads();
    return;
  }
  __shfl_xor_sync(kAll, me, 1);
  if (wait) __syncthreads();
}

TEST(EmulationTest, AShuffleWithLanesMissing) {
  EXPECT_THAT(FaultOf(Launch(&SkipShuffle, 1, 32, 0, nullptr, 0, false)),
              HasSubstr("thread (1,0,0): __shfl_xor_sync with mask "
                        "0xffffffff, of which lanes 0x1 have returned"));
  EXPECT_THAT(FaultOf(Launch(&SkipShuffle, 1, 32, 0, nullptr, 9, false)),
              HasSubstr("thread (9,0,0) returned while others of its warp wait "
                        "for it at __shfl_xor_sync"));
  EXPECT_THAT(FaultOf(Launch(&SkipShuffle, 1, 32, 0, nullptr, 9, true)),
              HasSubstr("thread (0,0,0) waits at __shfl_xor_sync, thread "
                        "(9,0,0) waits at __syncthreads"));
  // There are no lanes 16 to 31.
  EXPECT_THAT(FaultOf(Launch(&SkipShuffle, 1, 16, 0, nullptr, 99, false)),
              HasSubstr("in a warp that has lanes 0xffff"));
}

__global__ void MixShuffles() {
  if (threadIdx.x < 4) {
    __shfl_xor_sync(kAll, 1, 1);
  } else {
    __shfl_down_sync(kAll, 1, 1);
  }
}

__global__ void ShuffleByMask(unsigned mask, int from) {
  if (threadIdx.x < 4) __shfl_sync(mask, 1, from);
}

TEST(EmulationTest, ShufflesThatDoNotMatch) {
  EXPECT_THAT(FaultOf(Launch(&MixShuffles, 1, 32, 0, nullptr)),
              HasSubstr("thread (4,0,0): comes to __shfl_down_sync with mask "
                        "0xffffffff where others of its warp came to "
                        "__shfl_xor_sync"));
  EXPECT_TRUE(Launch(&ShuffleByMask, 1, 32, 0, nullptr, 0xfu, 3).ok());
  EXPECT_THAT(FaultOf(Launch(&ShuffleByMask, 1, 32, 0, nullptr, 0xfu, 4)),
              HasSubstr("takes a value of lane 4, which is not in the mask"));
  EXPECT_THAT(FaultOf(Launch(&ShuffleByMask, 1, 32, 0, nullptr, 0x7u, 0)),
              HasSubstr("in which its own lane 3 is not"));
}

// Reads the neighbour's value without a barrier.
__global__ void ForgetBarrier(int* out) {
  SLUICE_DYNAMIC_SHARED(int, values);
  const int me = static_cast<int>(threadIdx.x);
  values[me] = me;
  out[me] = values[(me + 1) % blockDim.x];
}

TEST(EmulationTest, AMissingBarrierShowsInAnotherOrder) {
  std::vector<std::vector<int>> results;
  for (const Order order :
       {Order::kForward, Order::kBackward, Order::kShuffled}) {
    SetOrder(order);
    const DeviceArray<int> out(64);
    ASSERT_TRUE(Launch(&ForgetBarrier, 1, 64, 256, nullptr, out.data()).ok());
    results.push_back(out.Read());
  }
  SetOrder(Order::kForward);
  EXPECT_NE(results[0], results[1]);
  EXPECT_NE(results[0], results[2]);
}

__global__ void ReadUnwritten(float* out) {
  SLUICE_DYNAMIC_SHARED(float, values);
  out[0] = values[3];
}

TEST(EmulationTest, WhatWasNeverWrittenIsNaN) {
  const DeviceArray<float> out(2);
  ASSERT_TRUE(Launch(&ReadUnwritten, 1, 1, 16, nullptr, out.data()).ok());
  for (const float x : out.Read()) EXPECT_TRUE(std::isnan(x));
}

#ifdef __SANITIZE_ADDRESS__
__global__ void WriteAt(int* global, int at, int dynamic, int fixed) {
  SLUICE_DYNAMIC_SHARED(int, values);
  __shared__ int array[5];
  values[dynamic] = 1;
  array[fixed] = values[dynamic];
  global[at] = array[fixed];
}

TEST(EmulationDeathTest, WhatLiesBeyondMemory) {
  const DeviceArray<int> out(3);
  EXPECT_TRUE(Launch(&WriteAt, 1, 1, 12, nullptr, out.data(), 2, 2, 4).ok());
  EXPECT_DEATH((void)Launch(&WriteAt, 1, 1, 12, nullptr, out.data(), 3, 2, 4),
               "heap-buffer-overflow");
  EXPECT_DEATH((void)Launch(&WriteAt, 1, 1, 12, nullptr, out.data(), 2, 3, 4),
               "heap-buffer-overflow");
  EXPECT_DEATH((void)Launch(&WriteAt, 1, 1, 12, nullptr, out.data(), 2, 2, 5),
               "global-buffer-overflow|index 5 out of bounds");
}
#endif

// --- The host's side
// ----------------------------------------------------------------

__global__ void Nothing() {}

TEST(LaunchTest, LimitsAreTheDevices) {
  EXPECT_TRUE(Launch(&Nothing, 1, 1024, 227 << 10, nullptr).ok());
  EXPECT_TRUE(Launch(&Nothing, dim3(1, 2, 0), 0, 0, nullptr).ok());
  const absl::Status threads = Launch(&Nothing, 7, 1025, 5, nullptr);
  EXPECT_EQ(threads.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(threads.message(),
            "launching 7x1x1 blocks of 1025x1x1 threads with 5 bytes of shared "
            "memory: CUDA: invalid configuration argument");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(Launch(&Nothing, 1, 32, (227 << 10) + 1, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Launch(&Nothing, dim3(1, 65536), 32, 0, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LaunchTest, ErrorsHaveTheirCodes) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "resting").ok());
  EXPECT_EQ(CudaStatus(cudaErrorMemoryAllocation, "a").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CudaStatus(cudaErrorNoDevice, "a").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CudaStatus(cudaErrorInsufficientDriver, "a").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CudaStatus(cudaErrorInvalidValue, "a").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CudaStatus(cudaErrorInvalidResourceHandle, "a").code(),
            absl::StatusCode::kInternal);
  EXPECT_FALSE(IsDeviceLoss(CudaStatus(cudaErrorInvalidResourceHandle, "a")));
  for (const cudaError_t error :
       {cudaErrorIllegalAddress, cudaErrorLaunchFailure,
        cudaErrorECCUncorrectable, static_cast<cudaError_t>(721)}) {
    const absl::Status lost = CudaStatus(error, "a");
    EXPECT_EQ(lost.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(IsDeviceLoss(lost)) << lost;
  }
}

TEST(RuntimeTest, CopiesKnowHostFromDevice) {
  const std::vector<int> host = {1, 2, 3};
  std::vector<int> back(3);
  const DeviceArray<int> device(3);
  const auto copy = [](void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    EXPECT_EQ(cudaGetLastError(), error);
    return error;
  };
  EXPECT_EQ(copy(device.data(), host.data(), 12, cudaMemcpyHostToDevice),
            cudaSuccess);
  EXPECT_EQ(copy(back.data(), device.data(), 12, cudaMemcpyDefault),
            cudaSuccess);
  EXPECT_EQ(back, host);
  EXPECT_EQ(copy(back.data(), host.data(), 12, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(copy(device.data(), host.data(), 12, cudaMemcpyDeviceToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(copy(device.data() + 1, host.data(), 12, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device.data(), 0, 8), cudaSuccess);
  EXPECT_EQ(cudaMemset(back.data(), 0, 8), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_THAT(device.Read(), testing::ElementsAre(0, 0, 3));
}

TEST(RuntimeTest, MemoryComesToAnEnd) {
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, free_bytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(&data), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(RuntimeTest, HandlesThatAreGoneAreRefused) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            cudaSuccess);
  int ran = 0;
  EXPECT_EQ(cudaLaunchHostFunc(
                stream, [](void* data) { ++*static_cast<int*>(data); }, &ran),
            cudaSuccess);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(Launch(&Nothing, 1, 1, 0, stream).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(NumbersTest, HalvesRoundToNearestEven) {
  EXPECT_EQ(__half2float(__float2half(1.0f / 3)), 0.333251953125f);
  EXPECT_EQ(__half_as_ushort(__float2half(65520.0f)), 0x7c00);
  EXPECT_EQ(__half2float(__ushort_as_half(1)), 0x1p-24f);
  EXPECT_EQ(__bfloat162float(__float2bfloat16(1.00390625f)), 1.0f);
  EXPECT_EQ(__bfloat162float(__float2bfloat16(1.01171875f)), 1.015625f);
  EXPECT_EQ(__float2int_rn(2.5f), 2);
  EXPECT_EQ(__float2int_rn(-3.5f), -4);
  EXPECT_EQ(__dp4a(0x01ff7f80, 0x02030405, 7), 7 + 2 - 3 + 127 * 4 - 128 * 5);
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x7b50), 0x77005500u);
}

}  // namespace
}  // namespace sluice
