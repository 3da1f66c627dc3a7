#pragma once

#include <string>

namespace sluice {

// Where this user's programs keep what they can find out again:
// $XDG_CACHE_HOME/sluice or ~/.cache/sluice; "" if neither is known. Need not
// be there.
std::string UserCacheDir();

}  // namespace sluice
