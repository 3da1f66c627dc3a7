#pragma once

#include "absl/status/status.h"
#include "runtime/trace/trace.h"

namespace sluice {

class Backend;

// What a device has been told to compute, for those who copy what it makes, or
// let others have memory that it reads: both only after Finish(). Used by the
// thread that drives the backend.
class DeviceCompute {
 public:
  // Nothing is ever computed.
  DeviceCompute() = default;
  // Pointers must outlive this; `row` may be null. Adds the seconds that
  // Finish() waited.
  DeviceCompute(Backend* backend, double* seconds, TraceRow* row)
      : backend_(backend), seconds_(seconds), row_(row) {}

  absl::Status Finish();

 private:
  Backend* const backend_ = nullptr;
  double* const seconds_ = nullptr;
  TraceRow* const row_ = nullptr;
};

}  // namespace sluice
