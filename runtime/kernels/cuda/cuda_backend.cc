#include "runtime/kernels/cuda/cuda_backend.h"

#include "runtime/kernels/cuda/cuda_backend_impl.h"
#include "runtime/kernels/cuda/device/cuda_device.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const DecoderSpec& spec, const Backend::Options& options) {
  const auto* const device = dynamic_cast<CudaDevice*>(options.device);
  if (device == nullptr) {
    return absl::InvalidArgumentError(
        "the CUDA backend needs a CUDA device for its memory");
  }
  return CudaBackend::Create(
      spec, options,
      {.ordinal = device->ordinal(), .stream = device->compute_stream()});
}

}  // namespace sluice
