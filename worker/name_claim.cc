#include "worker/name_claim.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr int kMaxClaims = 1024;  // of one machine

// Binds an address without a file: the kernel frees it with the socket.
// Returns 0 or the error.
int BindName(int socket, const std::string& name) {
  const std::string path = absl::StrCat("sluice-worker/", name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(path.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, path.data(), size);
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0
             ? 0
             : errno;
}

}  // namespace

NameClaim::NameClaim(const std::string& base)
    : name_(base), socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  if (socket_.get() < 0) return;
  for (int n = 1; n <= kMaxClaims; ++n) {
    const std::string name = n == 1 ? base : absl::StrCat(base, "-", n);
    const int error = BindName(socket_.get(), name);
    if (error == EADDRINUSE) continue;
    if (error == 0) name_ = name;
    return;
  }
}

}  // namespace sluice
