#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace sluice {

// Returns "host:port", with brackets around an IPv6 address.
inline std::string JoinHostPort(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return ipv6 ? absl::StrCat("[", host, "]:", port)
              : absl::StrCat(host, ":", port);
}

}  // namespace sluice
