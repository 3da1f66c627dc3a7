#include "runtime/kernels/cuda/device/cuda_health.h"

#include "absl/strings/str_cat.h"
#include "common/device_loss.h"
#include "runtime/kernels/cuda/device/cuda_status.h"

namespace sluice {

absl::Status CudaHealth::Check(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const absl::Status status =
      CudaStatus(error, absl::StrCat("GPU ", ordinal_, ": ", what));
  if (IsDeviceLoss(status)) {
    MutexLock lock(&mu_);
    status_.Update(status);
  }
  return status;
}

absl::Status CudaHealth::status() const {
  MutexLock lock(&mu_);
  return status_;
}

}  // namespace sluice
