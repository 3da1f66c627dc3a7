#include "runtime/kernels/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return absl::StatusCode::kFailedPrecondition;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text =
      absl::StrCat(what, ": CUDA: ", cudaGetErrorString(error));
  (void)cudaGetLastError();
  return absl::Status(CodeOf(error), text);
}

}  // namespace sluice
