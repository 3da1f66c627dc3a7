#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"

namespace sluice {

// Returns the longest order of workers 0 to n - 1, or of some of them, in which
// none has a broken link to the next: all, in their order, if that has none.
// The longest that there is of up to 10 workers; of more, one that can't be
// made longer by one of the others. Pure.
std::vector<size_t> LongestChain(
    size_t n, absl::FunctionRef<bool(size_t from, size_t to)> broken);

}  // namespace sluice
