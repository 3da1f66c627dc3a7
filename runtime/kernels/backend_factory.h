#pragma once

#include "absl/status/statusor.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/placement/backend_kind.h"

namespace sluice {

// Makes a backend with its work space charged. kUnimplemented: not built in,
// or the machine lacks what it needs; kResourceExhausted.
absl::StatusOr<BackendParts> CreateBackend(BackendKind kind,
                                           const DecoderSpec& spec,
                                           const BackendOptions& options);

}  // namespace sluice
