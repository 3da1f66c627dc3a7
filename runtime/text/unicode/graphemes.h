#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace sluice {

// Returns the end of the extended grapheme cluster (UAX #29) that begins at
// `pos`, which must be below the size. `text` must be valid UTF-8. Consonants
// that a virama joins (rule GB9c) count as clusters of their own.
size_t GraphemeEnd(absl::string_view text, size_t pos);

}  // namespace sluice
