#include "common/flags/checks.h"

#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/text/text.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

// Whether a target names gRPC's resolver: "dns:host:80", "ipv6:[::1]:80",
// "xds:///name". gRPC does so even if a host has the name of a scheme.
bool NamesResolver(absl::string_view target) {
  for (const char* scheme : {"dns:", "ipv4:", "ipv6:", "unix:",
                             "unix-abstract:", "vsock:", "xds:"}) {
    if (absl::StartsWith(target, scheme)) return true;
  }
  return absl::StrContains(target, "://");
}

// The value must be `what`, which `is` tells.
CLI::Validator Number(const std::string& what,
                      std::function<bool(const std::string&)> is) {
  return CLI::Validator(
      [what, is = std::move(is)](std::string& value) -> std::string {
        if (is(value)) return "";
        return absl::StrCat("must be ", what, ", not ",
                            EscapeForTerminal(value));
      },
      "", what);
}

}  // namespace

CLI::Validator Utf8Text() {
  return CLI::Validator(
      [](std::string& value) -> std::string {
        const auto at = FindInvalidUtf8(value);
        if (!at) return "";
        return absl::StrCat("\"", EscapeForTerminal(value),
                            "\" is not UTF-8 at byte ", *at + 1,
                            "; write it as UTF-8");
      },
      "", "UTF-8");
}

CLI::Validator AtLeast(int64_t min) {
  return Number(absl::StrCat("a whole number of at least ", min),
                [min](const std::string& value) {
                  int64_t number = 0;
                  return absl::SimpleAtoi(value, &number) && number >= min;
                });
}

CLI::Validator WholeFrom(int64_t min, int64_t max) {
  return Number(absl::StrCat("a whole number from ", min, " to ", max),
                [min, max](const std::string& value) {
                  int64_t number = 0;
                  return absl::SimpleAtoi(value, &number) && number >= min &&
                         number <= max;
                });
}

CLI::Validator From(double min, double max) {
  return Number(absl::StrCat("a number from ", min, " to ", max),
                [min, max](const std::string& value) {
                  double number = 0;
                  return absl::SimpleAtod(value, &number) && number >= min &&
                         number <= max;
                });
}

std::string WithDefaultPort(const std::string& address, int port) {
  absl::string_view rest = address;
  for (const char* scheme : {"http://", "grpc://"}) {
    if (absl::ConsumePrefix(&rest, scheme)) break;
  }
  if (rest.empty() || NamesResolver(rest)) return std::string(rest);
  absl::ConsumeSuffix(&rest, "/");
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || rest.back() == ']') {
    return absl::StrCat(rest, ":", port);
  }
  // Colons without brackets are an IPv6 address without a port.
  if (rest.find(':') != colon && rest.front() != '[') {
    return absl::StrCat("[", rest, "]:", port);
  }
  if (colon + 1 == rest.size()) return absl::StrCat(rest, port);
  return std::string(rest);
}

}  // namespace sluice
