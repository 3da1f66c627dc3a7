#pragma once

#include <cstdint>
#include <memory>

#include "common/metrics/metrics.h"
#include "worker/link/link.h"
#include "worker/link/link_receiver.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

// The receiving end of links over gRPC. Must outlive the server that serves it.
// Thread-safe.
class LinkService : public LinkReceiver {
 public:
  // `sink` must outlive the service. `payloads` may be null: streams whose
  // payloads are detached are then refused; else it is not called after the
  // server's Shutdown, and is to be destroyed before the service.
  // `bytes_received` may be null.
  static std::unique_ptr<LinkService> Create(FrameSink* sink,
                                             PayloadTransport* payloads,
                                             Counter* bytes_received);
  virtual grpc::Service* service() = 0;
};

}  // namespace sluice
