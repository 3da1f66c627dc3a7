#pragma once

#include <cstddef>
#include <span>

namespace sluice {

// Has the system back all of a mapping, on several threads if it is large, and
// leaves what is in it: before it is pinned, which would do that on one.
void Touch(std::span<std::byte> memory);

}  // namespace sluice
