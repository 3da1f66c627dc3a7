#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics.h"

namespace sluice {

// Prometheus' /metrics over HTTP, with the registry behind it and the figures
// of the process (see ProcessMetrics) beside. Thread-safe.
class MetricsServer {
 public:
  // Listens on host:port; port 0 takes a free one. kUnavailable if the address
  // can't be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& host, int port);
  ~MetricsServer();

  MetricsRegistry* registry();
  // "host:port" as bound.
  const std::string& address() const { return address_; }

 private:
  MetricsServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

// Exports sluice_build_info. `device`: "cpu", "cuda:0", or "none".
void SetBuildInfo(MetricsRegistry* registry, const std::string& device);

// A registry on prometheus-cpp that nobody serves: `sluice run` reads it.
std::unique_ptr<MetricsRegistry> CreatePrometheusRegistry();

}  // namespace sluice
