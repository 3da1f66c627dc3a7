#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/http/http_message.h"

namespace sluice {

// Refuses requests that a browser sends for another site's page. A browser
// attaches no token by itself, but where none is needed, or where certificates
// are, any page could act for whoever looks at it.

// kPermissionDenied if the request's Origin or Sec-Fetch-Site says that another
// site's page sends it; kInvalidArgument if it changes something (POST) and its
// body is not application/json, which pages of other sites can't send unasked.
absl::Status CheckSameOrigin(const HttpRequest& request);

// kPermissionDenied if the name under which the browser reached the server, the
// header Host, may be anybody's: whoever owns a name can have it point here,
// and then counts as the same site (DNS rebinding). Right are addresses, names
// without a dot, and `machine`, the name of this machine.
absl::Status CheckHost(absl::string_view host, absl::string_view machine);

}  // namespace sluice
