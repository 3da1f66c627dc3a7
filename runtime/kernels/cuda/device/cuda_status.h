#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The one place where an error of the CUDA runtime becomes a Status; OK for
// cudaSuccess. `what` was being done: "copying to the device".
//
//   kResourceExhausted   out of memory
//   kFailedPrecondition  no device, or a driver that is too old for the build
//   kInvalidArgument     a launch's or a copy's arguments
//   kInternal            all else; with the mark of common/device_loss.h if the
//                        device is of no more use to this process
//
// Clears the runtime's last error, so that no later call reports it again.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

}  // namespace sluice
