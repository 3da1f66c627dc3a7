#pragma once

#include <cstddef>
#include <memory>

#include "common/limits.h"
#include "coordinator/cluster/worker_stream.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

class CallGuard;

// The server side of WorkerService: turns each Attach stream into events for
// `sink`. Thread-safe.
//
// It uses gRPC's callbacks: a stream takes no thread, so that neither many
// workers nor strangers' streams keep one from attaching. Events are pushed
// from two threads of the service's own; while these wait for room in the sink,
// nothing more is read.
class WorkerAttachService {
 public:
  struct Options {
    size_t max_workers = kMaxWorkers;
    size_t outgoing_messages = 1024;  // queued per worker
    CallGuard* guard = nullptr;       // must outlive the service
  };

  // `sink` must outlive the service.
  static std::unique_ptr<WorkerAttachService> Create(WorkerEventSink* sink,
                                                     const Options& options);
  virtual ~WorkerAttachService() = default;

  // The service, which must outlive the server that it is registered with.
  virtual grpc::Service* service() = 0;

  // Breaks all streams; new ones get kUnavailable.
  virtual void Shutdown() = 0;
};

}  // namespace sluice
