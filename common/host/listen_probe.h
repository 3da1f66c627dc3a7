#pragma once

#include <string>

#include "absl/status/status.h"

namespace sluice {

// Checks whether a server could listen on "host:port" or "[host]:port" now;
// kUnavailable says why not. Call it before building a gRPC server: gRPC 1.51
// frees a completion queue twice if the port is taken.
absl::Status CheckCanListen(const std::string& address);

}  // namespace sluice
