#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

// What a caller must be allowed in order to use a method of a service or a
// route of the HTTP server. A token is granted any of kRead, kSubmit and
// kAdmin; none includes another.
enum class Scope {
  kOpen,     // anyone: probes
  kRead,     // sees jobs of its tenant, the cluster and its figures
  kSubmit,   // makes and ends jobs of its tenant
  kAdmin,    // acts on the cluster, and on every tenant's jobs
  kCluster,  // is a machine of the cluster: coordinator or worker
};

// Who calls, as its credential says.
struct Caller {
  std::string name;    // of the token, for the audit log; "": nobody known
  std::string tenant;  // "": the tenant of those without a token
  bool read = false;
  bool submit = false;
  bool admin = false;
  bool cluster = false;

  // A caller for whom nothing is closed: where no tokens are configured.
  static Caller Trusted() {
    return {.read = true, .submit = true, .admin = true, .cluster = true};
  }
  bool Has(Scope scope) const {
    switch (scope) {
      case Scope::kOpen:
        return true;
      case Scope::kRead:
        return read;
      case Scope::kSubmit:
        return submit;
      case Scope::kAdmin:
        return admin;
      case Scope::kCluster:
        return cluster;
    }
    return false;
  }
};

// What a tenant may have queued at a time; nothing: as much as it likes.
struct TenantQuota {
  std::optional<int64_t> requests;  // that have no result yet
  std::optional<int64_t> tokens;    // of their prompts, and max_tokens
  std::optional<int64_t> bytes;     // of the input of jobs that have not ended
};

}  // namespace sluice
