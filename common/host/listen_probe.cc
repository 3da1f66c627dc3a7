#include "common/host/listen_probe.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/status_macros.h"

namespace sluice {
namespace {

// Returns a listening socket, or -1 with errno.
int Listen(const addrinfo& info) {
  const int fd =
      socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
             info.ai_protocol);
  if (fd < 0) return -1;
  const int on = 1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      bind(fd, info.ai_addr, info.ai_addrlen) == 0 &&
      listen(fd, SOMAXCONN) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<int> ListenOn(const std::string& address,
                             absl::string_view if_taken) {
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
  int fd = -1;
  for (const addrinfo* info = found; fd < 0 && info != nullptr;
       info = info->ai_next) {
    fd = Listen(*info);
  }
  const int error = errno;
  freeaddrinfo(found);
  if (fd >= 0) return fd;
  return Unavailable("can't listen on ", address, ": ", std::strerror(error),
                     error == EADDRINUSE ? if_taken : "");
}

absl::Status CheckCanListen(const std::string& address) {
  SLUICE_ASSIGN_OR_RETURN(const int fd,
                          ListenOn(address, "; choose another --port"));
  close(fd);
  return absl::OkStatus();
}

}  // namespace sluice
