#include "runtime/kernels/device_choice.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "runtime/kernels/cuda/cuda_access.h"
#include "runtime/memory/cpu_device.h"
#include "runtime/memory/host_memory.h"

namespace sluice {
namespace {

// The reserve of a GPU's free memory for kernels' code, cuBLAS, graphs, NCCL.
constexpr uint64_t kMinReserve = uint64_t{256} << 20;
constexpr uint64_t kMaxReserve = uint64_t{1} << 30;

uint64_t Reserve(uint64_t free_bytes) {
  return std::clamp(free_bytes / 16, kMinReserve, kMaxReserve);
}

}  // namespace

absl::StatusOr<DeviceChoice> ParseDevice(absl::string_view name) {
  if (name == "cpu") return DeviceChoice{BackendKind::kCpu};
  if (name == "cpu-discrete") return DeviceChoice{BackendKind::kCpuDiscrete};
  absl::string_view rest = name;
  if (absl::ConsumePrefix(&rest, "cuda")) {
    DeviceChoice device{BackendKind::kCuda};
    if (rest.empty()) return device;
    // SimpleAtoi would take spaces and signs, too.
    if (absl::ConsumePrefix(&rest, ":") &&
        rest.find_first_not_of("0123456789") == absl::string_view::npos &&
        absl::SimpleAtoi(rest, &device.ordinal)) {
      return device;
    }
  }
  return InvalidArgument(
      "no device \"", name,
      "\": expected cpu, cpu-discrete, cuda, or cuda:N for the "
      "Nth GPU from 0");
}

std::string DeviceName(const DeviceChoice& device) {
  switch (device.backend) {
    case BackendKind::kCpu:
      return "cpu";
    case BackendKind::kCpuDiscrete:
      return "cpu-discrete";
    case BackendKind::kCuda:
      break;
  }
  return absl::StrCat("cuda:", device.ordinal);
}

absl::Status CheckDevice(const DeviceChoice& device) {
  if (device.backend != BackendKind::kCuda) return absl::OkStatus();
  return Annotate(ReadGpuFacts(device.ordinal).status(),
                  absl::StrCat("--device ", DeviceName(device)));
}

std::string DescribeDevice(const DeviceChoice& device) {
  const std::string name = DeviceName(device);
  if (device.backend != BackendKind::kCuda) return name;
  const absl::StatusOr<GpuFacts> facts = ReadGpuFacts(device.ordinal);
  if (!facts.ok()) return name;
  return absl::StrCat(name, ": ", facts->name, ", sm_", facts->capability);
}

absl::StatusOr<uint64_t> ParseDeviceMemory(const DeviceChoice& device,
                                           const std::string& text) {
  if (!text.empty()) {
    absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
    if (!bytes.ok()) return Annotate(bytes.status(), "--device-memory");
    return bytes;
  }
  if (device.backend != BackendKind::kCuda) return 0;
  SLUICE_RETURN_IF_ERROR(CheckDevice(device));
  SLUICE_ASSIGN_OR_RETURN(const uint64_t free_bytes,
                          FreeGpuMemory(device.ordinal));
  const uint64_t reserve = Reserve(free_bytes);
  if (free_bytes > reserve) return free_bytes - reserve;
  return ResourceExhausted("GPU ", device.ordinal, " has only ",
                           free_bytes >> 20,
                           " MiB of its memory free; end what else uses it");
}

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const DeviceChoice& device,
                                                     MemoryBudget* budget,
                                                     Tracer* tracer) {
  if (device.backend == BackendKind::kCuda || device.in_gpu_memory) {
    return CreateCudaDevice(
        {.ordinal = device.ordinal, .budget = budget, .tracer = tracer});
  }
  return CpuDevice::Create({.budget = budget, .tracer = tracer});
}

}  // namespace sluice
