#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

// Counters only grow. All metric objects are thread-safe and lock-free on
// update.
class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(double amount) = 0;
  void Increment() { Add(1); }
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;
};

using MetricLabels = std::map<std::string, std::string>;

// Components register their metrics here. The same name and labels give the
// same object. The registry owns what it returns and must outlive its users.
// Names follow Prometheus: prefix "sluice_", base units, "_total" on counters.
// A name has one type, one help text, one set of labels and one of the layouts
// of common/metrics/metric_buckets.h, whichever program exports it.
// Thread-safe.
class MetricsRegistry {
 public:
  virtual ~MetricsRegistry() = default;
  virtual Counter* GetCounter(const std::string& name, const std::string& help,
                              const MetricLabels& labels = {}) = 0;
  virtual Gauge* GetGauge(const std::string& name, const std::string& help,
                          const MetricLabels& labels = {}) = 0;
  // `buckets` are upper bounds, ascending.
  virtual Histogram* GetHistogram(const std::string& name,
                                  const std::string& help,
                                  const std::vector<double>& buckets,
                                  const MetricLabels& labels = {}) = 0;
  // Removes a series of any type, if there is one: for example, of a worker
  // that is gone. Its metric object must not be used any more.
  virtual void Remove(const std::string& name, const MetricLabels& labels) = 0;
};

// A registry whose metrics are discarded.
std::unique_ptr<MetricsRegistry> CreateNullMetrics();

}  // namespace sluice
