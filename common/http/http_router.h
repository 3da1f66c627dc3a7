#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/http_message.h"

namespace sluice {

// Finds the route of a request. Immutable, so thread-safe.
class HttpRouter {
 public:
  explicit HttpRouter(std::vector<HttpRoute> routes);

  // Splits `target`, the second word of a request, into path and query.
  // kInvalidArgument if it is no absolute path, or is badly percent-encoded,
  // or has control characters.
  static absl::Status ParseTarget(absl::string_view target,
                                  HttpRequest* request);

  // Returns the route of request->method and path, owned by the router, and
  // sets request->params. If there is none, returns null and sets *refusal to
  // 404, or 405 with the header Allow.
  const HttpRoute* Find(HttpRequest* request, HttpAnswer* refusal) const;

  const std::vector<HttpRoute>& routes() const { return routes_; }

 private:
  const std::vector<HttpRoute> routes_;
  // The segments of each route's pattern.
  std::vector<std::vector<std::string>> segments_;
};

}  // namespace sluice
