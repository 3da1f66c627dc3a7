#pragma once

#include <atomic>
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

// The activations of one micro-batch, on the way from one stage to the next.
// Micro-batch 0 carries the step's plan, which travels alone if it has none.
struct ActivationFrame {
  PlanEpoch epoch;
  BlockId block;
  int64_t step = 0;
  int32_t micro_batch = 0;
  std::shared_ptr<const StepPlan> plan;      // set iff micro_batch == 0
  std::shared_ptr<ActivationBuffer> hidden;  // null iff plan has no micro-batch
};

// The transport of a link's activations.
enum class LinkTransport {
  kGrpc,  // frames in a gRPC stream
  kNccl,  // a PayloadChannel beside these frames
  kTcp,   // frames in a TCP connection of their own, beside the stream
};

// "grpc", "nccl" or "tcp".
inline absl::string_view LinkTransportName(LinkTransport transport) {
  if (transport == LinkTransport::kNccl) return "nccl";
  return transport == LinkTransport::kTcp ? "tcp" : "grpc";
}

class TcpLinks;

// What a worker's links may go by beside gRPC; null: not by this.
struct LinkTransports {
  PayloadTransport* nccl = nullptr;
  TcpLinks* tcp = nullptr;

  bool Has(LinkTransport transport) const {
    if (transport == LinkTransport::kNccl) return nccl != nullptr;
    return transport == LinkTransport::kGrpc || tcp != nullptr;
  }
};

// The settings of payloads that travel beside a link's frames.
struct DetachedPayloads {
  PayloadTransport* transport = nullptr;  // null: payloads stay in the frames
  size_t max_bytes = 0;                   // of one payload
  // Takes the id of the new channel to the receiver (LinkService::Join).
  // Never waits.
  std::function<void(const std::string& id)> hand_out;
};

struct LinkOptions {
  DetachedPayloads payloads;
  bool tcp = false;               // frames go by a TCP connection: kTcp
  DType dtype = DType::kFloat32;  // of activations on the way: or kBFloat16
  // If set, connecting ends with kCancelled soon after this is true.
  const std::atomic<bool>* cancelled = nullptr;
  // Called once, from a link thread, if the link breaks before it is closed,
  // even if nothing is being sent: the last frames may be lost, and the
  // receiver may not know of them. Not called when the receiver says that the
  // epoch is over, which this end will be told as well.
  std::function<void(const absl::Status&)> on_broken;
};

// The sending end of a link to the next stage, for one plan epoch. Thread-safe.
class LinkSender {
 public:
  virtual ~LinkSender() = default;
  // Waits for a credit of the receiver, then for room; the buffer is not copied
  // and stays referenced until it is sent; nobody else may use it any more.
  // By TCP, also waits until the kernel has taken the frame. kUnavailable when
  // the link is broken or closed, kUnimplemented if its detached payloads could
  // never be connected; the first error sticks.
  virtual absl::Status Send(ActivationFrame frame) = 0;
  // Breaks the link off; waiting Sends fail, and detached payloads in flight
  // are lost.
  virtual void Close() = 0;
  virtual uint64_t bytes_sent() const = 0;
  // Whether the next Send would wait because the receiver has not taken earlier
  // frames.
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

// The consumer of arriving frames. Called from link threads: implementations
// only enqueue. Thread-safe.
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
