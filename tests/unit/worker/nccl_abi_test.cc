#include "worker/link/nccl_abi.h"

#include "gtest/gtest.h"

// Compares with the real headers and library, where they are installed.
#if __has_include(<nccl.h>) && __has_include(<cuda.h>)
#include <cuda.h>
#include <nccl.h>

#include <type_traits>
#define SLUICE_HAS_REAL_HEADERS
#endif

namespace sluice {
namespace {

#ifdef SLUICE_HAS_REAL_HEADERS

// The type as which a C type is passed: enums as int, pointers as pointers.
template <typename T>
struct Passed {
  using type = T;
};
template <typename T>
requires std::is_enum_v<T>
struct Passed<T> {
  using type = int;
};
template <typename T>
struct Passed<T*> {
  using type = void*;
};
// Structures are compared by their size.
template <size_t kBytes>
struct Bytes {};
template <typename T>
requires std::is_class_v<T>
struct Passed<T> {
  using type = Bytes<sizeof(T)>;
};
template <typename R, typename... A>
struct Passed<R (*)(A...)> {
  using type = typename Passed<R>::type (*)(typename Passed<A>::type...);
};
// The same number of arguments, each passed the same way.
template <typename Real, typename Ours>
constexpr bool kSame =
    std::is_same_v<typename Passed<Real>::type, typename Passed<Ours>::type>;

#define EXPECT_SAME(real, ours) \
  static_assert(kSame<decltype(&real), decltype(ours)>)

EXPECT_SAME(ncclGetVersion, nccl::Api::GetVersion);
EXPECT_SAME(ncclGetUniqueId, nccl::Api::GetUniqueId);
EXPECT_SAME(ncclCommInitRankConfig, nccl::Api::CommInitRankConfig);
EXPECT_SAME(ncclCommAbort, nccl::Api::CommAbort);
EXPECT_SAME(ncclCommGetAsyncError, nccl::Api::CommGetAsyncError);
EXPECT_SAME(ncclSend, nccl::Api::Send);
EXPECT_SAME(ncclRecv, nccl::Api::Recv);
EXPECT_SAME(ncclAllGather, nccl::Api::AllGather);
EXPECT_SAME(ncclGetErrorString, nccl::Api::GetErrorString);
EXPECT_SAME(cuInit, cuda::Api::Init);
EXPECT_SAME(cuDeviceGetCount, cuda::Api::DeviceGetCount);
EXPECT_SAME(cuDeviceGet, cuda::Api::DeviceGet);
EXPECT_SAME(cuDeviceGetUuid, cuda::Api::DeviceGetUuid);
EXPECT_SAME(cuDevicePrimaryCtxRetain, cuda::Api::DevicePrimaryCtxRetain);
EXPECT_SAME(cuDevicePrimaryCtxRelease, cuda::Api::DevicePrimaryCtxRelease);
EXPECT_SAME(cuCtxSetCurrent, cuda::Api::CtxSetCurrent);
EXPECT_SAME(cuMemAlloc, cuda::Api::MemAlloc);
EXPECT_SAME(cuMemFree, cuda::Api::MemFree);
EXPECT_SAME(cuMemcpyHtoDAsync, cuda::Api::MemcpyHtoDAsync);
EXPECT_SAME(cuMemcpyDtoHAsync, cuda::Api::MemcpyDtoHAsync);
EXPECT_SAME(cuStreamCreate, cuda::Api::StreamCreate);
EXPECT_SAME(cuStreamDestroy, cuda::Api::StreamDestroy);
EXPECT_SAME(cuStreamSynchronize, cuda::Api::StreamSynchronize);
EXPECT_SAME(cuStreamWaitEvent, cuda::Api::StreamWaitEvent);
EXPECT_SAME(cuEventCreate, cuda::Api::EventCreate);
EXPECT_SAME(cuEventDestroy, cuda::Api::EventDestroy);
EXPECT_SAME(cuEventRecord, cuda::Api::EventRecord);
EXPECT_SAME(cuEventQuery, cuda::Api::EventQuery);
EXPECT_SAME(cuPointerGetAttribute, cuda::Api::PointerGetAttribute);
static_assert(cuda::kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(cuda::kMemoryTypeHost == CU_MEMORYTYPE_HOST);
EXPECT_SAME(cuGetErrorString, cuda::Api::GetErrorString);

TEST(NcclAbiTest, ValuesAreThoseOfTheRealHeaders) {
  EXPECT_EQ(nccl::kSuccess, ncclSuccess);
  EXPECT_EQ(nccl::kInvalidArgument, ncclInvalidArgument);
  EXPECT_EQ(nccl::kInvalidUsage, ncclInvalidUsage);
  EXPECT_EQ(nccl::kRemoteError, ncclRemoteError);
  EXPECT_EQ(nccl::kInProgress, ncclInProgress);
  EXPECT_EQ(nccl::kUint8, ncclUint8);
  EXPECT_EQ(nccl::kUniqueIdBytes, size_t{NCCL_UNIQUE_ID_BYTES});
  EXPECT_EQ(nccl::kOldestVersion, NCCL_VERSION(2, 14, 0));
  const ncclConfig_t real = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(nccl::Config().magic, real.magic);
  EXPECT_EQ(offsetof(nccl::Config, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(nccl::Config, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(nccl::Config, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_LE(sizeof(nccl::Config), sizeof(ncclConfig_t));
  EXPECT_EQ(cuda::kSuccess, CUDA_SUCCESS);
  EXPECT_EQ(cuda::kNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda::kStreamNonBlocking, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(cuda::kEventDisableTiming, unsigned{CU_EVENT_DISABLE_TIMING});
}

#else

TEST(NcclAbiTest, ValuesAreThoseOfTheRealHeaders) {
  GTEST_SKIP() << "nccl.h or cuda.h is not installed";
}

#endif

}  // namespace
}  // namespace sluice
