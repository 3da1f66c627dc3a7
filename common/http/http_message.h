#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/access.h"

namespace sluice {

struct HttpRequest {
  std::string method;  // as sent: "GET"; of a HEAD request, "GET"
  std::string path;    // as sent, percent-encoded, without the query
  // The parts of the path that the route's pattern names, percent-decoded.
  std::map<std::string, std::string> params;
  // Percent-decoded; of a key that comes twice, the last.
  std::map<std::string, std::string> query;
  // By name in lower case; of a name that comes twice, the first.
  std::map<std::string, std::string> headers;
  std::string body;
  std::string peer;  // "address:port"
  Caller caller;     // set by HttpServer::Options::authorize

  // The header's value, or "".
  const std::string& Header(const std::string& lower_case_name) const;
};

struct HttpAnswer {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};

  static HttpAnswer Json(std::string body) {
    return {.content_type = "application/json", .body = std::move(body)};
  }
};

struct HttpRoute {
  std::string method;  // "GET" answers HEAD, too
  // Segments between slashes; one in braces takes any single segment:
  // "/v1/jobs/{job}".
  std::string pattern;
  Scope scope = Scope::kAdmin;
  // Called on one of the server's work threads and may wait, or, if `quick`,
  // on the thread that serves all connections.
  std::function<HttpAnswer(const HttpRequest&)> handler;
  bool quick = false;
  size_t max_body_bytes = 0;
};

// The HTTP status that says what `status` says.
int HttpCode(absl::StatusCode code);

// An error as OpenAI's API has them:
// {"error": {"message", "type", "code"}}.
HttpAnswer HttpError(int code, absl::string_view message);
HttpAnswer HttpError(const absl::Status& status);

}  // namespace sluice
