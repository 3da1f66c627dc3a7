#pragma once

#include <string>

#include "absl/status/status.h"

namespace sluice {

// Whether a server could listen on "host:port" or "[host]:port" right now:
// kUnavailable says why not. Ask before a gRPC server is built: one that can't
// have its port frees a completion queue twice (1.51).
absl::Status CheckCanListen(const std::string& address);

}  // namespace sluice
