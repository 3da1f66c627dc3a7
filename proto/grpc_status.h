#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace sluice {

// The codes have the same numbers and meanings; messages are kept, up to
// kMaxStatusBytes.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace sluice
