#pragma once

#include <cstdlib>
#include <string>

namespace sluice {

// The user's cache directory, which may not exist yet: $XDG_CACHE_HOME/sluice
// or ~/.cache/sluice; "" if neither is known.
inline std::string UserCacheDir() {
  const auto environment = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  // The XDG specification wants relative paths to be ignored.
  const std::string cache = environment("XDG_CACHE_HOME");
  if (!cache.empty() && cache[0] == '/') return cache + "/sluice";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/sluice";
}

}  // namespace sluice
