#include "server/cluster_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "proto/call_guard.h"
#include "server/job_operations.h"
#include "server/unary_service.h"

namespace sluice {
namespace {

// gRPC clients refuse messages of more than 4 MB.
constexpr size_t kMaxBytes = 3 << 20;

}  // namespace

grpc::ServerUnaryReactor* ClusterServiceImpl::GetClusterState(
    grpc::CallbackServerContext* context,
    const v1::GetClusterStateRequest* request, v1::ClusterState* response) {
  auto caller =
      CheckCall(guard_, *context, "sluice.v1.ClusterService/GetClusterState");
  return AnswerLater(
      queries_,
      [this, caller = std::move(caller), request, response]() -> absl::Status {
        SLUICE_RETURN_IF_ERROR(caller.status());
        *response = coordinator_->cluster_state();
        TakePage(request->after(), kMaxBytes, response);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ClusterServiceImpl::DrainWorker(
    grpc::CallbackServerContext* context, const v1::DrainWorkerRequest* request,
    v1::DrainWorkerResponse*) {
  auto caller =
      CheckCall(guard_, *context, "sluice.v1.ClusterService/DrainWorker");
  return AnswerLater(
      queries_, [this, caller = std::move(caller), request]() -> absl::Status {
        SLUICE_RETURN_IF_ERROR(caller.status());
        return coordinator_->DrainWorker(request->name(), !request->undo());
      });
}

grpc::ServerUnaryReactor* ClusterServiceImpl::GetTrace(
    grpc::CallbackServerContext* context, const v1::GetTraceRequest* request,
    v1::Trace* response) {
  auto caller = CheckCall(guard_, *context, "sluice.v1.ClusterService/GetTrace",
                          request->id());
  return AnswerLater(
      queries_,
      [this, caller = std::move(caller), request, response]() -> absl::Status {
        SLUICE_RETURN_IF_ERROR(caller.status());
        SLUICE_ASSIGN_OR_RETURN(
            const v1::Job job,
            JobOperations(&coordinator_->jobs()).Get(request->id(), *caller));
        SLUICE_ASSIGN_OR_RETURN(*response,
                                coordinator_->Trace(job, request->after()));
        return absl::OkStatus();
      });
}

void TakePage(int64_t after, size_t max_bytes, v1::ClusterState* state) {
  std::vector<v1::WorkerInfo> workers;
  for (v1::WorkerInfo& worker : *state->mutable_workers()) {
    if (worker.id() > after) workers.push_back(std::move(worker));
  }
  state->clear_workers();
  std::sort(workers.begin(), workers.end(),
            [](const auto& a, const auto& b) { return a.id() < b.id(); });
  size_t bytes = state->ByteSizeLong();
  for (v1::WorkerInfo& worker : workers) {
    // Real profiles are far smaller.
    if (worker.ByteSizeLong() > max_bytes) worker.clear_profile();
    bytes += worker.ByteSizeLong();
    if (bytes > max_bytes && state->workers_size() > 0) {
      state->set_next_after(state->workers().rbegin()->id());
      return;
    }
    *state->add_workers() = std::move(worker);
  }
}

}  // namespace sluice
