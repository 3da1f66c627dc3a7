#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/kernels/cuda/cuda_access.h"
#include "runtime/kernels/cuda/device/copy_stream.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/memory/device.h"
#include "runtime/memory/device_arena.h"

namespace sluice {

// A GPU: one arena of its memory, a stream that computes, and a copy stream in
// each direction, all of which go on at the same time.
//
// Copies and kernels do not wait for each other. A copy's bytes are there for
// kernels begun after its completion; who copies what kernels make, or gives
// memory that they read to others, first waits for them: for compute_stream(),
// or an event in it.
//
// The device has threads of its own, which use CUDA at any time. Who captures a
// graph must therefore not have CUDA watch other threads meanwhile
// (cudaStreamCaptureModeThreadLocal).
//
// An error after which the device is of no use (see common/device_loss.h) is
// remembered, whoever comes upon it: all copies fail with it from then on.
class CudaDevice : public Device {
 public:
  // Takes at once all that the budget has left, in whole 4096 bytes.
  // kFailedPrecondition as ReadGpuFacts; kResourceExhausted if the GPU has not
  // as much free.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(
      const CudaDeviceOptions& options);
  // Waits for copies and kernels.
  // REQUIRES: all its buffers are gone.
  ~CudaDevice() override;

  int ordinal() const { return health_.ordinal(); }
  // A stream of the class's own, never the stream 0. Its owner, one thread at a
  // time, calls MakeCurrent() first.
  cudaStream_t compute_stream() const { return compute_; }
  // Makes this the calling thread's device, as most of CUDA wants it.
  absl::Status MakeCurrent();
  // Returns CudaStatus with the device's name, for who uses the device beside
  // this class, and remembers the device's end.
  absl::Status Check(cudaError_t error, absl::string_view what) {
    return health_.Check(error, what);
  }

  void CopyIn(std::span<std::byte> device, std::span<const std::byte> host,
              IoCompletion* done, const IoLabel& label) override;
  void CopyOut(std::span<std::byte> host, std::span<const std::byte> device,
               IoCompletion* done, const IoLabel& label) override;
  // Copies in order with CopyIn.
  void CopyWithin(std::span<std::byte> to, std::span<const std::byte> from,
                  IoCompletion* done) override;
  bool Contains(const void* data, size_t bytes) const override {
    return arena_->Contains(data, bytes);
  }
  bool Touches(const void* data, size_t bytes) const override {
    return arena_->Touches(data, bytes);
  }
  // Maps the memory for all devices. The system may refuse.
  HostPin Pin(std::span<std::byte> host) override;
  Totals totals() const override;

 protected:
  absl::StatusOr<void*> Take(const std::string& name, size_t bytes) override;
  void GiveBack(void* data, size_t bytes) override;

 private:
  explicit CudaDevice(const CudaDeviceOptions& options)
      : Device(options.budget), health_(options.ordinal) {}
  absl::Status Init(const CudaDeviceOptions& options);
  absl::Status MakeArena(size_t bytes);

  CudaHealth health_;
  cudaStream_t compute_ = nullptr;
  void* memory_ = nullptr;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<CopyStream> h2d_;
  std::unique_ptr<CopyStream> d2h_;
  std::atomic<bool> pinning_refused_{false};
};

}  // namespace sluice
