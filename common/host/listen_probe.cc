#include "common/host/listen_probe.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// Returns a listening socket, with errno if it is none.
FileDescriptor Listen(const addrinfo& info) {
  FileDescriptor fd(socket(info.ai_family,
                           info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                           info.ai_protocol));
  if (!fd.open()) return fd;
  const int on = 1, off = 0;
  if (info.ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      bind(fd.get(), info.ai_addr, info.ai_addrlen) == 0 &&
      listen(fd.get(), SOMAXCONN) == 0) {
    return fd;
  }
  const int error = errno;
  fd.Close();
  errno = error;
  return fd;
}

void SetPort(int port, sockaddr* address) {
  const auto raw = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = raw;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = raw;
  }
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, FreeAddresses>;

// Returns the addresses, at least one, of a host with or without brackets.
absl::StatusOr<AddressList> Lookup(std::string host, const std::string& port) {
  const std::string shown = port.empty() ? host : absl::StrCat(host, ":", port);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(
      host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &found);
  if (failed != 0) {
    return Unavailable("can't listen on ", shown, ": ", gai_strerror(failed));
  }
  return AddressList(found);
}

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(four.sin_addr.s_addr) >> 24 == 127;
  }
  if (address.sa_family != AF_INET6) return false;
  const in6_addr& six =
      reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&six) ||
         (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

// Listens on the first of an address's that can be had, or on all.
absl::StatusOr<std::vector<FileDescriptor>> Listen(const std::string& address,
                                                   bool all,
                                                   absl::string_view if_taken) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return Unavailable("can't listen on ", address, ": no host:port");
  }
  SLUICE_ASSIGN_OR_RETURN(
      const AddressList found,
      Lookup(address.substr(0, colon), address.substr(colon + 1)));
  std::vector<FileDescriptor> sockets;
  int error = 0;
  for (addrinfo* info = found.get(); info != nullptr; info = info->ai_next) {
    if (!sockets.empty()) {
      if (!all) break;
      SetPort(PortOf(sockets.front().get()), info->ai_addr);
    }
    FileDescriptor fd = Listen(*info);
    if (fd.open()) {
      sockets.push_back(std::move(fd));
    } else {
      error = errno;
    }
  }
  if (!sockets.empty()) return sockets;
  return Unavailable("can't listen on ", address, ": ", std::strerror(error),
                     error == EADDRINUSE ? if_taken : "");
}

}  // namespace

absl::StatusOr<int> ListenOn(const std::string& address,
                             absl::string_view if_taken) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<FileDescriptor> sockets,
                          Listen(address, false, if_taken));
  return sockets.front().Release();
}

absl::StatusOr<std::vector<FileDescriptor>> ListenOnAll(
    const std::string& address, absl::string_view if_taken) {
  const size_t colon = address.rfind(':');
  if (colon != std::string::npos && address.substr(0, colon) == "0.0.0.0") {
    // One socket takes both families' connections, where there are two.
    absl::StatusOr<std::vector<FileDescriptor>> both =
        Listen("[::]" + address.substr(colon), true, if_taken);
    if (both.ok()) return both;
  }
  return Listen(address, true, if_taken);
}

absl::StatusOr<bool> IsLoopbackListener(const std::string& host) {
  SLUICE_ASSIGN_OR_RETURN(const AddressList found, Lookup(host, ""));
  for (const addrinfo* info = found.get(); info; info = info->ai_next) {
    if (!IsLoopback(*info->ai_addr)) return false;
  }
  return true;
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

absl::Status CheckCanListen(const std::string& address) {
  SLUICE_ASSIGN_OR_RETURN(const int fd,
                          ListenOn(address, "; choose another --port"));
  close(fd);
  return absl::OkStatus();
}

}  // namespace sluice
