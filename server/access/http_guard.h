#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/http/http_message.h"
#include "proto/call_guard.h"

namespace sluice {

// Asks `guard`, which may be null (everybody may do everything) and must
// outlive the server, about requests to an HttpServer, as its
// Options::authorize: the header "Authorization" shows the token, and the audit
// log gets method and path.
std::function<absl::Status(HttpRequest*, Scope)> GuardHttp(CallGuard* guard);

}  // namespace sluice
