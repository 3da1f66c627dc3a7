#include "server/access/token_file.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/host/read_file.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr size_t kMaxNameBytes = 64;

absl::StatusOr<std::string> Text(const json& entry, const char* field) {
  const auto it = entry.find(field);
  if (it == entry.end()) return "";
  if (!it->is_string()) return InvalidArgument(field, " is no string");
  return it->get<std::string>();
}

absl::StatusOr<int64_t> Time(const json& entry, const char* field) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, Text(entry, field));
  if (text.empty()) return 0;
  absl::Time time;
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, text, &time, &error)) {
    return InvalidArgument(field, " is no time as 2026-01-31T00:00:00Z");
  }
  return absl::ToUnixSeconds(time);
}

// A limit of a quota; nothing if it has none.
absl::StatusOr<std::optional<int64_t>> Limit(const json& entry,
                                             const char* field) {
  const auto it = entry.find(field);
  if (it == entry.end()) return std::nullopt;
  if (!it->is_number_integer() || *it < 1 || *it > INT64_MAX) {
    return InvalidArgument(field, " is no whole number from 1 on");
  }
  return it->get<int64_t>();
}

absl::Status CheckFields(const json& entry,
                         std::initializer_list<absl::string_view> fields) {
  if (!entry.is_object()) return InvalidArgument("is no object");
  for (const auto& item : entry.items()) {
    if (std::find(fields.begin(), fields.end(), item.key()) == fields.end()) {
      return InvalidArgument("has an unknown field ",
                             QuoteForMessage(item.key()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<const std::string, TenantQuota>> ParseQuota(
    const json& entry) {
  SLUICE_RETURN_IF_ERROR(
      CheckFields(entry, {"tenant", "requests", "tokens", "bytes"}));
  SLUICE_ASSIGN_OR_RETURN(const std::string tenant, Text(entry, "tenant"));
  SLUICE_RETURN_IF_ERROR(CheckQuotaTenant("tenant", tenant));
  TenantQuota quota;
  SLUICE_ASSIGN_OR_RETURN(quota.requests, Limit(entry, "requests"));
  SLUICE_ASSIGN_OR_RETURN(quota.tokens, Limit(entry, "tokens"));
  SLUICE_ASSIGN_OR_RETURN(quota.bytes, Limit(entry, "bytes"));
  return std::pair<const std::string, TenantQuota>(tenant, quota);
}

absl::StatusOr<TokenRecord> ParseToken(const json& entry) {
  SLUICE_RETURN_IF_ERROR(CheckFields(
      entry,
      {"name", "tenant", "scopes", "sha256", "created", "expires", "revoked"}));
  TokenRecord token;
  SLUICE_ASSIGN_OR_RETURN(token.name, Text(entry, "name"));
  SLUICE_RETURN_IF_ERROR(CheckName("name", token.name));
  SLUICE_ASSIGN_OR_RETURN(token.tenant, Text(entry, "tenant"));
  if (!token.tenant.empty()) {
    SLUICE_RETURN_IF_ERROR(CheckName("tenant", token.tenant));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string scopes, Text(entry, "scopes"));
  SLUICE_RETURN_IF_ERROR(ParseScopes(scopes, &token));
  SLUICE_ASSIGN_OR_RETURN(token.sha256, Text(entry, "sha256"));
  if (token.sha256.size() != 64 ||
      !std::all_of(token.sha256.begin(), token.sha256.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
               (c >= 'a' && c <= 'f');
      })) {
    return InvalidArgument("sha256 is not 64 lower-case hexadecimal digits");
  }
  SLUICE_ASSIGN_OR_RETURN(token.created_s, Time(entry, "created"));
  SLUICE_ASSIGN_OR_RETURN(token.expires_s, Time(entry, "expires"));
  if (const auto it = entry.find("revoked"); it != entry.end()) {
    if (!it->is_boolean())
      return InvalidArgument("revoked is no true or false");
    token.revoked = it->get<bool>();
  }
  return token;
}

std::string FormatTime(int64_t seconds) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(seconds),
                          absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<TokenFile> ParseTokens(absl::string_view text) {
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool has_quotas = file.is_object() && file.contains("quotas");
  if (!file.is_object() || file.size() != (has_quotas ? 2 : 1) ||
      !file.contains("tokens") || !file["tokens"].is_array() ||
      (has_quotas && !file["quotas"].is_array())) {
    return InvalidArgument(
        "it is neither {\"tokens\": [...]} nor {\"tokens\": [...], "
        "\"quotas\": [...]}");
  }
  TokenFile parsed;
  std::set<std::string> names;
  for (const json& entry : file["tokens"]) {
    auto token = ParseToken(entry);
    const std::string which = absl::StrCat("token ", parsed.tokens.size() + 1);
    if (!token.ok()) return Annotate(token.status(), which);
    if (!names.insert(token->name).second) {
      return InvalidArgument(which, ": the name ", token->name, " comes twice");
    }
    parsed.tokens.push_back(*std::move(token));
  }
  if (!has_quotas) return parsed;
  for (const json& entry : file["quotas"]) {
    auto quota = ParseQuota(entry);
    const std::string which = absl::StrCat("quota ", parsed.quotas.size() + 1);
    if (!quota.ok()) return Annotate(quota.status(), which);
    if (!parsed.quotas.insert(*quota).second) {
      return InvalidArgument(which, ": the tenant ",
                             QuoteForMessage(quota->first), " comes twice");
    }
  }
  return parsed;
}

TenantQuota TokenFile::QuotaOf(const std::string& tenant) const {
  auto found = quotas.find(tenant);
  if (found == quotas.end()) found = quotas.find(kOtherTenants);
  return found == quotas.end() ? TenantQuota() : found->second;
}

absl::StatusOr<TokenFile> ReadTokens(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(path, kMaxFileBytes));
  return Annotate(ParseTokens(text), path);
}

std::string FormatTokens(const TokenFile& file) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TokenRecord& token : file.tokens) {
    nlohmann::ordered_json entry = {{"name", token.name}};
    if (!token.tenant.empty()) entry["tenant"] = token.tenant;
    entry["scopes"] = FormatScopes(token);
    entry["sha256"] = token.sha256;
    if (token.created_s > 0) entry["created"] = FormatTime(token.created_s);
    if (token.expires_s > 0) entry["expires"] = FormatTime(token.expires_s);
    if (token.revoked) entry["revoked"] = true;
    list.push_back(std::move(entry));
  }
  nlohmann::ordered_json text = {{"tokens", list}};
  for (const auto& [tenant, quota] : file.quotas) {
    nlohmann::ordered_json entry = nlohmann::ordered_json::object();
    if (!tenant.empty()) entry["tenant"] = tenant;
    if (quota.requests) entry["requests"] = *quota.requests;
    if (quota.tokens) entry["tokens"] = *quota.tokens;
    if (quota.bytes) entry["bytes"] = *quota.bytes;
    text["quotas"].push_back(std::move(entry));
  }
  return text.dump(2) + "\n";
}

absl::Status WriteTokens(const std::string& path, const TokenFile& file) {
  return ReplaceFile(path, FormatTokens(file));
}

std::string MakeToken() {
  unsigned char bits[32];
  // OpenSSL's generator fails only where the system has no random numbers.
  if (RAND_bytes(bits, sizeof(bits)) != 1) abort();
  return absl::StrCat(
      "sluice_",
      absl::StripSuffix(absl::WebSafeBase64Escape(absl::string_view(
                            reinterpret_cast<const char*>(bits), sizeof(bits))),
                        "="));
}

std::string HashToken(absl::string_view token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         hash);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(hash), sizeof(hash)));
}

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes ||
      !std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
               c == '_' || c == '-';
      })) {
    return InvalidArgument(what, " ", QuoteForMessage(std::string(name)),
                           " is not 1 to ", kMaxNameBytes,
                           " letters, digits, dots, dashes and underscores");
  }
  return absl::OkStatus();
}

absl::Status CheckQuotaTenant(absl::string_view what,
                              absl::string_view tenant) {
  if (tenant.empty() || tenant == kOtherTenants) return absl::OkStatus();
  return CheckName(what, tenant);
}

absl::Status ParseScopes(absl::string_view text, TokenRecord* token) {
  for (const absl::string_view scope : absl::StrSplit(text, ',')) {
    bool* const granted = scope == "read"     ? &token->read
                          : scope == "submit" ? &token->submit
                          : scope == "admin"  ? &token->admin
                                              : nullptr;
    if (granted == nullptr || *granted) {
      return InvalidArgument("scopes ", QuoteForMessage(std::string(text)),
                             " are not some of read,submit,admin");
    }
    *granted = true;
  }
  return absl::OkStatus();
}

std::string FormatScopes(const TokenRecord& token) {
  std::vector<std::string> scopes;
  if (token.read) scopes.push_back("read");
  if (token.submit) scopes.push_back("submit");
  if (token.admin) scopes.push_back("admin");
  return absl::StrJoin(scopes, ",");
}

}  // namespace sluice
