#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace sluice {

// kResourceExhausted, with what to do, if the system does not give this process
// `threads` threads and `address_bytes` of addresses beside their stacks. Call
// this first of all: gRPC ends the process when it is refused a thread.
absl::Status CheckStart(int threads, size_t address_bytes);

// Runs `body`. Exceptions for refused memory or threads become errors.
absl::Status RunGuarded(const std::function<absl::Status()>& body);

// Raises the limit of open files to the most that this process may have.
void RaiseFileLimit();

}  // namespace sluice
