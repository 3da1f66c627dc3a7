#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/http_message.h"
#include "proto/call_guard.h"
#include "server/http/coordinator_handle.h"

namespace sluice {

// The console: a page under /console/ that shows a coordinator and its jobs,
// and what the page asks, as JSON under /console/api/. Callers see and may do
// what they see and may do by gRPC. Thread-safe.
class Console {
 public:
  // `coordinator` and `guard`, which may be null, must outlive it; the guard is
  // the server's, too (GuardHttp). `needs_token`: whether callers need one, so
  // that a browser does nothing by itself (see same_origin.h).
  Console(CoordinatorHandle* coordinator, CallGuard* guard, bool needs_token);

  // Routes for a server that the console outlives. As long as the handle is not
  // open, those under /console/api/ answer 503.
  std::vector<HttpRoute> Routes();

 private:
  // Answers a request, by JSON.
  using Work = std::function<absl::StatusOr<std::string>(
      Coordinator* coordinator, const HttpRequest& request)>;
  HttpRoute Api(const char* method, absl::string_view path, Scope scope,
                Work work);
  HttpAnswer Answer(const HttpRequest& request, const Work& work);
  // Who asks; answered to all, so that the page can say what is needed.
  std::string Session(HttpRequest request) const;

  CoordinatorHandle* const coordinator_;
  CallGuard* const guard_;
  const bool needs_token_;
  const std::string machine_;  // its name
};

}  // namespace sluice
