#pragma once

#include <cstddef>
#include <memory>

#include "common/limits.h"
#include "coordinator/worker_stream.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

// The server side of WorkerService: turns each Attach stream into events for
// `sink`, in a thread of its own that reads and one that writes. Thread-safe.
//
// Threads rather than gRPC's callbacks: a reader that waits for room in the
// sink is all the back-pressure needed, and a worker costs two mostly idle
// threads.
class WorkerAttachService {
 public:
  struct Options {
    size_t max_workers = kMaxWorkers;
    size_t outgoing_messages = 1024;  // queued per worker
  };

  // `sink` must outlive the service.
  static std::unique_ptr<WorkerAttachService> Create(WorkerEventSink* sink,
                                                     const Options& options);
  virtual ~WorkerAttachService() = default;

  // Must outlive the server that it is registered with.
  virtual grpc::Service* service() = 0;

  // Breaks all streams; new ones get kUnavailable.
  virtual void Shutdown() = 0;
};

}  // namespace sluice
