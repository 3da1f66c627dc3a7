#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/kernels/backend.h"
#include "runtime/trace/trace.h"

namespace sluice {

// The work that a device was told to compute, for those who copy what it makes,
// or let others have memory that it reads: both only after Finish(). Used by
// the thread that drives the backend.
class DeviceCompute {
 public:
  // Makes an object for which nothing is ever computed.
  DeviceCompute() = default;
  // Pointers must outlive this; `row` may be null. Adds the seconds that
  // Finish() waited.
  DeviceCompute(Backend* backend, double* seconds, TraceRow* row)
      : backend_(backend), seconds_(seconds), row_(row) {}

  absl::Status Finish() {
    // Shorter waits are not worth showing in the timeline.
    constexpr int64_t kShownNs = 1000;
    if (backend_ == nullptr) return absl::OkStatus();
    const int64_t start = TraceNow();
    const absl::Status status = backend_->Finish();
    const int64_t end = TraceNow();
    *seconds_ += static_cast<double>(end - start) * 1e-9;
    if (row_ != nullptr && end - start > kShownNs) {
      row_->Add("device", "compute", start, end, {});
    }
    return status;
  }

 private:
  Backend* const backend_ = nullptr;
  double* const seconds_ = nullptr;
  TraceRow* const row_ = nullptr;
};

}  // namespace sluice
