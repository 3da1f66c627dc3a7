#include "coordinator/jobs/tenant_quotas.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/threads/retry_delay.h"
#include "coordinator/jobs/job_state.h"

namespace sluice {
namespace {

// The smallest job that there is.
constexpr TenantQuotas::Usage kLeast = {.requests = 1, .tokens = 1, .bytes = 1};

TenantQuotas::Usage UsageOf(const JobRecord& job) {
  if (IsTerminal(job.state)) return {};
  // What a job of an early version wants is not known.
  const int64_t tokens = job.wanted_prompt_tokens - job.prompt_tokens +
                         job.wanted_max_tokens - job.answered_max_tokens;
  return {.requests = job.pending(),
          .tokens = std::max<int64_t>(tokens, 0),
          .bytes = job.input_bytes};
}

}  // namespace

std::optional<TenantQuotas::Excess> TenantQuotas::Compare(
    const TenantQuota& quota, const Usage& others, const Usage& usage) {
  const auto beyond = [](const std::optional<int64_t>& most, int64_t others,
                         int64_t usage) {
    return most && usage > *most - others;  // none is negative
  };
  if (beyond(quota.requests, others.requests, usage.requests)) {
    return Excess{"requests", *quota.requests, others.requests, usage.requests};
  }
  if (beyond(quota.tokens, others.tokens, usage.tokens)) {
    return Excess{"tokens", *quota.tokens, others.tokens, usage.tokens};
  }
  if (beyond(quota.bytes, others.bytes, usage.bytes)) {
    return Excess{"bytes of input", *quota.bytes, others.bytes, usage.bytes};
  }
  return std::nullopt;
}

TenantQuota TenantQuotas::QuotaOf(const std::string& tenant) const {
  return options_.quota_of ? options_.quota_of(tenant) : TenantQuota();
}

absl::Status TenantQuotas::Refuse(const std::string& tenant,
                                  const Excess& excess) const {
  options_.metrics->CountRefused(tenant);
  const std::string quota = absl::StrCat(
      "the quota of ",
      tenant.empty() ? "tokens without a tenant" : "tenant " + tenant, " is ",
      excess.most, " ", excess.what, " queued");
  if (excess.usage > excess.most) {
    return ResourceExhausted(quota,
                             ", and this job alone has more; no job was made "
                             "of it: split it, or ask for a larger quota");
  }
  const absl::Duration delay = options_.delay(tenant);
  return WithRetryDelay(
      ResourceExhausted(quota, ", and ", excess.others,
                        " are: this job does not fit, and no job was made of "
                        "it; try again in ",
                        absl::FormatDuration(delay)),
      delay);
}

absl::Status TenantQuotas::CheckRoom(const std::string& tenant) {
  const TenantQuota quota = QuotaOf(tenant);
  Usage queued;
  {
    MutexLock lock(&mu_);
    if (const auto it = tenants_.find(tenant); it != tenants_.end()) {
      queued = it->second;
    }
  }
  const std::optional<Excess> excess = Compare(quota, queued, kLeast);
  return excess ? Refuse(tenant, *excess) : absl::OkStatus();
}

absl::Status TenantQuotas::Reserve(JobId job, const std::string& tenant,
                                   const Usage& usage) {
  const TenantQuota quota = QuotaOf(tenant);
  std::optional<Excess> excess;
  {
    MutexLock lock(&mu_);
    Usage others = tenants_[tenant];
    if (const auto it = jobs_.find(job); it != jobs_.end()) {
      others.requests -= it->second.usage.requests;
      others.tokens -= it->second.usage.tokens;
      others.bytes -= it->second.usage.bytes;
    }
    excess = Compare(quota, others, usage);
    if (!excess) Set(job, tenant, usage);
  }
  return excess ? Refuse(tenant, *excess) : absl::OkStatus();
}

void TenantQuotas::Update(const JobRecord& job) {
  MutexLock lock(&mu_);
  Set(job.id, job.tenant, UsageOf(job));
  if (IsTerminal(job.state)) jobs_.erase(job.id);
}

void TenantQuotas::Forget(JobId job) {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  Set(job, it->second.tenant, {});
  jobs_.erase(it);
}

void TenantQuotas::Set(JobId job, const std::string& tenant,
                       const Usage& usage) {
  Job& entry = jobs_[job];
  Usage& queued = tenants_[tenant];
  queued.requests += usage.requests - entry.usage.requests;
  queued.tokens += usage.tokens - entry.usage.tokens;
  queued.bytes += usage.bytes - entry.usage.bytes;
  options_.metrics->SetQueued(tenant, queued.requests, queued.tokens,
                              queued.bytes);
  entry.usage = usage;
  if (entry.tenant != tenant) entry.tenant = tenant;
}

}  // namespace sluice
