#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"
#include "common/threads/mutex.h"

namespace sluice {

// Keeps values by "name" or "name{label=value,...}". Thread-safe.
class TestMetrics : public MetricsRegistry {
 public:
  TestMetrics();
  ~TestMetrics() override;

  Counter* GetCounter(const std::string& name, const std::string& help,
                      const MetricLabels& labels) override;
  Gauge* GetGauge(const std::string& name, const std::string& help,
                  const MetricLabels& labels) override;
  Histogram* GetHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& buckets,
                          const MetricLabels& labels) override;
  void Remove(const std::string& name, const MetricLabels& labels) override;

  // A counter's or gauge's value, a histogram's count; -1 if there is none.
  double Value(const std::string& key) const;

 private:
  class Metric;
  Metric* Get(const std::string& name, const MetricLabels& labels);

  mutable Mutex mu_;
  std::map<std::string, double> values_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::unique_ptr<Metric>> metrics_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
