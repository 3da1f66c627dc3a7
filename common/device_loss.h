#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Some errors of a device are permanent: after a kernel fault or a memory
// error, every call of this process to the device fails, and only a new process
// may succeed. Such an error carries a payload beside its code, so that its
// final handler knows that a retry is of no use.
inline constexpr absl::string_view kDeviceLossUrl = "sluice/device-loss";

// Returns `status`, which is an error, with the payload.
inline absl::Status DeviceLoss(absl::Status status) {
  status.SetPayload(kDeviceLossUrl, absl::Cord());
  return status;
}

inline bool IsDeviceLoss(const absl::Status& status) {
  return status.GetPayload(kDeviceLossUrl).has_value();
}

}  // namespace sluice
