#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// Typing mistakes that make `b` of `a`: bytes left out, put in, taken for
// another, or two neighbours exchanged (optimal string alignment; Damerau 1964,
// with no place edited twice).
size_t TypingDistance(absl::string_view a, absl::string_view b);

// Which of `known` was most likely meant by `typed`: the nearest one, if it is
// near enough to be a mistake (a third of its length, at least one and at most
// three), or one that begins with `typed` of three bytes or more; "" if none
// is. The first of equals.
std::string ClosestTo(absl::string_view typed,
                      const std::vector<std::string>& known);

}  // namespace sluice
