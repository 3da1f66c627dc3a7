#include "server/cli/jobs/follow.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// Whether the coordinator stops or does not answer. A stream that the server's
// end cuts off may end as cancelled.
bool IsAbsence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status);
}

}  // namespace

void Patience::Heard() {
  heard_ = true;
  away_ = false;
}

bool Patience::TryAgain(const absl::Status& status) {
  if (!heard_ || !IsAbsence(status)) return false;
  // A command that is asked to stop ends its own calls.
  if (options_.sleep(absl::ZeroDuration())) return false;
  if (!away_) {
    away_ = true;
    wait_ = options_.first_wait;
    if (options_.on_away) options_.on_away();
  }
  if (options_.sleep(wait_)) return false;
  wait_ = std::min(wait_ * 2, options_.max_wait);
  return true;
}

absl::StatusOr<v1::Job> WatchToEnd(
    JobClient& client, const std::string& id, Patience& patience,
    const std::function<void(const v1::Job&)>& on_job) {
  for (;;) {
    absl::StatusOr<v1::Job> last = client.WatchJob(id, [&](const v1::Job& job) {
      patience.Heard();
      on_job(job);
      return true;
    });
    if (last.ok() || !patience.TryAgain(last.status())) return last;
  }
}

absl::Status StreamToEnd(
    JobClient& client, const std::string& id, int64_t offset, bool follow,
    Patience& patience,
    const std::function<absl::Status(const v1::Result&)>& on_result) {
  if (!patience.heard()) {
    SLUICE_RETURN_IF_ERROR(client.GetJob(id).status());
    patience.Heard();
  }
  for (;;) {
    absl::Status own;  // the error of on_result, which is no absence
    const absl::Status status =
        client.StreamResults(id, offset, follow, [&](const v1::Result& result) {
          patience.Heard();
          own = on_result(result);
          if (own.ok()) offset = result.index() + 1;
          return own;
        });
    if (!own.ok()) return own;
    if (status.ok() || !patience.TryAgain(status)) return status;
  }
}

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
  status_ = FailedPrecondition(
      "given up after ", kMaxFailures,
      " failures in a row: ", detail_.empty() ? job.detail() : detail_);
  return false;
}

}  // namespace sluice
