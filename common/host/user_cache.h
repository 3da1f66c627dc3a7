#pragma once

#include <string>

namespace sluice {

// The user's cache directory, which may not exist yet: $XDG_CACHE_HOME/sluice
// or ~/.cache/sluice; "" if neither is known.
std::string UserCacheDir();

}  // namespace sluice
