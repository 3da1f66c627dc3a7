#include "runtime/exec/device_compute.h"

#include <cstdint>

#include "runtime/kernels/backend.h"

namespace sluice {

absl::Status DeviceCompute::Finish() {
  // Where there is nothing to wait for there is nothing to show.
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

}  // namespace sluice
