#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/thread_annotations.h"

struct CUstream_st {};
struct CUevent_st {};

namespace {

constexpr size_t kDeviceBytes = size_t{4} << 30;
constexpr size_t kDeviceAlignment = 256;
constexpr int kPlainShared = 48 << 10;
constexpr int kMostShared =
    __CUDA_ARCH__ >= 900 ? 227 << 10 : (__CUDA_ARCH__ >= 800 ? 163 : 64) << 10;

// What the process has of the device.
struct Device {
  sluice::Mutex mutex;
  std::map<uintptr_t, size_t> memory ABSL_GUARDED_BY(mutex);
  std::map<uintptr_t, size_t> pinned ABSL_GUARDED_BY(mutex);
  size_t used_bytes ABSL_GUARDED_BY(mutex) = 0;
  std::set<cudaStream_t> streams ABSL_GUARDED_BY(mutex);
  std::set<cudaEvent_t> events ABSL_GUARDED_BY(mutex);
  std::map<const void*, int> shared_limits ABSL_GUARDED_BY(mutex);
};

Device& TheDevice() {
  static Device device;
  return device;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string launch_failure;

cudaError_t Record(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t RecordUnless(bool good, cudaError_t error) {
  return Record(good ? cudaSuccess : error);
}

// Whether all of [data, data + bytes) is the device's, or none of it.
enum class Place { kDevice, kHost, kBoth };
Place PlaceOf(Device& device, const void* data, size_t bytes)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device.mutex) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  auto it = device.memory.upper_bound(begin);
  if (it != device.memory.begin()) {
    const auto before = std::prev(it);
    const uintptr_t end = before->first + before->second;
    if (begin < end) {
      return begin + bytes <= end ? Place::kDevice : Place::kBoth;
    }
  }
  const bool reaches = it != device.memory.end() && begin + bytes > it->first;
  return reaches ? Place::kBoth : Place::kHost;
}

bool KnownStream(cudaStream_t stream) {
  if (stream == nullptr) return true;
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  return device.streams.contains(stream);
}

bool KnownEvent(cudaEvent_t event) {
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  return device.events.contains(event);
}

bool InRange(unsigned n, unsigned most) { return n > 0 && n <= most; }

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure:
      return launch_failure.c_str();
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return RecordUnless(device == 0, cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return Record(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated device");
  properties->totalGlobalMem = kDeviceBytes;
  properties->sharedMemPerBlock = kPlainShared;
  properties->sharedMemPerBlockOptin = kMostShared;
  properties->major = __CUDA_ARCH__ / 100;
  properties->minor = __CUDA_ARCH__ / 10 % 10;
  properties->multiProcessorCount = 4;
  properties->maxThreadsPerMultiProcessor = 2048;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMostShared;
      return cudaSuccess;
  }
  return Record(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  *free_bytes = kDeviceBytes - device.used_bytes;
  *total_bytes = kDeviceBytes;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  *stream = new CUstream_st;
  device.streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (device.streams.erase(stream) == 0) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return RecordUnless(KnownStream(stream), cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
  return RecordUnless(KnownStream(stream) && KnownEvent(event),
                      cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  *event = new CUevent_st;
  device.events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (device.events.erase(event) == 0) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaStreamWaitEvent(stream, event, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return RecordUnless(KnownEvent(event), cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return cudaEventQuery(event);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*body)(void* data),
                               void* data) {
  if (!KnownStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  body(data);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (bytes > kDeviceBytes - device.used_bytes ||
      posix_memalign(data, kDeviceAlignment, bytes) != 0) {
    *data = nullptr;
    return Record(cudaErrorMemoryAllocation);
  }
  std::memset(*data, 0xff, bytes);
  device.used_bytes += bytes;
  device.memory[reinterpret_cast<uintptr_t>(*data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  const auto it = device.memory.find(reinterpret_cast<uintptr_t>(data));
  if (it == device.memory.end()) return Record(cudaErrorInvalidValue);
  device.used_bytes -= it->second;
  device.memory.erase(it);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  if (posix_memalign(data, 4096, bytes) != 0) {
    *data = nullptr;
    return Record(cudaErrorMemoryAllocation);
  }
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  device.pinned[reinterpret_cast<uintptr_t>(*data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (device.pinned.erase(reinterpret_cast<uintptr_t>(data)) == 0) {
    return Record(cudaErrorInvalidValue);
  }
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  {
    Device& device = TheDevice();
    sluice::MutexLock lock(&device.mutex);
    const Place to_place = PlaceOf(device, to, bytes);
    const Place from_place = PlaceOf(device, from, bytes);
    const bool to_device =
        kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device =
        kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const bool whole = to_place != Place::kBoth && from_place != Place::kBoth;
    const bool agrees = kind == cudaMemcpyDefault ||
                        (to_device == (to_place == Place::kDevice) &&
                         from_device == (from_place == Place::kDevice));
    if (!whole || !agrees) return Record(cudaErrorInvalidValue);
  }
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  if (!KnownStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  {
    Device& device = TheDevice();
    sluice::MutexLock lock(&device.mutex);
    if (PlaceOf(device, to, bytes) != Place::kDevice) {
      return Record(cudaErrorInvalidValue);
    }
  }
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t stream) {
  if (!KnownStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  return cudaMemset(to, value, bytes);
}

namespace sluice::emulation {

cudaError_t SetSharedLimit(const void* kernel, int bytes) {
  if (bytes < 0 || bytes > kMostShared) return Record(cudaErrorInvalidValue);
  Device& device = TheDevice();
  MutexLock lock(&device.mutex);
  device.shared_limits[kernel] = bytes;
  return cudaSuccess;
}

cudaError_t LaunchGrid(const cudaLaunchConfig_t& config, const void* kernel,
                       void (*body)(const void* arg), const void* arg) {
  if (!KnownStream(config.stream)) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  if (!InRange(grid.x, 0x7fffffff) || !InRange(grid.y, 65535) ||
      !InRange(grid.z, 65535) || !InRange(block.x, 1024) ||
      !InRange(block.y, 1024) || !InRange(block.z, 64) ||
      !InRange(block.x * block.y * block.z, 1024)) {
    return Record(cudaErrorInvalidConfiguration);
  }
  {
    Device& device = TheDevice();
    MutexLock lock(&device.mutex);
    const auto limit = device.shared_limits.find(kernel);
    const int most =
        limit == device.shared_limits.end() ? kPlainShared : limit->second;
    if (config.dynamicSmemBytes >
        static_cast<size_t>(std::max(most, kPlainShared))) {
      return Record(cudaErrorInvalidValue);
    }
  }
  const std::string fault =
      RunGrid({grid, block, config.dynamicSmemBytes}, body, arg);
  if (fault.empty()) return cudaSuccess;
  launch_failure = absl::StrCat("unspecified launch failure: ", fault);
  return Record(cudaErrorLaunchFailure);
}

}  // namespace sluice::emulation
