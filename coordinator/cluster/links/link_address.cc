#include "coordinator/cluster/links/link_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// Parses an IPv6 address, or an IPv4 address as "::ffff:a.b.c.d".
std::optional<in6_addr> Parse(absl::string_view host) {
  // The part after '%' names an interface.
  const std::string text(host.substr(0, host.find('%')));
  in6_addr six{};
  if (inet_pton(AF_INET6, text.c_str(), &six) == 1) return six;
  in_addr four{};
  if (inet_pton(AF_INET, text.c_str(), &four) != 1) return std::nullopt;
  six.s6_addr[10] = six.s6_addr[11] = 0xff;
  std::memcpy(six.s6_addr + 12, &four, sizeof(four));
  return six;
}

std::optional<std::string> Text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  const void* from = nullptr;
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) {
    from = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    from = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  } else {
    return std::nullopt;
  }
  if (inet_ntop(address->sa_family, from, text, sizeof(text)) == nullptr) {
    return std::nullopt;
  }
  return text;
}

bool IsOurs(const in6_addr& host) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  bool ours = false;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const std::optional<std::string> text = Text(one->ifa_addr);
    if (!text.has_value()) continue;
    const std::optional<in6_addr> address = Parse(*text);
    ours =
        ours || (address && std::memcmp(&*address, &host, sizeof(host)) == 0);
  }
  freeifaddrs(list);
  return ours;
}

}  // namespace

PeerPlace PlaceOf(const std::string& peer) {
  absl::string_view rest = peer;
  if (!absl::ConsumePrefix(&rest, "ipv4:") &&
      !absl::ConsumePrefix(&rest, "ipv6:")) {
    return {};
  }
  // gRPC's peer is a URI, whose host may be escaped.
  const absl::StatusOr<std::string> host = HostOf(
      absl::StrReplaceAll(rest, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}}));
  if (!host.ok()) return {};
  const std::optional<in6_addr> address = Parse(*host);
  if (!address.has_value()) return {};
  PeerPlace place;
  place.host = *host;
  place.kind = IsLoopbackHost(*host) || IsOurs(*address)
                   ? PeerPlace::kThisMachine
                   : PeerPlace::kElsewhere;
  return place;
}

absl::StatusOr<std::string> HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  absl::string_view host = absl::string_view(address).substr(
      0, colon == std::string::npos ? 0 : colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) {
    host = "";
  }
  if (host.empty()) {
    return InvalidArgument("\"", address, "\" is not of the form HOST:PORT");
  }
  return std::string(host);
}

bool IsNumericHost(const std::string& host) { return Parse(host).has_value(); }

bool IsLoopbackHost(absl::string_view host) {
  if (absl::EqualsIgnoreCase(host, "localhost")) return true;
  const std::optional<in6_addr> address = Parse(host);
  if (!address.has_value()) return false;
  return IN6_IS_ADDR_LOOPBACK(&*address) ||
         (IN6_IS_ADDR_V4MAPPED(&*address) && address->s6_addr[12] == 127);
}

bool IsUnspecifiedHost(absl::string_view host) {
  const std::optional<in6_addr> address = Parse(host);
  if (!address.has_value()) return false;
  return IN6_IS_ADDR_UNSPECIFIED(&*address) ||
         (IN6_IS_ADDR_V4MAPPED(&*address) &&
          std::all_of(address->s6_addr + 12, address->s6_addr + 16,
                      [](uint8_t byte) { return byte == 0; }));
}

absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host) {
  // Sets short time-outs for this thread's resolver, as callers retry.
  res_init();
  _res.retrans = 2;  // seconds
  _res.retry = 1;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0) {
    return Unavailable(
        "\"", host, "\" can't be resolved: ",
        error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  }
  std::vector<std::string> addresses;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    const std::optional<std::string> text = Text(one->ai_addr);
    if (text.has_value()) addresses.push_back(*text);
  }
  freeaddrinfo(list);
  return addresses;
}

bool IsLoopbackLink(const std::string& link_address,
                    const std::vector<std::string>& resolved) {
  const absl::StatusOr<std::string> host = HostOf(link_address);
  if (!host.ok()) return false;
  if (IsLoopbackHost(*host)) return true;
  return !resolved.empty() && std::all_of(resolved.begin(), resolved.end(),
                                          [](const std::string& one) {
                                            return IsLoopbackHost(one);
                                          });
}

std::string AdvertiseRemedy(const PeerPlace& place) {
  return absl::StrCat("start it with --host 0.0.0.0 --advertise ",
                      place.kind == PeerPlace::kElsewhere
                          ? absl::StrCat(place.host,
                                         " (from where the coordinator sees "
                                         "it call), or another address of its "
                                         "machine that the others reach")
                          : "ADDRESS, an address of its machine that the "
                            "others reach");
}

absl::Status CheckLinkAddress(const std::string& worker,
                              const std::string& link_address,
                              const std::vector<std::string>& resolved,
                              const PeerPlace& place) {
  if (place.kind == PeerPlace::kUnknown) return absl::OkStatus();
  const absl::StatusOr<std::string> host = HostOf(link_address);
  if (!host.ok()) {
    return InvalidArgument("worker '", worker, "': its link address ",
                           host.status().message());
  }
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument("worker '", worker,
                           "' says that others reach it at ", link_address,
                           ", ", why, "; ", AdvertiseRemedy(place));
  };
  if (IsUnspecifiedHost(*host)) return refuse("which is no machine's address");
  if (place.kind == PeerPlace::kElsewhere &&
      IsLoopbackLink(link_address, resolved)) {
    return refuse(resolved.empty() || IsLoopbackHost(*host)
                      ? "which is its own loopback"
                      : absl::StrCat("which here is ", resolved.front(),
                                     ", a loopback address"));
  }
  return absl::OkStatus();
}

}  // namespace sluice
