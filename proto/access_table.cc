#include "proto/access_table.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr AccessRule kRules[] = {
    {"sluice.v1.JobService/CreateJob", Scope::kSubmit},
    {"sluice.v1.JobService/GetJob", Scope::kRead},
    {"sluice.v1.JobService/ListJobs", Scope::kRead},
    {"sluice.v1.JobService/WatchJob", Scope::kRead},
    {"sluice.v1.JobService/CancelJob", Scope::kSubmit},
    {"sluice.v1.JobService/PauseJob", Scope::kSubmit},
    {"sluice.v1.JobService/ResumeJob", Scope::kSubmit},
    {"sluice.v1.JobService/SetJobPriority", Scope::kSubmit},
    {"sluice.v1.JobService/StreamResults", Scope::kRead},
    {"sluice.v1.JobService/DeleteJob", Scope::kSubmit},
    {"sluice.v1.ClusterService/GetClusterState", Scope::kRead},
    {"sluice.v1.ClusterService/DrainWorker", Scope::kAdmin},
    {"sluice.v1.ClusterService/GetTrace", Scope::kRead},
    {"sluice.v1.WorkerService/Attach", Scope::kCluster},
    {"sluice.v1.WeightsService/ListPieces", Scope::kCluster},
    {"sluice.v1.WeightsService/ReadPieces", Scope::kCluster},
    {"sluice.v1.LinkService/Send", Scope::kCluster},
};

}  // namespace

absl::Span<const AccessRule> AccessRules() { return kRules; }

Scope ScopeOf(absl::string_view method) {
  const auto* const rule =
      std::find_if(std::begin(kRules), std::end(kRules),
                   [&](const AccessRule& r) { return r.method == method; });
  return rule == std::end(kRules) ? Scope::kCluster : rule->scope;
}

}  // namespace sluice
