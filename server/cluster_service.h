#pragma once

#include <grpcpp/grpcpp.h>

#include "common/threads/executor.h"
#include "coordinator/coordinator.h"
#include "sluice/v1/cluster.grpc.pb.h"

namespace sluice {

class CallGuard;

// ClusterService over a coordinator, which must outlive it; it must outlive the
// server. Thread-safe.
class ClusterServiceImpl final : public v1::ClusterService::CallbackService {
 public:
  // `queries` runs the calls; it, and `guard`, which may be null, must outlive
  // the service.
  ClusterServiceImpl(Coordinator* coordinator, Executor* queries,
                     CallGuard* guard)
      : coordinator_(coordinator), queries_(queries), guard_(guard) {}

  grpc::ServerUnaryReactor* GetClusterState(
      grpc::CallbackServerContext* context,
      const v1::GetClusterStateRequest* request,
      v1::ClusterState* response) override;
  grpc::ServerUnaryReactor* DrainWorker(
      grpc::CallbackServerContext* context,
      const v1::DrainWorkerRequest* request,
      v1::DrainWorkerResponse* response) override;
  grpc::ServerUnaryReactor* GetTrace(grpc::CallbackServerContext* context,
                                     const v1::GetTraceRequest* request,
                                     v1::Trace* response) override;

 private:
  Coordinator* const coordinator_;
  Executor* const queries_;
  CallGuard* const guard_;
};

// Keeps of `state` the workers with ids above `after`, in the order of their
// ids, as many as fit `max_bytes` with the rest (at least one, if need be
// without its profile); next_after says where to continue.
void TakePage(int64_t after, size_t max_bytes, v1::ClusterState* state);

}  // namespace sluice
