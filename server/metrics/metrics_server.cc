#include "server/metrics/metrics_server.h"

#include <CivetServer.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/version.h"
#include "server/metrics/process_metrics.h"

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

// GET /metrics, in Prometheus' text format. Not prometheus::Exposer, which puts
// figures of its own among ours.
class MetricsHandler : public CivetHandler {
 public:
  explicit MetricsHandler(prometheus::Registry* registry)
      : registry_(registry) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    std::vector<prometheus::MetricFamily> families = registry_->Collect();
    for (prometheus::MetricFamily& family : process_.Collect()) {
      families.push_back(std::move(family));
    }
    const std::string text = prometheus::TextSerializer().Serialize(families);
    mg_printf(connection,
              "HTTP/1.1 200 OK\r\n"
              "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
              "Content-Length: %zu\r\n\r\n",
              text.size());
    mg_write(connection, text.data(), text.size());
    return true;
  }

 private:
  prometheus::Registry* const registry_;
  const ProcessMetrics process_;
};

struct MetricsServer::Impl {
  PrometheusRegistry registry;
  MetricsHandler handler{registry.registry().get()};
  std::unique_ptr<CivetServer> server;  // calls the handler
};

MetricsServer::MetricsServer() : impl_(std::make_unique<Impl>()) {}
MetricsServer::~MetricsServer() = default;

void SetBuildInfo(MetricsRegistry* registry, const std::string& device) {
  registry
      ->GetGauge("sluice_build_info",
                 "1; which build this is, and what it computes on.",
                 {{"version", ReleaseVersion()},
                  {"commit", BuildCommit()},
                  {"device", device}})
      ->Set(1);
}

MetricsRegistry* MetricsServer::registry() { return &impl_->registry; }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& host, int port) {
  std::unique_ptr<MetricsServer> server(new MetricsServer);
  const std::string wanted = absl::StrCat(host, ":", port);
  try {
    Impl& impl = *server->impl_;
    impl.server = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", wanted, "num_threads", "2"});
    impl.server->addHandler("/metrics", &impl.handler);
    server->address_ =
        absl::StrCat(host, ":", impl.server->getListeningPorts().at(0));
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
