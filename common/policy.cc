#include "common/policy.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/policy_keys.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 16;

absl::Status Set(absl::string_view name, absl::string_view value,
                 Policy* policy, std::set<absl::string_view>* keys) {
  const PolicyKey* const key = FindPolicyKey(name);
  if (key != nullptr) {
    keys->insert(key->name);
    return key->set(name, value, policy);
  }
  return InvalidArgument(
      "policy: unknown key ", name, "; known are ",
      PolicyKeyNames([](const PolicyKey&) { return true; }, ", ", " and "));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad() || (!in.eof() && text.size() <= kMaxFileBytes)) {
    return InvalidArgument(
        "policy: can't read the file '", path, "'",
        errno != 0 ? absl::StrCat(": ", std::strerror(errno)) : "",
        " (--policy @FILE names one of key=value lines, or a plan)");
  }
  if (text.size() > kMaxFileBytes) {
    return InvalidArgument("policy: the file '", path, "' has more than ",
                           kMaxFileBytes, " bytes");
  }
  return text;
}

}  // namespace

absl::Status UpdatePolicy(absl::string_view text, Policy* policy) {
  std::set<absl::string_view> ignored;
  return UpdatePolicy(text, policy, &ignored);
}

absl::Status UpdatePolicy(absl::string_view text, Policy* policy,
                          std::set<absl::string_view>* keys) {
  std::string contents;
  if (absl::ConsumePrefix(&text, "@")) {
    SLUICE_ASSIGN_OR_RETURN(contents, ReadFile(std::string(text)));
    text = contents;
  }
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = line.substr(0, line.find('#'));
    for (const absl::string_view pair :
         absl::StrSplit(line, absl::ByAnyChar(", \t\r"), absl::SkipEmpty())) {
      const size_t equals = pair.find('=');
      if (equals == absl::string_view::npos || equals == 0) {
        const PolicyKey* const key = FindPolicyKey(pair);
        return InvalidArgument(
            "policy: ", pair, ": expected key=value",
            key == nullptr
                ? ""
                : absl::StrCat(", of which the value is ", key->values));
      }
      SLUICE_RETURN_IF_ERROR(
          Set(pair.substr(0, equals), pair.substr(equals + 1), policy, keys));
    }
  }
  for (const auto& [name, fractions] :
       {std::pair("w", &policy->weights), std::pair("c", &policy->kv_cache),
        std::pair("h", &policy->activations)}) {
    const TierFractions& f = *fractions;
    if (std::abs(f.device + f.host + f.disk - 1) > 1e-6) {
      return InvalidArgument("policy: the shares of ", name, ", ",
                             absl::StrFormat("%.9g/%.9g/%.9g", 100 * f.device,
                                             100 * f.host, 100 * f.disk),
                             " per cent, don't add up to 100");
    }
  }
  return absl::OkStatus();
}

std::string PolicyText(const Policy& policy) {
  return PolicyValues(policy, [](const PolicyKey&) { return true; });
}

KvFormat KvFormatOf(const Policy& policy) {
  if (policy.compress_kv == WeightFormat::kInt8) return KvFormat::kInt8;
  if (policy.compress_kv == WeightFormat::kInt4) return KvFormat::kInt4;
  return UnquantizedKvFormat(policy.dtype);
}

}  // namespace sluice
