#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Whether others can reach a worker at the address that it gives for its links:
// as far as the coordinator can tell, which sees where the worker calls from.

namespace sluice {

// Where a call comes from.
struct PeerPlace {
  enum Kind {
    kUnknown,      // no machine's address: in this process, a Unix socket
    kThisMachine,  // the loopback, or an address of one of our interfaces
    kElsewhere,
  };
  Kind kind = kUnknown;
  std::string host;  // numeric; "" if unknown
};

// Of a peer as gRPC writes it: "ipv4:10.0.0.2:4711", "ipv6:[::1]:4711".
PeerPlace PlaceOf(const std::string& peer);

// The host of "host:port", without the brackets of an IPv6 address.
// kInvalidArgument if it is no such thing.
absl::StatusOr<std::string> HostOf(const std::string& address);

// An IP address, so that nothing has to be looked up.
bool IsNumericHost(const std::string& host);
// 127.0.0.0/8, ::1 and "localhost".
bool IsLoopbackHost(absl::string_view host);
// 0.0.0.0 or ::.
bool IsUnspecifiedHost(absl::string_view host);

// The numeric addresses of a name; waits for the resolver, some seconds if it
// is out of order. kUnavailable says why there are none.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host);

// kInvalidArgument, with the remedy, if the address is of no use to workers on
// other machines although this one is on another, or to anybody. `resolved`:
// what its name stands for; empty if it is a number.
absl::Status CheckLinkAddress(const std::string& worker,
                              const std::string& link_address,
                              const std::vector<std::string>& resolved,
                              const PeerPlace& place);

// Whether the link address means the machine of whoever uses it.
bool IsLoopbackLink(const std::string& link_address,
                    const std::vector<std::string>& resolved);

// "start it with --host 0.0.0.0 --advertise 10.0.0.2", with what the place
// tells.
std::string AdvertiseRemedy(const PeerPlace& place);

}  // namespace sluice
