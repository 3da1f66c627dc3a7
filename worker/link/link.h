#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/step_plan.h"
#include "runtime/memory/activation_buffer.h"
#include "worker/link/payload_channel.h"

namespace sluice {

// What one stage hands to the next: the activations of one micro-batch. The
// step's plan rides on micro-batch 0, or alone when the plan has none.
struct ActivationFrame {
  PlanEpoch epoch;
  BlockId block;
  int64_t step = 0;
  int32_t micro_batch = 0;
  std::shared_ptr<const StepPlan> plan;      // set iff micro_batch == 0
  std::shared_ptr<ActivationBuffer> hidden;  // null iff plan has no micro-batch
};

// What carries the payload of a link's frames: the frames themselves, or a
// PayloadChannel beside them.
enum class LinkTransport { kGrpc, kNccl };

// "grpc" or "nccl".
inline absl::string_view LinkTransportName(LinkTransport transport) {
  return transport == LinkTransport::kNccl ? "nccl" : "grpc";
}

// How the payloads of one link leave its frames.
struct DetachedPayloads {
  PayloadTransport* transport = nullptr;  // null: they do not
  size_t max_bytes = 0;                   // of one
  // Takes the id of the new channel to the receiver (LinkService::Join).
  // Never waits.
  std::function<void(const std::string& id)> hand_out;
};

struct LinkOptions {
  DetachedPayloads payloads;
  // Called once, from a link thread, if the link breaks before it is closed,
  // whether or not anybody sends: what was sent last may not have arrived, and
  // the receiver may not know that there was anything. Not called when the
  // receiver says that the epoch is over, which this end will be told as well.
  std::function<void(const absl::Status&)> on_broken;
};

// The sending end of a link to the next stage, for one plan epoch. Thread-safe.
class LinkSender {
 public:
  virtual ~LinkSender() = default;
  // Waits for a credit of the receiver, then for room; the buffer is not copied
  // and stays referenced until it is on the wire. kUnavailable when the link is
  // broken or closed, kUnimplemented if its detached payloads never found a
  // way; the first error sticks.
  virtual absl::Status Send(ActivationFrame frame) = 0;
  // Breaks the link off; waiting Sends fail, and detached payloads under way
  // are lost.
  virtual void Close() = 0;
  virtual uint64_t bytes_sent() const = 0;
  // Whether what is sent next waits for the receiver, which has not taken what
  // came before.
  virtual bool blocked() const = 0;
};

class LinkFactory {
 public:
  virtual ~LinkFactory() = default;
  // Connects to the worker that serves LinkService at `address`.
  virtual absl::StatusOr<std::unique_ptr<LinkSender>> Connect(
      const std::string& address, PlanEpoch epoch,
      const LinkOptions& options) = 0;
};

// Where arriving frames go. Called from link threads: implementations only
// enqueue. Thread-safe.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Called for each frame, in order. `on_consumed` must be called once, from
  // any thread, when the frame's buffer slot is free again: it grants the
  // sender its next credit. kFailedPrecondition: a stale epoch, which ends the
  // stream.
  virtual absl::Status OnFrame(ActivationFrame frame,
                               std::function<void()> on_consumed) = 0;
  // The sender's stream of this epoch ended with an error after it had carried
  // frames.
  virtual void OnLinkBroken(PlanEpoch epoch, const absl::Status& status) = 0;
};

}  // namespace sluice
