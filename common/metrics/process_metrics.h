#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <vector>

namespace sluice {

// The standard process metrics of Prometheus' client libraries, read from /proc
// at each scrape: process_resident_memory_bytes, process_virtual_memory_bytes,
// process_cpu_seconds_total, process_start_time_seconds, process_open_fds,
// process_max_fds; and process_threads. Unreadable values are left out.
// Thread-safe.
class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace sluice
