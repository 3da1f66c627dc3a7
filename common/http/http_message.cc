#include "common/http/http_message.h"

#include <nlohmann/json.hpp>

namespace sluice {

const std::string& HttpRequest::Header(
    const std::string& lower_case_name) const {
  static const std::string& none = *new std::string;
  const auto it = headers.find(lower_case_name);
  return it == headers.end() ? none : it->second;
}

int HttpCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

HttpAnswer HttpError(int code, absl::string_view message) {
  const char* type = "server_error";
  if (code == 401 || code == 403) {
    type = "authentication_error";
  } else if (code == 429) {
    type = "rate_limit_error";
  } else if (code < 500) {
    type = "invalid_request_error";
  }
  const nlohmann::ordered_json error = {
      {"error",
       {{"message", std::string(message)}, {"type", type}, {"code", code}}}};
  HttpAnswer answer = HttpAnswer::Json(
      error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n");
  answer.code = code;
  return answer;
}

HttpAnswer HttpError(const absl::Status& status) {
  return HttpError(HttpCode(status.code()), status.message());
}

}  // namespace sluice
