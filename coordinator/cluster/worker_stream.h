#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "coordinator/cluster/links/link_address.h"
#include "sluice/v1/pipeline.pb.h"

// The dispatcher's interface to attached workers: events come in, messages go
// out. Nothing here knows the transport.

namespace sluice {

// One attachment of a worker; a worker that attaches again gets a new one.
using WorkerId = StrongInt<struct WorkerIdTag>;

// The outgoing end of one attached worker. Thread-safe; nothing blocks.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;
  // Accepts the worker's Register. Queued messages are sent from now on.
  virtual void Accept() = 0;
  // Queues a message. Returns false if the queue is full (the worker does not
  // read) or the stream has ended.
  virtual bool Send(v1::CoordinatorMessage message) = 0;
  // Ends the stream; the first reason sticks. Before Accept the worker gets
  // `reason` as its answer.
  virtual void Break(const absl::Status& reason) = 0;
};

struct WorkerOpened {
  std::shared_ptr<WorkerStream> stream;
  PeerPlace place = {};  // where it attaches from
};
struct WorkerClosed {
  absl::Status reason;
};
// The answer to WorkerRegistry::TakeLookups.
struct WorkerResolved {
  absl::StatusOr<std::vector<std::string>> addresses;
};
// A worker's events come in order: one WorkerOpened, its messages (the first is
// a Register), one WorkerClosed; and anywhere a WorkerResolved.
struct WorkerEvent {
  WorkerId worker;
  std::variant<WorkerOpened, v1::WorkerMessage, WorkerClosed, WorkerResolved>
      what;
};

// The consumer of events. Thread-safe.
class WorkerEventSink {
 public:
  virtual ~WorkerEventSink() = default;
  // Takes an event; may wait for room. Returns false once the sink is closed.
  virtual bool Push(WorkerEvent event) = 0;
};

}  // namespace sluice
