#include "runtime/memory/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/memory/disk/disk_file.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::Create(
    const Options& options) {
  // The arena has whole pages; a part beyond the budget is not given out.
  const size_t bytes = RoundUpToDiskBlock(
      std::max<uint64_t>(options.budget->limit_bytes(), kDiskBlockBytes));
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted("cannot map ", bytes,
                             " bytes as device memory: ", std::strerror(errno));
  }
  return std::unique_ptr<CpuDevice>(
      new CpuDevice(options, static_cast<std::byte*>(base), bytes));
}

CpuDevice::CpuDevice(const Options& options, std::byte* base, size_t bytes)
    : Device(options.budget),
      arena_(base, bytes),
      h2d_({.name = "h2d", .cores = options.cores, .tracer = options.tracer}),
      d2h_({.name = "d2h", .cores = options.cores, .tracer = options.tracer}) {}

CpuDevice::~CpuDevice() { munmap(arena_.base(), arena_.bytes()); }

void CpuDevice::CopyIn(std::span<std::byte> device,
                       std::span<const std::byte> host, IoCompletion* done,
                       const IoLabel& label) {
  if (!Contains(device.data(), device.size()) ||
      Touches(host.data(), host.size())) {
    done->Done(Internal("h2d: ", device.size(),
                        " bytes do not go from host to device"));
    return;
  }
  h2d_.Copy(device, host, done, label);
}

void CpuDevice::CopyOut(std::span<std::byte> host,
                        std::span<const std::byte> device, IoCompletion* done,
                        const IoLabel& label) {
  if (!Contains(device.data(), device.size()) ||
      Touches(host.data(), host.size())) {
    done->Done(Internal("d2h: ", device.size(),
                        " bytes do not go from device to host"));
    return;
  }
  d2h_.Copy(host, device, done, label);
}

void CpuDevice::CopyWithin(std::span<std::byte> to,
                           std::span<const std::byte> from,
                           IoCompletion* done) {
  if (to.size() != from.size() || !Contains(to.data(), to.size()) ||
      !Contains(from.data(), from.size())) {
    done->Done(Internal("device: ", from.size(), " bytes do not go within it"));
    return;
  }
  if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
  done->Done(absl::OkStatus());
}

Device::Totals CpuDevice::totals() const {
  const CopyEngine::Totals in = h2d_.totals();
  const CopyEngine::Totals out = d2h_.totals();
  return {in.bytes, out.bytes, in.busy_seconds, out.busy_seconds};
}

absl::StatusOr<void*> CpuDevice::Take(const std::string& name, size_t bytes) {
  return arena_.Take(name, bytes);
}

void CpuDevice::GiveBack(void* data, size_t bytes) {
  // The pages go back to the system, and the next owner finds zeros.
  madvise(data, bytes, MADV_DONTNEED);
  arena_.GiveBack(data, bytes);
}

}  // namespace sluice
