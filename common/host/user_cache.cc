#include "common/host/user_cache.h"

#include <cstdlib>

namespace sluice {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string UserCacheDir() {
  // The XDG specification wants relative paths to be ignored.
  const std::string cache = Environment("XDG_CACHE_HOME");
  if (!cache.empty() && cache[0] == '/') return cache + "/sluice";
  const std::string home = Environment("HOME");
  return home.empty() ? "" : home + "/.cache/sluice";
}

}  // namespace sluice
