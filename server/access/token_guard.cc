#include "server/access/token_guard.h"

#include <utility>

#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/host/tls_files.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// The state of a file, by its times and size.
std::string StampOf(const std::string& path) {
  return TlsFilesStamp({.certificate = path});
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenGuard>> TokenGuard::Create(
    Options options) {
  if (!options.tokens_file.empty() && options.cluster_token.empty()) {
    return InvalidArgument(
        "--tokens needs --cluster-token-file, too: a worker that joins sees "
        "what users send");
  }
  std::unique_ptr<TokenGuard> guard(new TokenGuard(std::move(options)));
  if (guard->has_tokens()) SLUICE_RETURN_IF_ERROR(guard->Reload());
  return guard;
}

absl::Status TokenGuard::Reload() {
  std::string stamp = StampOf(options_.tokens_file);
  absl::StatusOr<TokenFile> read = ReadTokens(options_.tokens_file);
  MutexLock lock(&mu_);
  stamp_ = std::move(stamp);
  if (!read.ok()) return Annotate(read.status(), "--tokens");
  file_ = *std::move(read);
  tokens_.clear();
  for (const TokenRecord& token : file_.tokens) tokens_[token.sha256] = &token;
  return absl::OkStatus();
}

void TokenGuard::ReloadIfChanged() {
  {
    MutexLock lock(&mu_);
    if (StampOf(options_.tokens_file) == stamp_) return;
  }
  if (const absl::Status read = Reload(); read.ok()) {
    LogInfo("the tokens were read again, file=", options_.tokens_file);
  } else {
    LogError(read.message(), "; the tokens from before stay in force");
  }
}

TenantQuota TokenGuard::QuotaOf(const std::string& tenant) {
  if (!has_tokens()) return {};
  ReloadIfChanged();
  MutexLock lock(&mu_);
  return file_.QuotaOf(tenant);
}

absl::StatusOr<Caller> TokenGuard::Find(absl::string_view credential,
                                        Scope scope) {
  if (scope == Scope::kOpen) return Caller{};
  const bool shows = absl::ConsumePrefix(&credential, "Bearer ");
  if (shows && !options_.cluster_token.empty() &&
      SameToken(credential, options_.cluster_token)) {
    return Caller{.name = "cluster", .cluster = true};
  }
  if (scope == Scope::kCluster) {
    if (options_.cluster_token.empty()) return Caller::Trusted();
    return absl::UnauthenticatedError(
        "this is for machines of the cluster: start all with the same "
        "--cluster-token-file");
  }
  if (!has_tokens()) return Caller::Trusted();
  if (!shows) {
    return absl::UnauthenticatedError(
        "a token is needed: sluice takes one from SLUICE_TOKEN or "
        "--token-file, other clients send \"authorization: Bearer TOKEN\"");
  }
  ReloadIfChanged();
  MutexLock lock(&mu_);
  const auto it = tokens_.find(HashToken(credential));
  if (it == tokens_.end()) {
    return absl::UnauthenticatedError("this token is not known");
  }
  const TokenRecord& token = *it->second;
  if (token.revoked) {
    return absl::UnauthenticatedError(
        absl::StrCat("the token ", token.name, " was revoked"));
  }
  if (token.expires_s > 0 &&
      absl::ToUnixSeconds(options_.clock->Now()) >= token.expires_s) {
    return absl::UnauthenticatedError(
        absl::StrCat("the token ", token.name, " has expired"));
  }
  return token.caller();
}

absl::StatusOr<Caller> TokenGuard::Check(absl::string_view credential,
                                         Scope scope, absl::string_view peer,
                                         absl::string_view what) {
  absl::StatusOr<Caller> caller = Find(credential, scope);
  absl::Status outcome = caller.status();
  if (outcome.ok() && !caller->Has(scope)) {
    outcome = absl::PermissionDeniedError(
        absl::StrCat("the token ", caller->name, " is not granted ",
                     ScopeName(scope), ", which this needs"));
  }
  if (options_.audit != nullptr &&
      (!outcome.ok() || scope == Scope::kSubmit || scope == Scope::kAdmin ||
       scope == Scope::kCluster)) {
    options_.audit->Write(caller.value_or(Caller{}), scope, peer, what,
                          outcome);
  }
  if (!outcome.ok()) return outcome;
  return caller;
}

}  // namespace sluice
