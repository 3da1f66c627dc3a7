#include "common/metrics/metrics_server.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/host/host_port.h"
#include "common/metrics/process_metrics.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "common/version.h"

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
  // `builder` makes the family, whose Add(labels, args...) makes the series.
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
  HttpAnswer Metrics();
  HttpAnswer Ready();

  PrometheusRegistry registry;
  const ProcessMetrics process{};
  Mutex mu;
  absl::Status ready ABSL_GUARDED_BY(mu) = absl::UnavailableError("starting");
  std::unique_ptr<HttpServer> http;  // destroyed first
};

HttpAnswer MetricsServer::Impl::Metrics() {
  // prometheus::Exposer is not used, as it adds figures of its own.
  std::vector<prometheus::MetricFamily> families =
      registry.registry()->Collect();
  for (prometheus::MetricFamily& family : process.Collect()) {
    families.push_back(std::move(family));
  }
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = prometheus::TextSerializer().Serialize(families)};
}

HttpAnswer MetricsServer::Impl::Ready() {
  MutexLock lock(&mu);
  if (ready.ok()) return {.body = "ready\n"};
  return {.code = 503,
          .body = absl::StrCat("not ready: ", ready.message(), "\n")};
}

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

void MetricsServer::SetReady(const absl::Status& ready) {
  MutexLock lock(&impl_->mu);
  impl_->ready = ready;
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    HttpServer::Options options) {
  std::unique_ptr<MetricsServer> server(new MetricsServer);
  Impl* const impl = server->impl_.get();
  const auto add = [&](const char* path, auto handler, bool quick) {
    options.routes.push_back({.method = "GET",
                              .pattern = path,
                              .scope = Scope::kOpen,
                              .handler = handler,
                              .quick = quick});
  };
  const bool has_page =
      std::any_of(options.routes.begin(), options.routes.end(),
                  [](const HttpRoute& route) { return route.pattern == "/"; });
  add(
      "/metrics", [impl](const HttpRequest&) { return impl->Metrics(); },
      false);
  add(
      "/healthz", [](const HttpRequest&) { return HttpAnswer{.body = "ok\n"}; },
      true);
  add(
      "/readyz", [impl](const HttpRequest&) { return impl->Ready(); }, true);
  if (!has_page) {
    add(
        "/",
        [](const HttpRequest&) {
          return HttpAnswer{.body =
                                "/metrics  for Prometheus\n"
                                "/healthz  whether this process lives\n"
                                "/readyz   whether it can do its work\n"};
        },
        true);
  }
  const std::string host = options.host;
  auto http = HttpServer::Start(std::move(options));
  if (!http.ok()) {
    return Unavailable("metrics: ", http.status().message(),
                       "; choose another --metrics-port");
  }
  impl->http = *std::move(http);
  server->address_ = JoinHostPort(host, impl->http->port());
  return server;
}

std::unique_ptr<MetricsRegistry> CreatePrometheusRegistry() {
  return std::make_unique<PrometheusRegistry>();
}

}  // namespace sluice
