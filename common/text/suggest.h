#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// The number of typing mistakes that turn `a` into `b`: bytes deleted, inserted
// or replaced, or two neighbours swapped (optimal string alignment; Damerau
// 1964, with no place edited twice).
size_t TypingDistance(absl::string_view a, absl::string_view b);

// The name in `known` most likely meant by `typed`: the nearest one, if its
// distance is at most a third of its length (at least one, at most three), or
// one that begins with `typed` of three bytes or more; "" if none is. The first
// of equals wins.
std::string ClosestTo(absl::string_view typed,
                      const std::vector<std::string>& known);

}  // namespace sluice
