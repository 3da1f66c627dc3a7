#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Returns a listening, non-blocking socket at "host:port" or "[host]:port".
// kUnavailable says why there is none, and `if_taken` if the port is taken.
absl::StatusOr<int> ListenOn(const std::string& address,
                             absl::string_view if_taken = "");

// Checks whether a server could listen on "host:port" or "[host]:port" now;
// kUnavailable says why not. Call it before building a gRPC server: gRPC 1.51
// frees a completion queue twice if the port is taken.
absl::Status CheckCanListen(const std::string& address);

}  // namespace sluice
