#pragma once

#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/memory/device.h"

namespace sluice {

// A device whose buffers are allocations of their own, so that the sanitizers
// see what goes beyond one. Copies are done when they return.
class PlainDevice : public Device {
 public:
  explicit PlainDevice(MemoryBudget* budget) : Device(budget) {}

  void CopyIn(std::span<std::byte> device, std::span<const std::byte> host,
              IoCompletion* done, const IoLabel& label) override {
    done->Done(Copy(device, host, cudaMemcpyHostToDevice));
  }
  void CopyOut(std::span<std::byte> host, std::span<const std::byte> device,
               IoCompletion* done, const IoLabel& label) override {
    done->Done(Copy(host, device, cudaMemcpyDeviceToHost));
  }
  void CopyWithin(std::span<std::byte> to, std::span<const std::byte> from,
                  IoCompletion* done) override {
    done->Done(Copy(to, from, cudaMemcpyDeviceToDevice));
  }
  bool Contains(const void* data, size_t bytes) const override {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    auto it = buffers_.upper_bound(begin);
    if (it == buffers_.begin()) return false;
    --it;
    return begin + bytes <= it->first + it->second;
  }
  bool Touches(const void* data, size_t bytes) const override {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const auto it = buffers_.lower_bound(begin + bytes);
    if (it == buffers_.begin()) return false;
    const auto before = std::prev(it);
    return before->first + before->second > begin;
  }
  HostPin Pin(std::span<std::byte> host) override {
    if (cudaHostRegister(host.data(), host.size(), cudaHostRegisterDefault) !=
        cudaSuccess) {
      return {};
    }
    return HostPin([data = host.data()] { cudaHostUnregister(data); });
  }
  Totals totals() const override { return {}; }

 protected:
  absl::StatusOr<void*> Take(const std::string& name, size_t bytes) override {
    void* data = nullptr;
    const absl::Status status = CudaStatus(cudaMalloc(&data, bytes), name);
    if (!status.ok()) return status;
    const absl::Status zeroed = CudaStatus(cudaMemset(data, 0, bytes), name);
    if (!zeroed.ok()) return zeroed;
    buffers_[reinterpret_cast<uintptr_t>(data)] = bytes;
    return data;
  }
  void GiveBack(void* data, size_t bytes) override {
    buffers_.erase(reinterpret_cast<uintptr_t>(data));
    cudaFree(data);
  }

 private:
  static absl::Status Copy(std::span<std::byte> to,
                           std::span<const std::byte> from,
                           cudaMemcpyKind kind) {
    return CudaStatus(cudaMemcpy(to.data(), from.data(), from.size(), kind),
                      "copying");
  }
  std::map<uintptr_t, size_t> buffers_;
};

}  // namespace sluice
