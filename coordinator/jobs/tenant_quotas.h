#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/access.h"
#include "common/threads/mutex.h"
#include "common/types.h"
#include "coordinator/jobs/job_metrics.h"
#include "coordinator/store/job_record.h"

namespace sluice {

// What each tenant has queued, beside its quota: of jobs that have not ended
// and of uploads under way. What an upload is to add is reserved before it is
// stored, so that no two of them together exceed a quota. Jobs that were
// accepted stay, whatever becomes of the quota. Thread-safe.
class TenantQuotas {
 public:
  // What is queued, as TenantQuota limits it.
  struct Usage {
    int64_t requests = 0;
    int64_t tokens = 0;
    int64_t bytes = 0;
  };
  struct Options {
    // Returns the quota of a tenant as it is now; null: nobody has one.
    std::function<TenantQuota(const std::string& tenant)> quota_of;
    // Returns the time after which a tenant may have room again.
    std::function<absl::Duration(const std::string& tenant)> delay;
    JobMetrics* metrics = nullptr;  // must outlive this
  };
  explicit TenantQuotas(Options options) : options_(std::move(options)) {}

  // kResourceExhausted, with a RetryDelayOf(), if the tenant's queue is full,
  // so that no job fits.
  absl::Status CheckRoom(const std::string& tenant);
  // Sets what an upload has come to. kResourceExhausted, and what was reserved
  // before stays, if that is beyond the tenant's quota: with a RetryDelayOf(),
  // unless it is beyond it by itself.
  absl::Status Reserve(JobId job, const std::string& tenant,
                       const Usage& usage);
  // Takes a published job as it is now in the place of what was reserved for
  // it; one that has ended has nothing queued.
  void Update(const JobRecord& job);
  // Forgets an upload that came to nothing.
  void Forget(JobId job);

 private:
  struct Job {
    std::string tenant;
    Usage usage;
  };
  // A limit that a job would exceed.
  struct Excess {
    const char* what;
    int64_t most, others, usage;
  };
  static std::optional<Excess> Compare(const TenantQuota& quota,
                                       const Usage& others, const Usage& usage);
  TenantQuota QuotaOf(const std::string& tenant) const;
  absl::Status Refuse(const std::string& tenant, const Excess& excess) const;
  void Set(JobId job, const std::string& tenant, const Usage& usage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  Mutex mu_;
  std::map<JobId, Job> jobs_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Usage> tenants_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
