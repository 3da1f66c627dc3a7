#include "common/http/http_router.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

absl::StatusOr<std::string> PercentDecode(absl::string_view text,
                                          bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0) {
        return InvalidArgument("% without two hexadecimal digits behind it");
      }
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      return InvalidArgument("a control character in the address");
    }
    decoded.push_back(c);
  }
  return decoded;
}

bool IsParameter(absl::string_view segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

// The raw segments are matched, and decoded after, so that a slash that is
// percent-encoded stays within its segment.
std::vector<std::string> Segments(absl::string_view path) {
  return absl::StrSplit(path, '/');
}

}  // namespace

HttpRouter::HttpRouter(std::vector<HttpRoute> routes)
    : routes_(std::move(routes)) {
  for (const HttpRoute& route : routes_) {
    segments_.push_back(Segments(route.pattern));
  }
}

absl::Status HttpRouter::ParseTarget(absl::string_view target,
                                     HttpRequest* request) {
  if (target.empty() || target.front() != '/') {
    return InvalidArgument("the address must be a path that begins with /");
  }
  const size_t mark = target.find('?');
  const absl::string_view raw = target.substr(0, mark);
  SLUICE_RETURN_IF_ERROR(PercentDecode(raw, false).status());
  request->path = std::string(raw);
  if (mark == absl::string_view::npos) return absl::OkStatus();
  for (const absl::string_view pair :
       absl::StrSplit(target.substr(mark + 1), '&', absl::SkipEmpty())) {
    const size_t equals = pair.find('=');
    SLUICE_ASSIGN_OR_RETURN(std::string key,
                            PercentDecode(pair.substr(0, equals), true));
    std::string value;
    if (equals != absl::string_view::npos) {
      SLUICE_ASSIGN_OR_RETURN(value,
                              PercentDecode(pair.substr(equals + 1), true));
    }
    request->query[std::move(key)] = std::move(value);
  }
  return absl::OkStatus();
}

const HttpRoute* HttpRouter::Find(HttpRequest* request,
                                  HttpAnswer* refusal) const {
  const std::vector<std::string> parts = Segments(request->path);
  std::set<std::string> allowed;
  for (size_t r = 0; r < routes_.size(); ++r) {
    const std::vector<std::string>& pattern = segments_[r];
    if (pattern.size() != parts.size()) continue;
    std::map<std::string, std::string> params;
    bool matches = true;
    for (size_t i = 0; matches && i < parts.size(); ++i) {
      const auto decoded = PercentDecode(parts[i], false);
      matches = decoded.ok();
      if (!matches) break;
      if (IsParameter(pattern[i])) {
        matches = !decoded->empty();
        params[pattern[i].substr(1, pattern[i].size() - 2)] = *decoded;
      } else {
        matches = *decoded == pattern[i];
      }
    }
    if (!matches) continue;
    if (routes_[r].method == request->method) {
      request->params = std::move(params);
      return &routes_[r];
    }
    allowed.insert(routes_[r].method);
  }
  if (!allowed.empty()) {
    *refusal = HttpError(
        405, absl::StrCat(request->method, " is not for ", request->path));
    if (allowed.contains("GET")) allowed.insert("HEAD");
    refusal->headers.emplace_back("Allow", absl::StrJoin(allowed, ", "));
    return nullptr;
  }
  std::vector<std::string> pages;
  for (const HttpRoute& route : routes_) {
    if (route.method == "GET" && route.pattern.find('{') == std::string::npos) {
      pages.push_back(route.pattern);
    }
  }
  *refusal =
      HttpError(404, absl::StrCat("nothing is at ", request->path,
                                  "; there are ", absl::StrJoin(pages, ", ")));
  return nullptr;
}

}  // namespace sluice
