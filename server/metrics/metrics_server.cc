#include "server/metrics/metrics_server.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <exception>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"

namespace sluice {
namespace {

class PrometheusCounter : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter* counter)
      : counter_(counter) {}
  void Add(double amount) override { counter_->Increment(amount); }

 private:
  prometheus::Counter* counter_;
};

class PrometheusGauge : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value) override { gauge_->Set(value); }

 private:
  prometheus::Gauge* gauge_;
};

class PrometheusHistogram : public Histogram {
 public:
  explicit PrometheusHistogram(prometheus::Histogram* histogram)
      : histogram_(histogram) {}
  void Observe(double value) override { histogram_->Observe(value); }

 private:
  prometheus::Histogram* histogram_;
};

class PrometheusRegistry : public MetricsRegistry {
 public:
  PrometheusRegistry() : registry_(std::make_shared<prometheus::Registry>()) {}

  Counter* GetCounter(const std::string& name, const std::string& help,
                      const MetricLabels& labels) override {
    MutexLock lock(&mu_);
    auto& slot = counters_[{name, labels}];
    if (!slot) {
      slot = std::make_unique<PrometheusCounter>(&prometheus::BuildCounter()
                                                      .Name(name)
                                                      .Help(help)
                                                      .Register(*registry_)
                                                      .Add(labels));
    }
    return slot.get();
  }

  Gauge* GetGauge(const std::string& name, const std::string& help,
                  const MetricLabels& labels) override {
    MutexLock lock(&mu_);
    auto& slot = gauges_[{name, labels}];
    if (!slot) {
      slot = std::make_unique<PrometheusGauge>(&prometheus::BuildGauge()
                                                    .Name(name)
                                                    .Help(help)
                                                    .Register(*registry_)
                                                    .Add(labels));
    }
    return slot.get();
  }

  Histogram* GetHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& buckets,
                          const MetricLabels& labels) override {
    MutexLock lock(&mu_);
    auto& slot = histograms_[{name, labels}];
    if (!slot) {
      slot = std::make_unique<PrometheusHistogram>(&prometheus::BuildHistogram()
                                                        .Name(name)
                                                        .Help(help)
                                                        .Register(*registry_)
                                                        .Add(labels, buckets));
    }
    return slot.get();
  }

  const std::shared_ptr<prometheus::Registry>& registry() const {
    return registry_;
  }

 private:
  using Key = std::pair<std::string, MetricLabels>;
  std::shared_ptr<prometheus::Registry> registry_;
  Mutex mu_;
  std::map<Key, std::unique_ptr<PrometheusCounter>> counters_
      ABSL_GUARDED_BY(mu_);
  std::map<Key, std::unique_ptr<PrometheusGauge>> gauges_ ABSL_GUARDED_BY(mu_);
  std::map<Key, std::unique_ptr<PrometheusHistogram>> histograms_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace

struct MetricsServer::Impl {
  PrometheusRegistry registry;
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer() : impl_(std::make_unique<Impl>()) {}
MetricsServer::~MetricsServer() = default;

MetricsRegistry* MetricsServer::registry() { return &impl_->registry; }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& host, int port) {
  std::unique_ptr<MetricsServer> server(new MetricsServer);
  const std::string wanted = absl::StrCat(host, ":", port);
  try {
    server->impl_->exposer = std::make_unique<prometheus::Exposer>(wanted, 2);
    server->impl_->exposer->RegisterCollectable(
        server->impl_->registry.registry());
    server->address_ = absl::StrCat(
        host, ":", server->impl_->exposer->GetListeningPorts().at(0));
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("can't serve metrics on ", wanted, ": ", e.what(),
                     "; is the port taken? Choose another --metrics-port"));
  }
  return server;
}

std::unique_ptr<MetricsRegistry> CreatePrometheusRegistry() {
  return std::make_unique<PrometheusRegistry>();
}

}  // namespace sluice
