// `sluice token`: makes, lists and revokes the tokens of a file, and sets the
// quotas of tenants there. A coordinator reads the file as it changes.

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/flags/checks.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "common/text/text.h"
#include "common/threads/clock.h"
#include "server/access/token_file.h"
#include "server/cli/commands.h"

namespace sluice {
namespace {

struct TokenFlags {
  std::string file, name, tenant, scopes = "read,submit", expires, bytes;
  TenantQuota quota;
  bool no_quota = false;
};

// The tokens of a file; none if there is no file yet.
absl::StatusOr<TokenFile> ReadOrBegin(const std::string& path) {
  auto file = ReadTokens(path);
  if (absl::IsNotFound(file.status())) return TokenFile();
  return file;
}

// "30d", "12h"; "" is never.
absl::StatusOr<int64_t> ParseExpiry(const std::string& text, int64_t now_s) {
  if (text.empty()) return 0;
  int64_t count = 0;
  const char unit = text.back();
  if (!absl::SimpleAtoi(text.substr(0, text.size() - 1), &count) || count < 1 ||
      count > 36500 || (unit != 'd' && unit != 'h')) {
    return InvalidArgument("--expires ", QuoteForMessage(text),
                           ": give days or hours, as 30d or 12h");
  }
  return now_s + count * (unit == 'd' ? 86400 : 3600);
}

std::string DayOf(int64_t seconds) {
  return seconds == 0 ? "-"
                      : absl::FormatTime("%Y-%m-%d %H:%M",
                                         absl::FromUnixSeconds(seconds),
                                         absl::UTCTimeZone());
}

absl::Status CreateToken(const TokenFlags& flags) {
  const int64_t now = absl::ToUnixSeconds(Clock::Real()->Now());
  SLUICE_ASSIGN_OR_RETURN(TokenFile file, ReadOrBegin(flags.file));
  TokenRecord token;
  token.name = flags.name;
  SLUICE_RETURN_IF_ERROR(CheckName("--name", token.name));
  for (const TokenRecord& other : file.tokens) {
    if (other.name == token.name) {
      return InvalidArgument(flags.file, " has a token ", token.name,
                             " already; choose another --name");
    }
  }
  token.tenant = flags.tenant;
  if (!token.tenant.empty()) {
    SLUICE_RETURN_IF_ERROR(CheckName("--tenant", token.tenant));
  }
  SLUICE_RETURN_IF_ERROR(
      Annotate(ParseScopes(flags.scopes, &token), "--scopes"));
  SLUICE_ASSIGN_OR_RETURN(token.expires_s, ParseExpiry(flags.expires, now));
  token.created_s = now;
  const std::string secret = MakeToken();
  token.sha256 = HashToken(secret);
  file.tokens.push_back(std::move(token));
  SLUICE_RETURN_IF_ERROR(WriteTokens(flags.file, file));
  std::cerr << "the token of " << flags.name
            << ", which is shown only now (set SLUICE_TOKEN to it):\n";
  std::cout << secret << std::endl;
  return absl::OkStatus();
}

std::string QuotaTable(const TokenFile& file) {
  std::string table =
      absl::StrFormat("%-20s %16s %16s %20s\n", "QUOTA OF TENANT", "REQUESTS",
                      "TOKENS", "BYTES");
  const auto text = [](const std::optional<int64_t>& limit) {
    return limit ? absl::StrCat(*limit) : "-";
  };
  for (const auto& [tenant, quota] : file.quotas) {
    absl::StrAppendFormat(&table, "%-20s %16s %16s %20s\n",
                          tenant.empty() ? "-" : tenant, text(quota.requests),
                          text(quota.tokens), text(quota.bytes));
  }
  return table;
}

absl::Status ListTokens(const TokenFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const TokenFile file, ReadTokens(flags.file));
  const int64_t now = absl::ToUnixSeconds(Clock::Real()->Now());
  std::cout << absl::StrFormat("%-20s %-16s %-18s %-17s %-17s %s\n", "NAME",
                               "TENANT", "SCOPES", "CREATED", "EXPIRES",
                               "STATE");
  for (const TokenRecord& token : file.tokens) {
    const char* state = "valid";
    if (token.revoked) {
      state = "revoked";
    } else if (token.expires_s > 0 && token.expires_s <= now) {
      state = "expired";
    }
    std::cout << absl::StrFormat(
        "%-20s %-16s %-18s %-17s %-17s %s\n", token.name,
        token.tenant.empty() ? "-" : token.tenant, FormatScopes(token),
        DayOf(token.created_s), DayOf(token.expires_s), state);
  }
  if (!file.quotas.empty()) std::cout << "\n" << QuotaTable(file);
  return absl::OkStatus();
}

// Changes the limits that are named. The others stay.
absl::Status SetQuota(const TokenFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(TokenFile file, ReadTokens(flags.file));
  SLUICE_RETURN_IF_ERROR(CheckQuotaTenant("--tenant", flags.tenant));
  TenantQuota named = flags.quota;
  if (!flags.bytes.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        named.bytes, Annotate(ParseByteSize(flags.bytes), "--queued-bytes"));
  }
  const bool any = named.requests || named.tokens || named.bytes;
  if (any == flags.no_quota) {
    return absl::InvalidArgumentError(
        "give limits that are to change, or --none, which ends the quota; "
        "`sluice token list` shows quotas");
  }
  if (flags.no_quota) {
    file.quotas.erase(flags.tenant);
  } else {
    TenantQuota& quota = file.quotas[flags.tenant];
    if (named.requests) quota.requests = named.requests;
    if (named.tokens) quota.tokens = named.tokens;
    if (named.bytes) quota.bytes = named.bytes;
  }
  SLUICE_RETURN_IF_ERROR(WriteTokens(flags.file, file));
  std::cout << QuotaTable(file) << std::flush;
  return absl::OkStatus();
}

absl::Status RevokeToken(const TokenFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(TokenFile file, ReadTokens(flags.file));
  const auto it =
      std::find_if(file.tokens.begin(), file.tokens.end(),
                   [&](const auto& t) { return t.name == flags.name; });
  if (it == file.tokens.end()) {
    return NotFound(flags.file, " has no token ", QuoteForMessage(flags.name),
                    "; see: sluice token list --file ", flags.file);
  }
  it->revoked = true;
  SLUICE_RETURN_IF_ERROR(WriteTokens(flags.file, file));
  std::cout << "revoked " << flags.name << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddTokenCommand(CLI::App* app, Command* chosen) {
  CLI::App* const token = app->add_subcommand(
      "token",
      "Make, list and revoke the tokens that users show; set tenants' quotas");
  token->group(kOperatorCommands);
  token->require_subcommand(1);
  token->footer(
      "Examples:\n"
      "  sluice token create --file tokens.json --name ci --tenant lab\n"
      "  sluice token create --file tokens.json --name boss --scopes "
      "read,submit,admin --expires 90d\n"
      "  sluice token list --file tokens.json\n"
      "  sluice token revoke --file tokens.json --name ci\n"
      "  sluice token quota --file tokens.json --tenant lab "
      "--queued-requests 100000 --queued-bytes 10GiB\n"
      "A coordinator with --tokens tokens.json sees changes at once.");
  const auto add = [=](const char* name, const char* description,
                       absl::Status (*run)(const TokenFlags&)) {
    CLI::App* const cmd = token->add_subcommand(name, description);
    auto flags = std::make_shared<TokenFlags>();
    cmd->add_option("--file", flags->file, "the file of tokens")
        ->required()
        ->type_name("FILE");
    cmd->callback([=] { *chosen = [=] { return run(*flags); }; });
    return std::make_pair(cmd, flags);
  };
  const auto [create, flags] =
      add("create", "Add a token, and print it", CreateToken);
  create->add_option("--name", flags->name, "what the audit log calls it")
      ->required();
  create->add_option("--tenant", flags->tenant,
                     "whose jobs it makes and sees; default: those of nobody "
                     "in particular");
  create
      ->add_option("--scopes", flags->scopes,
                   "what it grants, some of read,submit,admin; admin sees and "
                   "changes all tenants' jobs")
      ->capture_default_str();
  create->add_option("--expires", flags->expires,
                     "after so many days or hours, as 30d or 12h; default: "
                     "never");
  add("list", "Show the tokens, but not what they are", ListTokens);
  const auto [revoke, revoked] = add("revoke", "End a token", RevokeToken);
  revoke->add_option("--name", revoked->name, "the token's name")->required();
  const auto [quota, limits] =
      add("quota", "Limit what a tenant may have queued; limits not named stay",
          SetQuota);
  quota->add_option("--tenant", limits->tenant,
                    "whose; * is each one without a quota of its own; default: "
                    "that of tokens without a tenant");
  quota
      ->add_option("--queued-requests", limits->quota.requests,
                   "most requests without a result")
      ->check(CLI::PositiveNumber);
  quota
      ->add_option("--queued-tokens", limits->quota.tokens,
                   "most tokens of their prompts and max_tokens, together")
      ->check(CLI::PositiveNumber);
  quota
      ->add_option("--queued-bytes", limits->bytes,
                   "most input of jobs that have not ended, as 10GiB")
      ->type_name("SIZE");
  quota->add_flag("--none", limits->no_quota, "end the tenant's quota");
}

}  // namespace sluice
