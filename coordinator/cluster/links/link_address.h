#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Checks whether others can reach a worker at its link address, as far as the
// coordinator can tell from the address that the worker calls from.

namespace sluice {

// The origin of a call.
struct PeerPlace {
  enum Kind {
    kUnknown,      // no machine's address: this process, a Unix socket
    kThisMachine,  // the loopback, or an address of one of our interfaces
    kElsewhere,
  };
  Kind kind = kUnknown;
  std::string host;  // numeric; "" if unknown
};

// Parses a peer as gRPC writes it: "ipv4:10.0.0.2:4711", "ipv6:[::1]:4711".
PeerPlace PlaceOf(const std::string& peer);

// Returns the host of "host:port", without the brackets of an IPv6 address.
// kInvalidArgument if `address` has another form.
absl::StatusOr<std::string> HostOf(const std::string& address);

// Whether `host` is an IP address, which needs no lookup.
bool IsNumericHost(const std::string& host);
// Whether `host` is in 127.0.0.0/8, ::1 or "localhost".
bool IsLoopbackHost(absl::string_view host);
// Whether `host` is 0.0.0.0 or ::.
bool IsUnspecifiedHost(absl::string_view host);

// Returns the numeric addresses of a name; waits for the resolver, which takes
// some seconds if it is down. kUnavailable says why there are none.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host);

// kInvalidArgument, with the remedy, if no worker can use the address, or none
// on other machines although this worker is remote. `resolved` has the
// addresses of its name; empty if it is numeric.
absl::Status CheckLinkAddress(const std::string& worker,
                              const std::string& link_address,
                              const std::vector<std::string>& resolved,
                              const PeerPlace& place);

// Whether the link address is a loopback address, which only this machine uses.
bool IsLoopbackLink(const std::string& link_address,
                    const std::vector<std::string>& resolved);

// Returns "start it with --host 0.0.0.0 --advertise 10.0.0.2", with the address
// of `place` if it has one.
std::string AdvertiseRemedy(const PeerPlace& place);

}  // namespace sluice
