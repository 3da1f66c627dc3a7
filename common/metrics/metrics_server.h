#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "common/metrics/metrics.h"

namespace sluice {

// Prometheus' /metrics over HTTP, with the registry behind it and the figures
// of the process (see ProcessMetrics) beside, and probes: /healthz always
// answers 200, /readyz 200 or 503 with the reason. Thread-safe.
class MetricsServer {
 public:
  // Starts an HTTP server of its own routes, which are open to all, and those
  // of `options`. Starts as not ready. kUnavailable if the address can't be
  // bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      HttpServer::Options options);
  ~MetricsServer();

  MetricsRegistry* registry();
  // Sets the answer of /readyz: OK, or the reason why not.
  void SetReady(const absl::Status& ready);
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

// A prometheus-cpp registry without a server: `sluice run` reads it.
std::unique_ptr<MetricsRegistry> CreatePrometheusRegistry();

}  // namespace sluice
