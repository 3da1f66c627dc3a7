#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/threads/mutex.h"

namespace sluice {

// Whether a device still works, as its users find out by what they call.
// Thread-safe.
class CudaHealth {
 public:
  explicit CudaHealth(int ordinal) : ordinal_(ordinal) {}

  // CudaStatus, with the device's name. Remembers the first error that is the
  // device's end.
  absl::Status Check(cudaError_t error, absl::string_view what);
  // OK, or that error.
  absl::Status status() const;

  int ordinal() const { return ordinal_; }

 private:
  const int ordinal_;
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
