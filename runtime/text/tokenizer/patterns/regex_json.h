#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/patterns/regex.h"

namespace sluice {

// Reads the member "pattern" of `part`: {"String": ...}, {"Regex": ...} or, as
// in older files, a plain string.
absl::StatusOr<std::unique_ptr<Regex>> PatternFromJson(const JsonPart& part);

}  // namespace sluice
