#include "common/metrics/metrics.h"

namespace sluice {
namespace {

class NullCounter : public Counter {
  void Add(double) override {}
};
class NullGauge : public Gauge {
  void Set(double) override {}
};
class NullHistogram : public Histogram {
  void Observe(double) override {}
};

class NullMetrics : public MetricsRegistry {
 public:
  Counter* GetCounter(const std::string&, const std::string&,
                      const MetricLabels&) override {
    return &counter_;
  }
  Gauge* GetGauge(const std::string&, const std::string&,
                  const MetricLabels&) override {
    return &gauge_;
  }
  Histogram* GetHistogram(const std::string&, const std::string&,
                          const std::vector<double>&,
                          const MetricLabels&) override {
    return &histogram_;
  }
  void Remove(const std::string&, const MetricLabels&) override {}

 private:
  NullCounter counter_;
  NullGauge gauge_;
  NullHistogram histogram_;
};

}  // namespace

std::unique_ptr<MetricsRegistry> CreateNullMetrics() {
  return std::make_unique<NullMetrics>();
}

}  // namespace sluice
