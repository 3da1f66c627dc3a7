#pragma once

#include <cstdint>
#include <initializer_list>

#include "absl/strings/string_view.h"
#include "common/types.h"

namespace sluice {

// The checksum of a row: of its place, which could be mistaken, and its parts.
// Never null's, 0.
int64_t RowSum(JobId job, int64_t index,
               std::initializer_list<absl::string_view> parts);

}  // namespace sluice
