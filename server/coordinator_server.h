#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/threads/executor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "coordinator/coordinator.h"
#include "proto/grpc_endpoint.h"
#include "server/cluster_service.h"
#include "server/job_service.h"

namespace sluice {

// A coordinator behind gRPC: JobService, ClusterService, WorkerService,
// grpc.health.v1 and reflection. Thread-safe.
//
// To health checks, JobService, ClusterService and WorkerService serve from the
// start to the shutdown: jobs are accepted, and workers attach, before any job
// can run. "", the whole, serves while a plan is loaded, so that jobs run.
class CoordinatorServer {
 public:
  // Listens on `address` ("host:port", port 0 for a free one), or on no port at
  // all if it is "": then only Channel reaches it. The coordinator must outlive
  // the server. `tls` as for StartServer.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(
      Coordinator* coordinator, const std::string& address,
      const JobServiceImpl::Options& options = {}, const TlsFiles& tls = {});
  ~CoordinatorServer() { Shutdown(); }

  // A channel within this process.
  std::shared_ptr<grpc::Channel> Channel(ChannelKind kind);
  // The port; 0 without one.
  int port() const { return port_; }

  // Ends all calls and stops to listen. The coordinator should be shut down
  // right after.
  void Shutdown();

 private:
  CoordinatorServer(Coordinator* coordinator,
                    const JobServiceImpl::Options& options);
  void ShowHealth();

  Coordinator* const coordinator_;
  Executor queries_;
  JobServiceImpl job_service_;
  ClusterServiceImpl cluster_service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  Mutex mu_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread health_;
};

}  // namespace sluice
