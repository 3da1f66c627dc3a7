#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace sluice {

// kResourceExhausted, with what to do, if the system does not give this process
// `threads` threads and `address_bytes` of addresses beside their stacks. To be
// asked first of all: gRPC ends the process where it is refused a thread.
absl::Status CheckStart(int threads, size_t address_bytes);

// Runs `body`. Where the system refuses it memory or a thread, and that is
// thrown, the answer says so.
absl::Status RunGuarded(const std::function<absl::Status()>& body);

// As many open files as this process may have.
void RaiseFileLimit();

}  // namespace sluice
