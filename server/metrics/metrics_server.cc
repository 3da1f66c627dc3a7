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

// The series of one type, by name and labels.
template <typename Theirs, typename Ours>
class SeriesMap {
 public:
  // `builder` makes the family, of which Add(labels, args...) makes the series.
  template <typename Builder, typename... Args>
  Ours* Get(const std::string& name, const std::string& help,
            const MetricLabels& labels, prometheus::Registry* registry,
            Builder builder, const Args&... args) {
    Entry& entry = entries_[{name, labels}];
    if (entry.ours == nullptr) {
      entry.family = &builder.Name(name).Help(help).Register(*registry);
      entry.theirs = &entry.family->Add(labels, args...);
      entry.ours = std::make_unique<Ours>(entry.theirs);
    }
    return entry.ours.get();
  }

  void Remove(const std::string& name, const MetricLabels& labels) {
    const auto it = entries_.find({name, labels});
    if (it == entries_.end()) return;
    it->second.family->Remove(it->second.theirs);
    entries_.erase(it);
  }

 private:
  struct Entry {
    prometheus::Family<Theirs>* family = nullptr;
    Theirs* theirs = nullptr;
    std::unique_ptr<Ours> ours;
  };
  std::map<std::pair<std::string, MetricLabels>, Entry> entries_;
};

class PrometheusRegistry : public MetricsRegistry {
 public:
  PrometheusRegistry() : registry_(std::make_shared<prometheus::Registry>()) {}

  Counter* GetCounter(const std::string& name, const std::string& help,
                      const MetricLabels& labels) override {
    MutexLock lock(&mu_);
    return counters_.Get(name, help, labels, registry_.get(),
                         prometheus::BuildCounter());
  }

  Gauge* GetGauge(const std::string& name, const std::string& help,
                  const MetricLabels& labels) override {
    MutexLock lock(&mu_);
    return gauges_.Get(name, help, labels, registry_.get(),
                       prometheus::BuildGauge());
  }

  Histogram* GetHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& buckets,
                          const MetricLabels& labels) override {
    MutexLock lock(&mu_);
    return histograms_.Get(name, help, labels, registry_.get(),
                           prometheus::BuildHistogram(), buckets);
  }

  void Remove(const std::string& name, const MetricLabels& labels) override {
    MutexLock lock(&mu_);
    counters_.Remove(name, labels);
    gauges_.Remove(name, labels);
    histograms_.Remove(name, labels);
  }

  const std::shared_ptr<prometheus::Registry>& registry() const {
    return registry_;
  }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  Mutex mu_;
  SeriesMap<prometheus::Counter, PrometheusCounter> counters_
      ABSL_GUARDED_BY(mu_);
  SeriesMap<prometheus::Gauge, PrometheusGauge> gauges_ ABSL_GUARDED_BY(mu_);
  SeriesMap<prometheus::Histogram, PrometheusHistogram> histograms_
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
