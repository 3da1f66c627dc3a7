#include "server/console/same_origin.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/text/text.h"

namespace sluice {
namespace {

bool IsAddress(int family, absl::string_view text) {
  unsigned char bytes[16];
  return inet_pton(family, std::string(text).c_str(), bytes) == 1;
}

}  // namespace

absl::Status CheckSameOrigin(const HttpRequest& request) {
  const std::string& site = request.Header("sec-fetch-site");
  if (!site.empty() && site != "same-origin" && site != "none") {
    return absl::PermissionDeniedError(
        "a page of another site may not ask the console");
  }
  if (const std::string& origin = request.Header("origin"); !origin.empty()) {
    absl::string_view from = origin;
    if (!absl::ConsumePrefix(&from, "http://")) {
      absl::ConsumePrefix(&from, "https://");
    }
    if (!absl::EqualsIgnoreCase(from, request.Header("host"))) {
      return absl::PermissionDeniedError(absl::StrCat(
          "a page of ", QuoteForMessage(origin),
          " may not ask the console; a proxy before it must keep Host"));
    }
  }
  if (request.method == "GET") return absl::OkStatus();
  absl::string_view type = request.Header("content-type");
  type = absl::StripAsciiWhitespace(type.substr(0, type.find(';')));
  if (!absl::EqualsIgnoreCase(type, "application/json")) {
    return absl::InvalidArgumentError(
        "changes are sent as Content-Type: application/json");
  }
  return absl::OkStatus();
}

absl::Status CheckHost(absl::string_view host, absl::string_view machine) {
  absl::string_view name = host;
  if (absl::ConsumePrefix(&name, "[")) {
    const size_t end = name.find(']');
    if (end != absl::string_view::npos &&
        IsAddress(AF_INET6, name.substr(0, end))) {
      return absl::OkStatus();
    }
  }
  name = absl::StripSuffix(name.substr(0, name.find(':')), ".");
  if (!name.empty() &&
      (IsAddress(AF_INET, name) || !absl::StrContains(name, '.') ||
       absl::EqualsIgnoreCase(name, machine))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "without --tokens, the console answers only where it is called by an "
      "address, a name without a dot, or this machine's name, as other names "
      "may be anybody's; not by ",
      QuoteForMessage(std::string(host))));
}

}  // namespace sluice
