#pragma once

#include <memory>
#include <string>

#include "common/metrics/metrics.h"
#include "common/piece_reader.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

class CallGuard;

// The counter of what a WeightsService has sent, of a worker's or the
// coordinator's ("") registry.
Counter* WeightBytesServed(MetricsRegistry* registry,
                           const std::string& worker);

// The server side of WeightsService over a shelf of files. Thread-safe.
//
// It uses gRPC's callbacks and a few threads of its own, which wait for the
// disk; gRPC's never do. Calls take turns, a piece each.
class WeightsServer {
 public:
  // `shelf` must outlive the server that serves it; `bytes_served` and `guard`
  // may be null.
  static std::unique_ptr<WeightsServer> Create(PieceShelf* shelf,
                                               Counter* bytes_served,
                                               CallGuard* guard = nullptr);
  virtual ~WeightsServer() = default;
  virtual grpc::Service* service() = 0;
};

}  // namespace sluice
