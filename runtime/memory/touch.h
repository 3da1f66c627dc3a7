#pragma once

#include <cstddef>
#include <span>

namespace sluice {

// Makes the system back all of a mapping, on several threads if it is large,
// and keeps its contents. Pinning untouched memory would do that on one thread.
void Touch(std::span<std::byte> memory);

}  // namespace sluice
