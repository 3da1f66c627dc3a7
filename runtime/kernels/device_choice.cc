#include "runtime/kernels/device_choice.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "runtime/kernels/cuda/cuda_access.h"
#include "runtime/memory/cpu_device.h"
#include "runtime/placement/tensor_shard.h"

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
      "--device: no device \"", name,
      "\": expected cpu, cpu-discrete, cuda, or cuda:N for the "
      "Nth GPU from 0");
}

absl::StatusOr<std::vector<DeviceChoice>> ParseDevices(absl::string_view names,
                                                       int32_t ranks) {
  if (ranks < 1 || ranks > kMaxTensorRanks) {
    return InvalidArgument("--tensor-parallel ", ranks, " is not within 1..",
                           kMaxTensorRanks);
  }
  std::vector<DeviceChoice> devices;
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    SLUICE_ASSIGN_OR_RETURN(const DeviceChoice device, ParseDevice(name));
    devices.push_back(device);
  }
  const auto named = static_cast<int32_t>(devices.size());
  if (named > kMaxTensorRanks || (named > 1 && ranks > 1 && ranks != named)) {
    return InvalidArgument("--device names ", named,
                           " devices, but --tensor-parallel ", ranks,
                           " wants as many ranks; leave one of them out");
  }
  for (int32_t rank = 1; named == 1 && rank < ranks; ++rank) {
    devices.push_back(devices[0]);
    devices.back().ordinal += rank;
  }
  for (const DeviceChoice& device : devices) {
    if (device.backend != devices[0].backend) {
      return InvalidArgument("--device ", names,
                             ": the devices of a stage are of one kind");
    }
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].backend != BackendKind::kCuda) {
      if (named > 1) {
        return InvalidArgument("--device ", names, ": say --device ",
                               DeviceName(devices[0]), " --tensor-parallel ",
                               named);
      }
      devices[i].ordinal = 0;
      continue;
    }
    for (size_t j = 0; j < i; ++j) {
      if (devices[j].ordinal != devices[i].ordinal) continue;
      return InvalidArgument("--device ", names, ": GPU ", devices[i].ordinal,
                             " is named twice");
    }
  }
  return devices;
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
