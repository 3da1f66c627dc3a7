#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Payloads that travel beside a link's stream of frames. gRPC still carries the
// plan, the header that announces each payload, credits, and the news that the
// other end is gone. A channel carries bytes in the order of the headers, and
// does not interpret them.

namespace sluice {

// Memory that a payload is sent from or received into.
struct PayloadView {
  void* data = nullptr;
  size_t bytes = 0;
  // Whether the payload lies on the transport's GPU and needs no staging. Work
  // that writes it must be done, and work that uses it not have begun.
  bool on_device = false;
};

// One end of one direction, for one plan epoch. Both ends push payloads of the
// same sizes in the same order. Thread-safe.
class PayloadChannel {
 public:
  virtual ~PayloadChannel() = default;
  // Begins to connect; the other end exists, and does the same. Payloads that
  // were pushed before wait for it.
  virtual void Start() = 0;
  // Never waits. `done` is called when the payload's memory is free again (at
  // the sender) or filled (at the receiver): on the channel's thread, in order.
  // If the channel stops or breaks before, it is dropped without a call, with
  // all that it keeps alive; until then, the memory must live.
  virtual void Push(PayloadView payload, std::function<void()> done) = 0;
  // Gives up payloads in flight. Never waits: a call of `done` or on_broken may
  // still be in progress.
  virtual void Stop() = 0;
};

// Makes channels, such as NCCL's between GPUs. Thread-safe. Its destructor
// waits for the threads of all channels; their callbacks must outlive it.
class PayloadTransport {
 public:
  enum class End { kSender, kReceiver };

  struct ChannelOptions {
    End end = End::kSender;
    std::string id;        // the same at both ends
    size_t max_bytes = 0;  // of a payload
    // Called once, on the channel's thread, if the channel breaks before it is
    // stopped. kUnavailable: the other end is gone; kUnimplemented: the two
    // ends could not be connected at all, and another try will not help.
    std::function<void(const absl::Status&)> on_broken;
  };

  virtual ~PayloadTransport() = default;
  // Returns an id for a new pair of ends, to be brought to the other one. Call
  // it only when the other end is known to exist: the resources of an id are
  // freed when both have joined.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // Opens one end of the channel, which stops when the last reference goes.
  // kInvalidArgument: no such id.
  virtual absl::StatusOr<std::shared_ptr<PayloadChannel>> Open(
      ChannelOptions options) = 0;
  // The bytes of device memory that a channel takes for staging.
  virtual size_t StagingBytes(size_t max_bytes) const = 0;
  // The UUID of the GPU that all channels of this transport end at. Two ends on
  // one GPU cannot be connected.
  virtual std::string gpu_uuid() const = 0;
  // A name for people: "NCCL 2.28.9 on GPU-1234...".
  virtual std::string name() const = 0;
};

}  // namespace sluice
