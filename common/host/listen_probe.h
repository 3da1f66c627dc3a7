#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/host/file_descriptor.h"

namespace sluice {

// Returns a listening, non-blocking socket at "host:port" or "[host]:port".
// kUnavailable says why there is none, and `if_taken` if the port is taken.
absl::StatusOr<int> ListenOn(const std::string& address,
                             absl::string_view if_taken = "");

// Returns listening, non-blocking sockets on one port at all addresses of
// "host:port" that can be had, at least one; IPv4's and IPv6's wildcards stand
// for both. Port 0 takes a free one.
absl::StatusOr<std::vector<FileDescriptor>> ListenOnAll(
    const std::string& address, absl::string_view if_taken = "");

// Whether only this machine can connect to what listens on `host`: all its
// addresses are loopbacks. kUnavailable if it has none.
absl::StatusOr<bool> IsLoopbackListener(const std::string& host);

// Returns the port of a bound socket; 0 if it has none.
int PortOf(int fd);

// Checks whether a server could listen on "host:port" or "[host]:port" now;
// kUnavailable says why not. Call it before building a gRPC server: gRPC 1.51
// frees a completion queue twice if the port is taken.
absl::Status CheckCanListen(const std::string& address);

}  // namespace sluice
