#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A size for people: "1.5 GiB", "12.0 MiB", "3.5 KiB", "17 bytes".
std::string BytesText(double bytes);

// Parses "8GiB", "500MB", "1.5G" (binary, as is a bare K, M, G, T),
// "1073741824". kInvalidArgument otherwise, for zero, and for less than 1 MiB
// without a unit, which was probably forgotten.
absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text);

}  // namespace sluice
