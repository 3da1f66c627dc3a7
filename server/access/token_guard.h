#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "proto/call_guard.h"
#include "server/access/audit_log.h"
#include "server/access/token_file.h"

namespace sluice {

// A coordinator's guard: users show tokens of a file, machines the cluster's.
// What users may see without one is said by the options. Thread-safe.
class TokenGuard : public CallGuard {
 public:
  struct Options {
    // The file of tokens, read again when it changes; "": none, and everybody
    // does what users do.
    std::string tokens_file;
    std::string cluster_token;  // "": every machine may join
    AuditLog* audit = nullptr;  // may be null
    const Clock* clock = nullptr;
  };
  // kInvalidArgument if there are tokens of users, and none of the cluster:
  // whoever joins it sees what users send. Errors of the file name it.
  static absl::StatusOr<std::unique_ptr<TokenGuard>> Create(Options options);

  // Calls that only read are written to the audit log only if refused.
  absl::StatusOr<Caller> Check(absl::string_view credential, Scope scope,
                               absl::string_view peer,
                               absl::string_view what) override;

  // Returns a tenant's quota, as the file has it now.
  TenantQuota QuotaOf(const std::string& tenant);

  // Whether users need tokens.
  bool has_tokens() const { return !options_.tokens_file.empty(); }
  // Reads the file now. If it is not right, what was read before stays, and
  // the error is returned.
  absl::Status Reload();

 private:
  explicit TokenGuard(Options options) : options_(std::move(options)) {}

  absl::StatusOr<Caller> Find(absl::string_view credential, Scope scope);
  void ReloadIfChanged();

  const Options options_;
  Mutex mu_;
  std::string stamp_ ABSL_GUARDED_BY(mu_);  // of the file that was read last
  TokenFile file_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, const TokenRecord*> tokens_
      ABSL_GUARDED_BY(mu_);  // of file_, by hash
};

}  // namespace sluice
