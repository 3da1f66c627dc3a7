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

// What the dispatcher sees of attached workers: events come in, messages go
// out. Nothing here knows the transport.

namespace sluice {

// One attachment of a worker; a worker that attaches again gets a new one.
using WorkerId = StrongInt<struct WorkerIdTag>;

// The outgoing end of one attached worker. Thread-safe; nothing blocks.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;
  // The worker's Register is accepted. What Send queued goes out from now on.
  virtual void Accept() = 0;
  // Queues a message. False if the queue is full (the worker does not read) or
  // the stream has ended.
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
// The answer to Membership::TakeLookups.
struct WorkerResolved {
  absl::StatusOr<std::vector<std::string>> addresses;
};
// Of one worker, in order: one WorkerOpened, its messages (the first is a
// Register), one WorkerClosed; and anywhere a WorkerResolved.
struct WorkerEvent {
  WorkerId worker;
  std::variant<WorkerOpened, v1::WorkerMessage, WorkerClosed, WorkerResolved>
      what;
};

// Where the events go. Thread-safe.
class WorkerEventSink {
 public:
  virtual ~WorkerEventSink() = default;
  // May wait for room. False once nobody takes events any more.
  virtual bool Push(WorkerEvent event) = 0;
};

}  // namespace sluice
