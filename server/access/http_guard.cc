#include "server/access/http_guard.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {

std::function<absl::Status(HttpRequest*, Scope)> GuardHttp(CallGuard* guard) {
  return [guard](HttpRequest* request, Scope scope) -> absl::Status {
    if (guard == nullptr) {
      request->caller = Caller::Trusted();
      return absl::OkStatus();
    }
    SLUICE_ASSIGN_OR_RETURN(
        request->caller,
        guard->Check(request->Header("authorization"), scope, request->peer,
                     absl::StrCat(request->method, " ", request->path)));
    return absl::OkStatus();
  };
}

}  // namespace sluice
