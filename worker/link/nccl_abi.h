#pragma once

#include <cstddef>

// The part of the C interfaces of NCCL (nccl.h, since 2.14) and of the CUDA
// driver (cuda.h, since 11.0) that links use, declared here: both libraries are
// loaded at run time, and a build needs neither header. nccl_abi_test.cc
// compares with the real ones where they are installed.
//
// It is the driver's interface, not the runtime's: every driver has
// libcuda.so.1, while libcudart's name changes with the toolkit. Both share a
// device's primary context, so that addresses and streams are the same.

namespace sluice::nccl {

inline constexpr int kOldestVersion = 21400;  // the first without blocking
inline constexpr size_t kUniqueIdBytes = 128;

struct UniqueId {
  char internal[kUniqueIdBytes];
};

struct Comm;    // ncclComm_t points to it
struct Stream;  // CUstream and cudaStream_t point to it

// values of ncclResult_t
inline constexpr int kSuccess = 0;
inline constexpr int kInvalidArgument = 4;
inline constexpr int kInvalidUsage = 5;
inline constexpr int kRemoteError = 6;
inline constexpr int kInProgress = 7;
// a value of ncclDataType_t
inline constexpr int kUint8 = 1;

// ncclConfig_t as of 2.14. Later versions have more members, and take their
// defaults when `version` says that these are not there.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kOldestVersion;
  int blocking = 0;
  int padding = 0;
};

struct Api {
  int (*GetVersion)(int* version);
  int (*GetUniqueId)(UniqueId* id);
  int (*CommInitRankConfig)(Comm** comm, int ranks, UniqueId id, int rank,
                            Config* config);
  int (*CommAbort)(Comm* comm);
  int (*CommGetAsyncError)(Comm* comm, int* error);
  int (*Send)(const void* data, size_t count, int type, int peer, Comm* comm,
              Stream* stream);
  int (*Recv)(void* data, size_t count, int type, int peer, Comm* comm,
              Stream* stream);
  int (*AllGather)(const void* data, void* all, size_t count, int type,
                   Comm* comm, Stream* stream);
  const char* (*GetErrorString)(int result);
};

}  // namespace sluice::nccl

namespace sluice::cuda {

using nccl::Stream;
struct Context;                            // CUcontext
struct Event;                              // CUevent
using DeviceAddress = unsigned long long;  // CUdeviceptr

struct Uuid {
  char bytes[16];
};

// values of CUresult
inline constexpr int kSuccess = 0;
inline constexpr int kNotReady = 600;

// CU_POINTER_ATTRIBUTE_MEMORY_TYPE, and its value for pinned memory
inline constexpr int kPointerMemoryType = 2;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;

// CUDA_MEMCPY2D
struct Copy2D {
  size_t source_x_bytes = 0, source_y = 0;
  unsigned source_type = 0;
  const void* source_host = nullptr;
  DeviceAddress source_device = 0;
  void* source_array = nullptr;
  size_t source_pitch = 0;
  size_t to_x_bytes = 0, to_y = 0;
  unsigned to_type = 0;
  void* to_host = nullptr;
  DeviceAddress to_device = 0;
  void* to_array = nullptr;
  size_t to_pitch = 0;
  size_t width_bytes = 0, height = 0;
};

struct Api {
  int (*Init)(unsigned flags);
  int (*DeviceGetCount)(int* count);
  int (*DeviceGet)(int* device, int ordinal);
  int (*DeviceGetUuid)(Uuid* uuid, int device);
  int (*DevicePrimaryCtxRetain)(Context** context, int device);
  int (*DevicePrimaryCtxRelease)(int device);
  int (*CtxSetCurrent)(Context* context);
  int (*MemAlloc)(DeviceAddress* address, size_t bytes);
  int (*MemFree)(DeviceAddress address);
  int (*MemcpyHtoDAsync)(DeviceAddress to, const void* from, size_t bytes,
                         Stream* stream);
  int (*MemcpyDtoHAsync)(void* to, DeviceAddress from, size_t bytes,
                         Stream* stream);
  int (*Memcpy2DAsync)(const Copy2D* copy, Stream* stream);
  int (*StreamCreate)(Stream** stream, unsigned flags);
  int (*StreamDestroy)(Stream* stream);
  int (*StreamSynchronize)(Stream* stream);
  int (*StreamWaitEvent)(Stream* stream, Event* event, unsigned flags);
  int (*EventCreate)(Event** event, unsigned flags);
  int (*EventDestroy)(Event* event);
  int (*EventRecord)(Event* event, Stream* stream);
  int (*EventQuery)(Event* event);
  // Fails for memory that the driver does not know.
  int (*PointerGetAttribute)(void* out, int attribute, DeviceAddress address);
  int (*GetErrorString)(int result, const char** text);
};

}  // namespace sluice::cuda
