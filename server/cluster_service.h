#pragma once

#include <grpcpp/grpcpp.h>

#include "coordinator/coordinator.h"
#include "sluice/v1/cluster.grpc.pb.h"

namespace sluice {

// ClusterService over a coordinator, which must outlive it. Thread-safe.
class ClusterServiceImpl final : public v1::ClusterService::Service {
 public:
  explicit ClusterServiceImpl(const Coordinator* coordinator)
      : coordinator_(coordinator) {}

  grpc::Status GetClusterState(grpc::ServerContext*,
                               const v1::GetClusterStateRequest*,
                               v1::ClusterState* response) override {
    *response = coordinator_->cluster_state();
    return grpc::Status::OK;
  }

 private:
  const Coordinator* const coordinator_;
};

}  // namespace sluice
