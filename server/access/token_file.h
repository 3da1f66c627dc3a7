#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/access.h"

namespace sluice {

// A token as it is kept: not itself, but its hash.
struct TokenRecord {
  std::string name;    // unique in its file
  std::string tenant;  // whose jobs it sees; "": those made without a token
  bool read = false;
  bool submit = false;
  bool admin = false;
  std::string sha256;     // of the token, 64 lower-case hexadecimal digits
  int64_t created_s = 0;  // seconds since the Unix epoch
  int64_t expires_s = 0;  // 0: never
  bool revoked = false;

  Caller caller() const {
    return {.name = name,
            .tenant = tenant,
            .read = read,
            .submit = submit,
            .admin = admin};
  }
};

// A file of tokens: JSON, {"tokens": [{"name", "tenant", "scopes", "sha256",
// "created", "expires", "revoked"}], "quotas": [{"tenant", "requests",
// "tokens", "bytes"}]}, times as in RFC 3339. Quotas may be missing.
struct TokenFile {
  std::vector<TokenRecord> tokens;
  // By tenant; that of kOtherTenants is for those without one of their own.
  std::map<std::string, TenantQuota> quotas;

  TenantQuota QuotaOf(const std::string& tenant) const;
};
inline constexpr char kOtherTenants[] = "*";

// kNotFound if there is no file; kInvalidArgument names the entry and the field
// that is wrong.
absl::StatusOr<TokenFile> ReadTokens(const std::string& path);
absl::StatusOr<TokenFile> ParseTokens(absl::string_view text);
std::string FormatTokens(const TokenFile& file);
// Replaces the file. It may be readable by all: a token can't be found from its
// hash.
absl::Status WriteTokens(const std::string& path, const TokenFile& file);

// A new token: "sluice_" and 43 characters of 256 random bits.
std::string MakeToken();
std::string HashToken(absl::string_view token);

// kInvalidArgument if `name`, of a token or a tenant, is not 1 to 64 letters,
// digits and ". _ -".
absl::Status CheckName(absl::string_view what, absl::string_view name);
// The same for a tenant that has a quota: "" and kOtherTenants are some, too.
absl::Status CheckQuotaTenant(absl::string_view what, absl::string_view tenant);
// Parses "read,submit,admin", each at most once.
absl::Status ParseScopes(absl::string_view text, TokenRecord* token);
std::string FormatScopes(const TokenRecord& token);

}  // namespace sluice
