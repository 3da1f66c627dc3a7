#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/metrics/metrics.h"
#include "common/types.h"
#include "runtime/memory/activation_buffer.h"
#include "worker/link/link.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

class CallGuard;

// The terms that a stage expects the one before it to keep.
struct LinkTerms {
  int64_t max_rows = 0;           // tokens of one micro-batch
  int64_t cols = 0;               // hidden size
  int32_t max_micro_batches = 0;  // of one step
  int32_t credits = 0;            // frames that may wait here, >= those of one
                                  // step, which are held until it is over
  // A stream with another transport is refused.
  LinkTransport transport = LinkTransport::kGrpc;
  DType dtype = DType::kFloat32;  // of activations on the way
};

// The receiving end of links over gRPC, as a stage controls it. Streams are
// told apart by their plan epoch: those of an epoch that is over are refused
// with kFailedPrecondition, those of one that has not begun here wait without
// credits, so that early frames are neither lost nor pile up. Must outlive the
// server that serves it. Thread-safe; never waits.
class LinkService {
 public:
  // `sink` must outlive the service. Streams by a transport that `transports`
  // has not are refused; what it has is not called after the server's Shutdown,
  // and must be stopped or destroyed before the service.
  // `bytes_received` and `guard` may be null.
  static std::unique_ptr<LinkService> Create(FrameSink* sink,
                                             LinkTransports transports,
                                             Counter* bytes_received,
                                             CallGuard* guard = nullptr);
  virtual ~LinkService() = default;
  virtual grpc::Service* service() = 0;

  // Sets the pool into which activations are received; null: any memory.
  virtual void ReceiveInto(std::shared_ptr<ActivationPool> buffers) = 0;
  // Streams older than `epoch` end.
  virtual void Advance(PlanEpoch epoch) = 0;
  // Advances to `epoch` and grants its stream credits, now or when it comes.
  virtual void Accept(PlanEpoch epoch, const LinkTerms& terms) = 0;
  // Joins NCCL's channel `id`, by which the present stream of `epoch` gets its
  // detached payloads of at most `max_bytes` each. Before this it gets no
  // credits.
  virtual void Join(PlanEpoch epoch, const std::string& id,
                    size_t max_bytes) = 0;
  // Ends `epoch` here: it and older ones are refused, with `reason`'s code and
  // message for the stream that is open.
  virtual void End(PlanEpoch epoch, const absl::Status& reason) = 0;
  // Ends all streams and forgets epochs: another coordinator counts its own.
  virtual void Forget(const absl::Status& reason) = 0;
};

}  // namespace sluice
