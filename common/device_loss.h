#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Some errors of a device are for good: after one of its kernels ran astray or
// its memory broke, whatever this process asks of it fails, and only a new
// process may find it well. Such an error bears a mark beside its code, so that
// whoever sees it in the end knows that trying again is of no use.
inline constexpr absl::string_view kDeviceLossUrl = "sluice/device-loss";

// `status`, which is an error, with the mark.
inline absl::Status DeviceLoss(absl::Status status) {
  status.SetPayload(kDeviceLossUrl, absl::Cord());
  return status;
}

inline bool IsDeviceLoss(const absl::Status& status) {
  return status.GetPayload(kDeviceLossUrl).has_value();
}

}  // namespace sluice
