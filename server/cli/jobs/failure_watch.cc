#include "server/cli/jobs/failure_watch.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice {

bool FailureWatch::Update(const v1::Job& job, const v1::ClusterState& cluster) {
  constexpr int64_t kMaxFailures = 3;
  int64_t failures = 0;
  for (const v1::PlanFailures& reason : cluster.plan_failures()) {
    failures += reason.count();
  }
  // generated_so_far does not count: each failed plan may have added a token.
  const int64_t done = job.generation_tokens() + job.counts().completed() +
                       job.counts().failed();
  if (done != done_) {
    done_ = done;
    failures_ = failures;
  }
  if (absl::StrContains(job.detail(), " failed in stage ")) {
    detail_ = job.detail();
  }
  if (failures - failures_ < kMaxFailures) return true;
  status_ = absl::FailedPreconditionError(absl::StrCat(
      "given up after ", kMaxFailures,
      " failures in a row: ", detail_.empty() ? job.detail() : detail_));
  return false;
}

}  // namespace sluice
