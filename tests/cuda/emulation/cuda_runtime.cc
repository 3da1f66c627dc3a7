#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "tests/cuda/emulation/streams.h"

namespace {

constexpr int kRuntimeVersion = 12000;
constexpr size_t kDeviceBytes = size_t{1} << 30;
constexpr size_t kDeviceAlignment = 256;
constexpr size_t kHostPage = 4096;
constexpr int kPlainShared = 48 << 10;
int MostShared() {
  const int capability = sluice::emulation::Capability();
  return (capability >= 90 ? 227 : capability >= 80 ? 163 : 64) << 10;
}

// The memory that the process has of the device, and what else it set there.
struct Device {
  sluice::Mutex mutex;
  std::map<uintptr_t, size_t> memory ABSL_GUARDED_BY(mutex);
  std::map<uintptr_t, size_t> pinned ABSL_GUARDED_BY(mutex);
  size_t pin_limit ABSL_GUARDED_BY(mutex) = std::numeric_limits<size_t>::max();
  size_t used_bytes ABSL_GUARDED_BY(mutex) = 0;
  size_t pageable_bytes ABSL_GUARDED_BY(mutex) = 0;
  std::map<const void*, int> shared_limits ABSL_GUARDED_BY(mutex);
};

Device& TheDevice() {
  static Device device;
  return device;
}

// Memory of a device begins as NaN. Large pieces are mapped from a file of such
// bytes, so that only what is written costs a page; AddressSanitizer knows the
// ends of allocated memory alone.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMapsLargePieces = false;
#else
constexpr bool kMapsLargePieces = true;
#endif
constexpr size_t kMapBytes = size_t{16} << 20;

int FileOfNaN() {
  static const int file = [] {
    const int made = memfd_create("device", MFD_CLOEXEC);
    const std::vector<char> bytes(kMapBytes, '\xff');
    if (made < 0 || write(made, bytes.data(), kMapBytes) !=
                        static_cast<ssize_t>(kMapBytes)) {
      std::abort();
    }
    return made;
  }();
  return file;
}

bool IsMapped(size_t bytes) { return kMapsLargePieces && bytes >= kMapBytes; }

void* AllocateDevice(size_t bytes) {
  void* data = nullptr;
  if (!IsMapped(bytes)) {
    if (posix_memalign(&data, kDeviceAlignment, bytes) != 0) return nullptr;
    return std::memset(data, 0xff, bytes);
  }
  data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  for (size_t at = 0; at < bytes; at += kMapBytes) {
    if (mmap(static_cast<char*>(data) + at, std::min(kMapBytes, bytes - at),
             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, FileOfNaN(),
             0) == MAP_FAILED) {
      munmap(data, bytes);
      return nullptr;
    }
  }
  return data;
}

void FreeDevice(void* data, size_t bytes) {
  if (IsMapped(bytes)) {
    munmap(data, bytes);
  } else {
    std::free(data);
  }
}

thread_local std::string launch_failure;

using sluice::emulation::LostError;
using sluice::emulation::Record;

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

bool Overlaps(const std::map<uintptr_t, size_t>& ranges, uintptr_t begin,
              uintptr_t end) {
  const auto it = ranges.lower_bound(end);
  if (it == ranges.begin()) return false;
  const auto before = std::prev(it);
  return before->first + before->second > begin;
}

bool IsPinned(Device& device, const void* data, size_t bytes)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device.mutex) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  auto it = device.pinned.upper_bound(begin);
  if (it == device.pinned.begin()) return false;
  --it;
  return begin + bytes <= it->first + it->second;
}

size_t PinnedBytes(Device& device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(device.mutex) {
  size_t sum = 0;
  for (const auto& [begin, bytes] : device.pinned) sum += bytes;
  return sum;
}

// Whether a copy of some kind may go from here to there.
bool IsCopy(Device& device, const void* to, const void* from, size_t bytes,
            cudaMemcpyKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(device.mutex) {
  const Place to_place = PlaceOf(device, to, bytes);
  const Place from_place = PlaceOf(device, from, bytes);
  if (to_place == Place::kBoth || from_place == Place::kBoth) return false;
  if (kind == cudaMemcpyDefault) return true;
  const bool to_device =
      kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device =
      kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return to_device == (to_place == Place::kDevice) &&
         from_device == (from_place == Place::kDevice);
}

bool InRange(unsigned n, unsigned most) { return n > 0 && n <= most; }

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  if (error != cudaSuccess && error == LostError()) {
    thread_local std::string text;
    text = sluice::emulation::LostText();
    if (!text.empty()) return text.c_str();
  }
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
    case cudaErrorECCUncorrectable:
      return "uncorrectable ECC error encountered";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    case cudaErrorLaunchFailure:
      return launch_failure.c_str();
    case cudaErrorIllegalState:
      return "the operation cannot be performed in the present state";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      break;
  }
  return "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = sluice::emulation::DriverVersion();
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (sluice::emulation::DriverVersion() < kRuntimeVersion) {
    *count = 0;
    return Record(cudaErrorInsufficientDriver);
  }
  *count = sluice::emulation::DeviceCount();
  return *count > 0 ? cudaSuccess : Record(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  return Record(sluice::emulation::SetCurrentDevice(device));
}

cudaError_t cudaGetDevice(int* device) {
  *device = sluice::emulation::CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= sluice::emulation::DeviceCount()) {
    return Record(cudaErrorInvalidDevice);
  }
  *properties = {};
  properties->pciBusID = device + 1;
  std::snprintf(properties->name, sizeof properties->name, "emulated device");
  properties->totalGlobalMem = kDeviceBytes;
  properties->sharedMemPerBlock = kPlainShared;
  properties->sharedMemPerBlockOptin = MostShared();
  properties->major = sluice::emulation::Capability() / 10;
  properties->minor = sluice::emulation::Capability() % 10;
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
      *value = MostShared();
      return cudaSuccess;
  }
  return Record(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize() {
  const cudaError_t error = sluice::emulation::BreakCaptureHere();
  if (error != cudaSuccess) return error;
  return sluice::emulation::FinishDevice();
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (LostError() != cudaSuccess) return Record(LostError());
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  *free_bytes = kDeviceBytes - device.used_bytes;
  *total_bytes = kDeviceBytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = nullptr;
  const cudaError_t error = sluice::emulation::BreakCaptureHere();
  if (error != cudaSuccess) return error;
  if (LostError() != cudaSuccess) return Record(LostError());
  if (bytes == 0) return cudaSuccess;
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (bytes > kDeviceBytes - device.used_bytes ||
      (*data = AllocateDevice(bytes)) == nullptr) {
    return Record(cudaErrorMemoryAllocation);
  }
  device.used_bytes += bytes;
  device.memory[reinterpret_cast<uintptr_t>(*data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  const cudaError_t error = sluice::emulation::BreakCaptureHere();
  if (error != cudaSuccess) return error;
  sluice::emulation::FinishDevice();
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  const auto it = device.memory.find(reinterpret_cast<uintptr_t>(data));
  if (it == device.memory.end()) return Record(cudaErrorInvalidValue);
  device.used_bytes -= it->second;
  FreeDevice(data, it->second);
  device.memory.erase(it);
  return Record(LostError());
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = nullptr;
  if (LostError() != cudaSuccess) return Record(LostError());
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (bytes >
          device.pin_limit - std::min(device.pin_limit, PinnedBytes(device)) ||
      posix_memalign(data, kHostPage, bytes) != 0) {
    *data = nullptr;
    return Record(cudaErrorMemoryAllocation);
  }
  device.pinned[reinterpret_cast<uintptr_t>(*data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  sluice::emulation::FinishDevice();
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (device.pinned.erase(reinterpret_cast<uintptr_t>(data)) == 0) {
    return Record(cudaErrorInvalidValue);
  }
  std::free(data);
  return Record(LostError());
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  if (LostError() != cudaSuccess) return Record(LostError());
  if (data == nullptr || bytes == 0) return Record(cudaErrorInvalidValue);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (Overlaps(device.pinned, begin / kHostPage * kHostPage,
               (begin + bytes + kHostPage - 1) / kHostPage * kHostPage)) {
    return Record(cudaErrorHostMemoryAlreadyRegistered);
  }
  if (PlaceOf(device, data, bytes) != Place::kHost) {
    return Record(cudaErrorInvalidValue);
  }
  if (bytes >
      device.pin_limit - std::min(device.pin_limit, PinnedBytes(device))) {
    return Record(cudaErrorMemoryAllocation);
  }
  device.pinned[begin] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) {
  Device& device = TheDevice();
  sluice::MutexLock lock(&device.mutex);
  if (device.pinned.erase(reinterpret_cast<uintptr_t>(data)) == 0) {
    return Record(cudaErrorHostMemoryNotRegistered);
  }
  return Record(LostError());
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  const cudaError_t error = sluice::emulation::FinishStreamZero();
  if (error != cudaSuccess || bytes == 0) return error;
  {
    Device& device = TheDevice();
    sluice::MutexLock lock(&device.mutex);
    if (!IsCopy(device, to, from, bytes, kind)) {
      return Record(cudaErrorInvalidValue);
    }
  }
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  using sluice::emulation::Enqueue;
  using sluice::emulation::WorkKind;
  if (!sluice::emulation::IsStream(stream)) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  if (LostError() != cudaSuccess) return Record(LostError());
  if (bytes == 0) return cudaSuccess;
  bool from_pageable = false;
  bool to_pageable = false;
  {
    Device& device = TheDevice();
    sluice::MutexLock lock(&device.mutex);
    if (!IsCopy(device, to, from, bytes, kind)) {
      return Record(cudaErrorInvalidValue);
    }
    from_pageable = PlaceOf(device, from, bytes) == Place::kHost &&
                    !IsPinned(device, from, bytes);
    to_pageable = PlaceOf(device, to, bytes) == Place::kHost &&
                  !IsPinned(device, to, bytes);
    if (from_pageable || to_pageable) device.pageable_bytes += bytes;
  }
  if (from_pageable || to_pageable) cudaStreamSynchronize(stream);
  if (from_pageable) {
    const auto* data = static_cast<const char*>(from);
    return Enqueue(stream, WorkKind::kCopy,
                   [to, copy = std::vector<char>(data, data + bytes)] {
                     std::memcpy(to, copy.data(), copy.size());
                     return cudaSuccess;
                   });
  }
  const cudaError_t error = Enqueue(stream, WorkKind::kCopy, [=] {
    std::memmove(to, from, bytes);
    return cudaSuccess;
  });
  return error == cudaSuccess && to_pageable ? cudaStreamSynchronize(stream)
                                             : error;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                              size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) {
    return Record(cudaErrorInvalidValue);
  }
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = cudaMemcpyAsync(
        static_cast<char*>(to) + row * to_pitch,
        static_cast<const char*>(from) + row * from_pitch, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t stream) {
  if (!sluice::emulation::IsStream(stream)) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  if (LostError() != cudaSuccess) return Record(LostError());
  if (bytes == 0) return cudaSuccess;
  {
    Device& device = TheDevice();
    sluice::MutexLock lock(&device.mutex);
    if (PlaceOf(device, to, bytes) != Place::kDevice) {
      return Record(cudaErrorInvalidValue);
    }
  }
  return sluice::emulation::Enqueue(stream,
                                    sluice::emulation::WorkKind::kKernel, [=] {
                                      std::memset(to, value, bytes);
                                      return cudaSuccess;
                                    });
}

namespace sluice::emulation {

cudaError_t SetSharedLimit(const void* kernel, int bytes) {
  if (bytes < 0 || bytes > MostShared()) return Record(cudaErrorInvalidValue);
  Device& device = TheDevice();
  MutexLock lock(&device.mutex);
  device.shared_limits[kernel] = bytes;
  return cudaSuccess;
}

bool IsDeviceMemory(const void* data, size_t bytes) {
  Device& device = TheDevice();
  MutexLock lock(&device.mutex);
  return PlaceOf(device, data, bytes) == Place::kDevice;
}

void SetPinLimit(size_t bytes) {
  Device& device = TheDevice();
  MutexLock lock(&device.mutex);
  device.pin_limit = bytes;
}

size_t PageableBytes() {
  Device& device = TheDevice();
  MutexLock lock(&device.mutex);
  return device.pageable_bytes;
}

cudaError_t LaunchGrid(const cudaLaunchConfig_t& config, const void* kernel,
                       std::function<void()> body) {
  if (LostError() != cudaSuccess) return Record(LostError());
  if (!IsStreamHere(config.stream)) {
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
  const Grid shape = {grid, block, config.dynamicSmemBytes};
  const auto run = [shape, body = std::move(body)] {
    return RunGrid(
        shape,
        [](const void* arg) {
          (*static_cast<const std::function<void()>*>(arg))();
        },
        &body);
  };
  if (CurrentTiming() == Timing::kAtOnce && !IsCapturing(config.stream)) {
    const std::string fault = run();
    if (fault.empty()) return cudaSuccess;
    launch_failure = absl::StrCat("unspecified launch failure: ", fault);
    return Record(cudaErrorLaunchFailure);
  }
  return Enqueue(config.stream, WorkKind::kKernel, [run] {
    const std::string fault = run();
    if (fault.empty()) return cudaSuccess;
    LoseDevice(cudaErrorLaunchFailure,
               absl::StrCat("unspecified launch failure: ", fault));
    return cudaErrorLaunchFailure;
  });
}

}  // namespace sluice::emulation
