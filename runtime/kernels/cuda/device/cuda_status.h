#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/threads/mutex.h"

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

// Knows whether a device still works, as its users find out by their calls.
// Thread-safe.
class CudaHealth {
 public:
  explicit CudaHealth(int ordinal) : ordinal_(ordinal) {}

  // Returns CudaStatus with the device's name. Remembers the first error that
  // is the device's end.
  absl::Status Check(cudaError_t error, absl::string_view what);
  // Returns OK, or that first error.
  absl::Status status() const;

  int ordinal() const { return ordinal_; }

 private:
  const int ordinal_;
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
