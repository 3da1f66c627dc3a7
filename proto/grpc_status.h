#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace sluice {

// Converts a status: codes have the same numbers and meanings in gRPC, and
// messages are cut after kMaxStatusBytes. A status' RetryDelayOf() goes along.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace sluice
