#include "common/host/listen_probe.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/status_macros.h"

namespace sluice {
namespace {

// Returns an errno, or 0.
int TryListen(const addrinfo& info) {
  const int fd =
      socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC, info.ai_protocol);
  if (fd < 0) return errno;
  const int on = 1;
  int error = 0;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, info.ai_addr, info.ai_addrlen) != 0 || listen(fd, 1) != 0) {
    error = errno;
  }
  close(fd);
  return error;
}

}  // namespace

absl::Status CheckCanListen(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return Unavailable("can't listen on ", address, ": no host:port");
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (failed != 0) {
    return Unavailable("can't listen on ", address, ": ", gai_strerror(failed));
  }
  int error = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    error = TryListen(*info);
    if (error == 0) break;
  }
  freeaddrinfo(found);
  if (error == 0) return absl::OkStatus();
  return Unavailable("can't listen on ", address, ": ", std::strerror(error),
                     error == EADDRINUSE ? "; choose another --port" : "");
}

}  // namespace sluice
