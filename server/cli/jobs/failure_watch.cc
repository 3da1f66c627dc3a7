#include "server/cli/jobs/failure_watch.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice {

bool FailureWatch::Update(const v1::Job& job, const v1::ClusterState& cluster) {
  constexpr int64_t kMostFailures = 3;
  int64_t failures = 0;
  for (const v1::PlanFailures& reason : cluster.plan_failures()) {
    failures += reason.count();
  }
  // Not generated_so_far: each plan that fails may have made a token more.
  const int64_t done = job.generation_tokens() + job.counts().completed() +
                       job.counts().failed();
  if (done != done_) {
    done_ = done;
    failures_ = failures;
  }
  if (absl::StrContains(job.detail(), " failed in stage ")) {
    detail_ = job.detail();
  }
  if (failures - failures_ < kMostFailures) return true;
  status_ = absl::FailedPreconditionError(absl::StrCat(
      "given up after ", kMostFailures,
      " failures in a row: ", detail_.empty() ? job.detail() : detail_));
  return false;
}

}  // namespace sluice
