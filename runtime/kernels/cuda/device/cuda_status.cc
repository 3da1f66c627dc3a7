#include "runtime/kernels/cuda/device/cuda_status.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/device_loss.h"

namespace sluice {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
      return absl::StatusCode::kFailedPrecondition;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Returns whether CUDA says of an error that the process must be terminated and
// launched anew, or that the hardware is at fault.
bool IsForGood(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown:
      return true;
    default:
      break;
  }
  // Not all toolkits have names for these: cudaErrorContained,
  // cudaErrorTensorMemoryLeak, cudaErrorMpsClientTerminated.
  const int code = static_cast<int>(error);
  return code == 226 || code == 721 || code == 810;
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text =
      absl::StrCat(what, ": CUDA: ", cudaGetErrorString(error));
  (void)cudaGetLastError();
  absl::Status status(CodeOf(error), text);
  return IsForGood(error) ? DeviceLoss(std::move(status)) : status;
}

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
