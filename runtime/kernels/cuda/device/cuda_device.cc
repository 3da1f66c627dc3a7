#include "runtime/kernels/cuda/device/cuda_device.h"

#include <sys/resource.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/blocks.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/memory/disk/disk_file.h"

namespace sluice {
namespace {

// The least compute capability that the kernels are compiled for.
constexpr int kMinCapability = 75;
// The alignment that cudaMalloc promises; it gives larger pieces more.
constexpr size_t kMinAlignment = 256;

uint64_t MiB(uint64_t bytes) { return bytes >> 20; }

// Returns a version as "12.4".
std::string Version(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// CUDA says that the driver is too old even where there is none.
std::string WhyNoDevice(cudaError_t error) {
  int driver = 0;
  int runtime = 0;
  const bool known = cudaDriverGetVersion(&driver) == cudaSuccess &&
                     cudaRuntimeGetVersion(&runtime) == cudaSuccess;
  const absl::Status status = CudaStatus(error, "nvidia-smi may say more");
  if (known && driver == 0) return "no NVIDIA driver is installed";
  if (known && error == cudaErrorInsufficientDriver) {
    return absl::StrCat("the NVIDIA driver is for CUDA ", Version(driver),
                        ", and this build is of CUDA ", Version(runtime));
  }
  return std::string(status.message());
}

}  // namespace

absl::StatusOr<GpuFacts> ReadGpuFacts(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return FailedPrecondition(
        "there is no GPU that this process can use: ", WhyNoDevice(error),
        "; --device cpu does without");
  }
  if (ordinal < 0 || ordinal >= count) {
    return FailedPrecondition(
        "there is no GPU ", ordinal, ": this process can use ", count,
        count == 1 ? ", cuda:0" : absl::StrCat(", cuda:0 to cuda:", count - 1));
  }
  cudaDeviceProp properties;
  const std::string name = absl::StrCat("GPU ", ordinal);
  SLUICE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal), name));
  GpuFacts facts;
  facts.name = properties.name;
  facts.capability = 10 * properties.major + properties.minor;
  facts.memory_bytes = properties.totalGlobalMem;
  if (facts.capability < kMinCapability) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s, %s, is too old: it has compute capability %d.%d, and 7.5 is the "
        "least",
        name, facts.name, properties.major, properties.minor));
  }
  return facts;
}

absl::StatusOr<uint64_t> FreeGpuMemory(int ordinal) {
  SLUICE_RETURN_IF_ERROR(ReadGpuFacts(ordinal).status());
  const std::string name = absl::StrCat("GPU ", ordinal);
  SLUICE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), name));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  SLUICE_RETURN_IF_ERROR(
      CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), name));
  return free_bytes;
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(
    const CudaDeviceOptions& options) {
  return CudaDevice::Create(options);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(
    const CudaDeviceOptions& options) {
  SLUICE_RETURN_IF_ERROR(ReadGpuFacts(options.ordinal).status());
  std::unique_ptr<CudaDevice> self(new CudaDevice(options));
  SLUICE_RETURN_IF_ERROR(self->Init(options));
  return self;
}

absl::Status CudaDevice::Init(const CudaDeviceOptions& options) {
  SLUICE_RETURN_IF_ERROR(MakeCurrent());
  SLUICE_RETURN_IF_ERROR(
      Check(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking),
            "making the stream that computes"));
  SLUICE_RETURN_IF_ERROR(
      MakeArena(RoundDownToDiskBlock(options.budget->free_bytes())));
  SLUICE_ASSIGN_OR_RETURN(h2d_,
                          CopyStream::Create("h2d", &health_, options.tracer));
  SLUICE_ASSIGN_OR_RETURN(d2h_,
                          CopyStream::Create("d2h", &health_, options.tracer));
  return absl::OkStatus();
}

absl::Status CudaDevice::MakeArena(size_t bytes) {
  const std::string what = absl::StrCat("GPU ", ordinal());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  SLUICE_RETURN_IF_ERROR(
      Check(cudaMemGetInfo(&free_bytes, &total_bytes), "its memory"));
  if (bytes == 0) {
    return ResourceExhausted(what,
                             ": --device-memory leaves nothing for the device");
  }
  const auto allocate = [&](size_t slack) {
    return cudaMalloc(&memory_, bytes + slack);
  };
  cudaError_t error = allocate(0);
  const auto misaligned = [&] {
    return reinterpret_cast<uintptr_t>(memory_) % kDiskBlockBytes;
  };
  if (error == cudaSuccess && misaligned() != 0) {
    SLUICE_RETURN_IF_ERROR(
        Check(cudaFree(std::exchange(memory_, nullptr)), "giving memory back"));
    error = allocate(kDiskBlockBytes - kMinAlignment);
  }
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return ResourceExhausted(
        what, ": --device-memory allows ", MiB(bytes), " MiB, but only ",
        MiB(free_bytes), " of its ", MiB(total_bytes),
        " MiB are free; say less, or end what else uses it");
  }
  SLUICE_RETURN_IF_ERROR(
      Check(error, absl::StrCat("allocating ", bytes, " bytes")));
  auto* base = static_cast<std::byte*>(memory_);
  if (misaligned() != 0) base += kDiskBlockBytes - misaligned();
  arena_ = std::make_unique<DeviceArena>(base, bytes);
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  // Nobody is left to hear of errors.
  (void)cudaSetDevice(ordinal());
  h2d_.reset();
  d2h_.reset();
  if (compute_ != nullptr) {
    (void)cudaStreamSynchronize(compute_);
    (void)cudaStreamDestroy(compute_);
  }
  if (memory_ != nullptr) (void)cudaFree(memory_);
  (void)cudaGetLastError();
}

absl::Status CudaDevice::MakeCurrent() {
  return Check(cudaSetDevice(ordinal()), "taking it");
}

void CudaDevice::CopyIn(std::span<std::byte> device,
                        std::span<const std::byte> host, IoCompletion* done,
                        const IoLabel& label) {
  if (device.size() != host.size() || !Contains(device.data(), device.size()) ||
      Touches(host.data(), host.size())) {
    done->Done(
        Internal("h2d: ", host.size(), " bytes do not go from host to device"));
    return;
  }
  h2d_->Copy(device.data(), host.data(), host.size(), cudaMemcpyHostToDevice,
             done, label);
}

void CudaDevice::CopyOut(std::span<std::byte> host,
                         std::span<const std::byte> device, IoCompletion* done,
                         const IoLabel& label) {
  if (device.size() != host.size() || !Contains(device.data(), device.size()) ||
      Touches(host.data(), host.size())) {
    done->Done(Internal("d2h: ", device.size(),
                        " bytes do not go from device to host"));
    return;
  }
  d2h_->Copy(host.data(), device.data(), host.size(), cudaMemcpyDeviceToHost,
             done, label);
}

void CudaDevice::CopyWithin(std::span<std::byte> to,
                            std::span<const std::byte> from,
                            IoCompletion* done) {
  if (to.size() != from.size() || !Contains(to.data(), to.size()) ||
      !Contains(from.data(), from.size())) {
    done->Done(Internal("device: ", from.size(), " bytes do not go within it"));
    return;
  }
  h2d_->Copy(to.data(), from.data(), from.size(), cudaMemcpyDeviceToDevice,
             done);
}

HostPin CudaDevice::Pin(std::span<std::byte> host) {
  if (host.empty()) return {};
  absl::Status status = MakeCurrent();
  if (status.ok()) {
    status = Check(
        cudaHostRegister(host.data(), host.size(), cudaHostRegisterPortable),
        absl::StrCat("pinning ", host.size(), " bytes"));
  }
  if (status.ok()) {
    return HostPin([data = host.data(), ordinal = ordinal()] {
      // Nothing is pinned any more if the device is lost.
      (void)cudaSetDevice(ordinal);
      (void)cudaHostUnregister(data);
      (void)cudaGetLastError();
    });
  }
  if (!pinning_refused_.exchange(true)) {
    rlimit limit = {};
    std::string locked;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY) {
      locked = absl::StrCat("; this process may lock ", limit.rlim_cur >> 10,
                            " KiB (ulimit -l)");
    }
    LogWarning(absl::StrCat(
        status.message(), locked,
        ": some host memory stays unpinned, which makes copies slower and who "
        "begins them wait"));
  }
  return {};
}

Device::Totals CudaDevice::totals() const {
  const CopyStream::Totals in = h2d_->totals();
  const CopyStream::Totals out = d2h_->totals();
  return {in.bytes, out.bytes, in.busy_seconds, out.busy_seconds};
}

absl::StatusOr<void*> CudaDevice::Take(const std::string& name, size_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(void* const data, arena_->Take(name, bytes));
  // The memory is cleared behind kernels that may use what was here before.
  absl::Status status = MakeCurrent();
  if (status.ok()) {
    cudaError_t error = cudaMemsetAsync(data, 0, bytes, compute_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(compute_);
    status =
        Check(error, absl::StrCat("clearing ", bytes, " bytes for ", name));
  }
  if (status.ok()) return data;
  arena_->GiveBack(data, bytes);
  return status;
}

void CudaDevice::GiveBack(void* data, size_t bytes) {
  arena_->GiveBack(data, bytes);
}

}  // namespace sluice
